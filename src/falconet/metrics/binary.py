"""How good predictions of a yes or no are: AUC and log loss, from the scores of all rows together.

auc       the share of (positive, negative) pairs that the scores order rightly, equal scores counting one half
          (Mann and Whitney 1947); counted in whole numbers, so exact. NaN where all targets are the same.
log_loss  the mean of −ln p(target), p = sigmoid(logit) in float64, within [ε, 1 − ε] for ε = 2⁻⁵² as in scikit-learn
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from falconet.errors import DataError

State = dict[str, Tensor]
"""`logits` float64 and `targets` uint8 of every row; of two processes, one after the other."""

_LIMIT = math.log(2.0**52 - 1)  # the logit of 1 − ε


class BinaryMetrics:
    """AUC and log loss of logits."""

    def partial(self, logits: Tensor, targets: Tensor) -> State:
        """The state of some rows: logits [rows], targets [rows] of 0 and 1.

        Raises DataError for other targets, for logits that are NaN, and for different numbers of rows.
        """
        logits, targets = logits.detach().cpu().double(), targets.detach().cpu()
        if logits.shape != targets.shape or logits.dim() != 1:
            raise DataError(
                f"logits {tuple(logits.shape)} and targets {tuple(targets.shape)} must be one number per row"
            )
        if bool(logits.isnan().any()):
            raise DataError(f"{int(logits.isnan().sum()):,} of {len(logits):,} logits are NaN")
        if not bool(((targets == 0) | (targets == 1)).all()):
            wrong = targets[(targets != 0) & (targets != 1)][0].item()
            raise DataError(f"targets must be 0 or 1, not {wrong}", hint="`LambdaOp` turns ratings into 0 and 1")
        return {"logits": logits, "targets": targets.to(torch.uint8)}

    def merge(self, states: Sequence[State]) -> State:
        """The rows of all states. No states: no rows."""
        return {
            "logits": torch.cat([torch.zeros(0, dtype=torch.float64), *(state["logits"] for state in states)]),
            "targets": torch.cat([torch.zeros(0, dtype=torch.uint8), *(state["targets"] for state in states)]),
        }

    def finish(self, state: State) -> dict[str, float]:
        """The figures: the same bits for any order of the rows."""
        logits, targets = state["logits"].numpy(), state["targets"].numpy().astype(np.int64)
        order = np.lexsort((targets, logits))
        return {"auc": _auc(logits[order], targets[order]), "log_loss": _log_loss(logits[order], targets[order])}


def _auc(sorted_logits: npt.NDArray[np.float64], targets: npt.NDArray[np.int64]) -> float:
    positives = int(targets.sum())
    negatives = len(targets) - positives
    if not positives or not negatives:
        return math.nan
    starts = np.concatenate([[0], np.flatnonzero(sorted_logits[1:] != sorted_logits[:-1]) + 1])
    positives_T = np.add.reduceat(targets, starts)  # T: groups of equal scores, lowest first
    negatives_T = np.diff(np.append(starts, len(targets))) - positives_T
    below_T = np.cumsum(negatives_T) - negatives_T
    twice = int((positives_T * (2 * below_T + negatives_T)).sum())
    return twice / (2 * positives * negatives)


def _log_loss(logits: npt.NDArray[np.float64], targets: npt.NDArray[np.int64]) -> float:
    if not len(logits):
        return math.nan
    x = np.clip(logits, -_LIMIT, _LIMIT)
    x = np.where(targets == 1, -x, x)  # the loss is ln(1 + e^x)
    return float((np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))).mean())
