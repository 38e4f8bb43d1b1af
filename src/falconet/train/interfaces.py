"""What the trainer needs of those it works with, so that other loaders and metrics fit as well."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from falconet.batch import Batch


class Batches(Protocol):
    """A loader: the same number of steps on every process, some of them perhaps without rows."""

    @property
    def rows(self) -> int:
        """Rows of an epoch, of all processes together."""
        ...

    def __len__(self) -> int:
        """Steps of an epoch."""
        ...

    def batches(self, epoch: int = 0, start: int = 0, rank: int = 0, world: int = 1) -> Generator[Batch]:
        """The batches of one process from step `start` of an epoch on."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What the data and its order are, as plain values."""
        ...


class Metrics(Protocol):
    """Figures from logits [rows] and targets [rows]. States are dicts of tensors, joined along their first axis."""

    def partial(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]: ...

    def merge(self, states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]: ...

    def finish(self, state: dict[str, Tensor]) -> Mapping[str, float]: ...


Judges = Metrics | Mapping[str, Metrics]
"""Figures for the only target of the data or of the model, or for each target by its name."""


def bring(loader: Batches, device: torch.device) -> None:
    """Have a loader that can put its batches on a device do so: copies then go on while the device computes."""
    move_to = getattr(loader, "move_to", None)
    if move_to is not None:
        move_to(device)
