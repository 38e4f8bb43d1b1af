"""How far predicted numbers are from what they should be: root of the mean squared error, and mean absolute error."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from falconet.errors import DataError
from falconet.metrics.exact import mean

State = dict[str, Tensor]
"""`errors`, float64, prediction − target of every row; of two processes, one after the other."""


class RegressionMetrics:
    """RMSE and MAE of predictions; the same bits for any order of the rows."""

    def partial(self, predictions: Tensor, targets: Tensor) -> State:
        """The state of some rows: predictions [rows], targets [rows].

        Raises DataError for different numbers of rows and for values that are not finite.
        """
        predictions, targets = predictions.detach().cpu().double(), targets.detach().cpu().double()
        if predictions.shape != targets.shape or predictions.dim() != 1:
            raise DataError(
                f"predictions {tuple(predictions.shape)} and targets {tuple(targets.shape)} must be one number per row"
            )
        for name, values in (("predictions", predictions), ("targets", targets)):
            if bad := int((~values.isfinite()).sum()):
                raise DataError(f"{bad:,} of {len(values):,} {name} are not finite")
        return {"errors": predictions - targets}

    def merge(self, states: Sequence[State]) -> State:
        """The rows of all states. No states: no rows."""
        return {"errors": torch.cat([torch.zeros(0, dtype=torch.float64), *(state["errors"] for state in states)])}

    def finish(self, state: State) -> dict[str, float]:
        """The figures; NaN without rows."""
        errors = state["errors"].numpy()
        return {"rmse": math.sqrt(mean(errors * errors)) if len(errors) else math.nan, "mae": mean(abs(errors))}
