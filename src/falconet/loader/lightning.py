"""Loaders for a Lightning Trainer (`pip install "falconet[lightning]"`)."""

from __future__ import annotations

import torch

from falconet.batch import Batch
from falconet.errors import ConfigError
from falconet.loader.loader import Loader

try:
    from lightning import LightningDataModule
except ImportError as error:
    raise ConfigError("Lightning is not installed", hint='pip install "falconet[lightning]"') from error


class LightningData(LightningDataModule):  # type: ignore[misc]
    """The loaders of a training, for `Trainer.fit(module, datamodule=LightningData(train, valid))`.

    Rows are shared out among Lightning's processes as among ours, without a sampler; batches come out on the device of
    the module. An epoch follows the other in an order of its own, and a checkpoint in mid-epoch holds the position of
    `train`. `self.log(..., batch_size=batch.rows)`, as Lightning cannot tell.
    """

    def __init__(self, train: Loader, valid: Loader | None = None, test: Loader | None = None) -> None:
        super().__init__()
        self.train, self.valid, self.test = train, valid, test

    def train_dataloader(self) -> Loader:
        return self._on_device(self.train)

    def val_dataloader(self) -> Loader | list[Loader]:
        return self._on_device(self.valid) if self.valid else []

    def test_dataloader(self) -> Loader | list[Loader]:
        return self._on_device(self.test) if self.test else []

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        return batch.to(device)

    def _on_device(self, loader: Loader) -> Loader:
        loader.move_to(self.trainer.strategy.root_device)
        return loader
