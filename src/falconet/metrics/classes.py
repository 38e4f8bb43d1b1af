"""How often the class with the highest score is the right one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from falconet.errors import DataError

State = dict[str, Tensor]
"""`right` and `rows`, int64 [1] each; of two processes, one after the other."""


class ClassMetrics:
    """The accuracy of scores over classes: right rows out of all rows, both counted, so exact for any cut."""

    def partial(self, logits: Tensor, targets: Tensor) -> State:
        """The state of some rows: logits [rows, classes], targets [rows] of whole numbers from 0.

        Of equal scores the first counts. Raises DataError for other shapes and for scores that are NaN.
        """
        if logits.dim() != 2 or targets.shape != logits.shape[:1] or targets.is_floating_point():
            raise DataError(
                f"logits {tuple(logits.shape)} and targets {tuple(targets.shape)} ({targets.dtype}) must be "
                "[rows, classes] and [rows] of whole numbers"
            )
        if bool(logits.isnan().any()):
            raise DataError(f"{int(logits.isnan().any(1).sum()):,} of {len(logits):,} rows have a score that is NaN")
        right = (logits.detach().argmax(1) == targets).sum() if len(logits) else targets.new_zeros(())
        return {"right": right.reshape(1).long().cpu(), "rows": torch.tensor([len(logits)])}

    def merge(self, states: Sequence[State]) -> State:
        """The counts of all states. No states: no rows."""
        return {
            name: torch.stack([state[name].sum() for state in states]).sum(0, keepdim=True)
            if states
            else torch.zeros(1, dtype=torch.int64)
            for name in ("right", "rows")
        }

    def finish(self, state: State) -> dict[str, float]:
        """The figure; NaN without rows."""
        rows = int(state["rows"].sum())
        return {"accuracy": int(state["right"].sum()) / rows if rows else math.nan}
