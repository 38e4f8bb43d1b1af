"""The batches of a loader as a torch IterableDataset, for a DataLoader with any number of workers."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from falconet.batch import Batch
from falconet.errors import ConfigError

if TYPE_CHECKING:
    from falconet.loader.loader import Loader

WORKERS = 1024


class Steps(IterableDataset[Batch]):
    """One batch for each step of one process: give it to a DataLoader with `batch_size=None`.

    With k workers, worker i makes the steps i, i + k, …, so that a DataLoader, which asks them in turn, gives every
    batch once and in the order of the loader. Each worker reads all files of its process: workers pay where transforms
    are slow; else the loader's own thread is faster.

    Each iteration gives the next epoch, also after one that was broken off; `set_epoch` says which is next. Batches
    come on the CPU; `DataLoader(pin_memory=True)` pins them.
    """

    def __init__(self, loader: Loader, rank: int, world: int) -> None:
        self.loader, self.rank, self.world = loader.for_worker(1), rank, world
        # In shared memory, as the workers of a DataLoader are new processes in every epoch.
        self._next = _shared(torch.tensor([loader.epoch, loader.step]))
        self._begun = _shared(torch.zeros(WORKERS, dtype=torch.int64))  # epochs each worker began since

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int, step: int = 0) -> None:
        """Put the next iteration at a step of an epoch."""
        self._next.copy_(torch.tensor([epoch, step]))
        self._begun.zero_()

    def __iter__(self) -> Generator[Batch]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        if workers > WORKERS:
            raise ConfigError(f"{workers} workers", hint=f"at most {WORKERS}")
        begun, (epoch, step) = int(self._begun[worker]), self._next.tolist()
        self._begun[worker] += 1
        if workers > 1:
            self.loader = self.loader.for_worker(workers)
        start = step if begun == 0 else 0
        return self.loader.make(epoch + begun, range(start + worker, len(self), workers), self.rank, self.world)


def _shared(x: Tensor) -> Tensor:
    return x.share_memory_()  # type: ignore[no-untyped-call, no-any-return]
