"""Whether predicted probabilities are as large as what happens, from the scores of all rows together.

calibration         Σ p / Σ target: above 1 where too much is promised
normalized_entropy  log loss / the log loss of always saying the share of positives (He et al., ADKDD 2014)
ece                 expected calibration error: Σ over bins of |Σ p − Σ target| / rows, with bins of equally many rows
                    (Naeini et al., AAAI 2015; Nguyen and O'Connor, EMNLP 2015)

p = sigmoid(logit) in float64. Each is NaN where it has no denominator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from falconet.errors import ConfigError
from falconet.metrics.binary import BinaryMetrics, State
from falconet.metrics.exact import mean, total

Floats = npt.NDArray[np.float64]


class Calibration:
    """Calibration, normalised entropy and expected calibration error of logits, in `bins` bins of equally many rows."""

    def __init__(self, bins: int = 10) -> None:
        if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
            raise ConfigError(f"`bins` must be a whole number of at least 1, not {bins!r}")
        self.bins = bins
        self._rows = BinaryMetrics()

    def partial(self, logits: Tensor, targets: Tensor) -> State:
        """The state of some rows, as `BinaryMetrics.partial` has it."""
        return self._rows.partial(logits, targets)

    def merge(self, states: Sequence[State]) -> State:
        """The rows of all states. No states: no rows."""
        return self._rows.merge(states)

    def finish(self, state: State) -> dict[str, float]:
        """The figures: the same bits for any order of the rows."""
        logits, targets = _sorted(state)
        rows, positives = len(targets), int(targets.sum())
        curve = self.curve(state)
        gaps = [abs(predicted - happened) * n for predicted, happened, n in curve]
        entropy = _entropy(positives, rows)
        return {
            "calibration": total(_sigmoid(logits)) / positives if positives else math.nan,
            "normalized_entropy": self._rows.finish(state)["log_loss"] / entropy if entropy else math.nan,
            "ece": math.fsum(gaps) / rows if rows else math.nan,
        }

    def curve(self, state: State) -> list[tuple[float, float, int]]:
        """(mean p, share of positives, rows) of every bin, from the least to the most likely rows.

        Rows of one score are in one bin, so there may be fewer bins.
        """
        logits, targets = _sorted(state)
        if not len(logits):
            return []
        # rows are where the first one of their score is
        bins = np.searchsorted(logits, logits) * self.bins // len(logits)
        starts = np.unique(bins, return_index=True)[1]
        probabilities = np.split(_sigmoid(logits), starts[1:])
        happened = np.split(targets, starts[1:])
        return [(mean(p), int(t.sum()) / len(t), len(t)) for p, t in zip(probabilities, happened, strict=True)]


def _sorted(state: State) -> tuple[Floats, npt.NDArray[np.int64]]:
    logits, targets = state["logits"].numpy(), state["targets"].numpy().astype(np.int64)
    order = np.lexsort((targets, logits))
    return logits[order], targets[order]


def _sigmoid(x: Floats) -> Floats:
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1.0, small) / (1 + small))


def _entropy(positives: int, rows: int) -> float:
    """Of one row's target, in nats; 0 where all are the same."""
    if positives in (0, rows):
        return 0.0
    share = positives / rows
    return -(share * math.log(share) + (1 - share) * math.log1p(-share))
