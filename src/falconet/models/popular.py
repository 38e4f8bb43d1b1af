"""The same items for everybody: what training saw most, of all times or of late. The figure every model must beat."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from falconet.batch import Batch
from falconet.errors import ConfigError
from falconet.models.base import MODELS
from falconet.models.closed_form import ClosedForm, Interactions
from falconet.schema import Schema


@MODELS.register()
class Popular(ClosedForm):
    """Scores an item by how often it occurs in training. `fit` is all of its training; so is `set_counts`, where old
    times count as much as recent ones."""

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """`half_life`: days after which what was taken counts half as much; None: everything counts alike, for ever."""

        half_life: float | None = None

        def __post_init__(self) -> None:
            if self.half_life is not None and not 0 < self.half_life < math.inf:
                raise ConfigError(f"Popular half_life={self.half_life}", hint="days, such as 30, or None")

    reads_history: ClassVar[bool] = False
    recent: Tensor

    def __init__(self, schema: Schema, config: Any) -> None:
        super().__init__(schema, config)
        if self.reads_times:
            self.register_buffer("recent", torch.zeros(len(self.counts), dtype=torch.float64))

    @property
    def reads_times(self) -> bool:
        return self.config.half_life is not None

    def solve(self, interactions: Interactions) -> None:
        if self.config.half_life is not None:
            self.recent = interactions.recent_counts(len(self.counts), self.config.half_life).to(self.recent)

    @property
    def popularity(self) -> Tensor:
        """How often every item code occurs, recent times counting more where that is asked for: [cardinality]."""
        return self.recent if self.reads_times else self.counts

    def user(self, batch: Batch) -> Tensor:
        """Ones: every user is alike."""
        return torch.ones(batch.rows, 1, device=self.counts.device)

    def item(self, batch: Batch) -> Tensor:
        """ln(1 + popularity)."""
        return self.popularity[self.item_codes(batch)].log1p().float()[:, None]

    def loss(self, batch: Batch) -> Tensor:
        """Minus the log probability of each row's item, one added to every popularity."""
        smooth = self.popularity + 1
        return -(smooth / smooth.sum()).log()[self.item_codes(batch)].float()
