"""The same items for everybody: what training saw most. The figure every model must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from falconet.batch import Batch
from falconet.models.base import MODELS
from falconet.models.closed_form import ClosedForm


@MODELS.register()
class Popular(ClosedForm):
    """Scores an item by how often it occurs in training; `fit`, or `set_counts`, is all of its training."""

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Popular has no settings."""

    reads_history: ClassVar[bool] = False

    def user(self, batch: Batch) -> Tensor:
        """Ones: every user is alike."""
        return torch.ones(batch.rows, 1, device=self.counts.device)

    def item(self, batch: Batch) -> Tensor:
        """ln(1 + count)."""
        return self.counts[self.item_codes(batch)].log1p()[:, None]

    def loss(self, batch: Batch) -> Tensor:
        """Minus the log probability of each row's item, one added to every count."""
        smooth = self.counts + 1
        return -(smooth / smooth.sum()).log()[self.item_codes(batch)]
