"""AUC within groups, users as a rule: whether each one's rows are ordered rightly, whatever the level of the scores.

gauc  the mean of the AUCs of all groups that have both kinds of rows, weighted by their rows (Zhu et al., KDD 2017)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from falconet.errors import DataError
from falconet.metrics.binary import BinaryMetrics

State = dict[str, Tensor]
"""`logits` float64, `targets` uint8 and `groups` int64 of every row; of two processes, one after the other."""


class GroupedAUC:
    """The AUC of logits within groups of rows."""

    def __init__(self) -> None:
        self._rows = BinaryMetrics()

    def partial(self, logits: Tensor, targets: Tensor, groups: Tensor) -> State:
        """The state of some rows: logits [rows], targets [rows] of 0 and 1, groups [rows] of whole numbers.

        Rows of one group may be in several states. Raises DataError as `BinaryMetrics.partial` does.
        """
        if groups.shape != targets.shape or groups.is_floating_point():
            raise DataError(
                f"groups {tuple(groups.shape)} ({groups.dtype}) must be one whole number per row of {len(targets):,}"
            )
        return {**self._rows.partial(logits, targets), "groups": groups.detach().cpu().long()}

    def merge(self, states: Sequence[State]) -> State:
        """The rows of all states. No states: no rows."""
        none = torch.zeros(0, dtype=torch.int64)
        return {**self._rows.merge(states), "groups": torch.cat([none, *(state["groups"] for state in states)])}

    def finish(self, state: State) -> dict[str, float]:
        """The figure; NaN where no group has both kinds of rows."""
        logits, targets = state["logits"].numpy(), state["targets"].numpy().astype(np.int64)
        groups = state["groups"].numpy()
        order = np.lexsort((targets, logits, groups))
        logits, targets, groups = logits[order], targets[order], groups[order]
        if not len(groups):
            return {"gauc": math.nan}
        starts_G = np.concatenate([[0], np.flatnonzero(groups[1:] != groups[:-1]) + 1])
        rows_G = np.diff(np.append(starts_G, len(groups)))
        positives_G = np.add.reduceat(targets, starts_G)
        pairs_G = positives_G * (rows_G - positives_G)
        # T: runs of equal scores of one group
        changes = (groups[1:] != groups[:-1]) | (logits[1:] != logits[:-1])
        starts_T = np.concatenate([[0], np.flatnonzero(changes) + 1])
        positives_T = np.add.reduceat(targets, starts_T)
        negatives_T = np.diff(np.append(starts_T, len(groups))) - positives_T
        first_G = np.searchsorted(starts_T, starts_G)  # the first run of each group
        before_T = np.cumsum(negatives_T) - negatives_T
        below_T = before_T - np.repeat(before_T[first_G], np.diff(np.append(first_G, len(starts_T))))
        twice_G = np.add.reduceat(positives_T * (2 * below_T + negatives_T), first_G)
        both = pairs_G > 0
        weighted = [
            int(rows) * int(twice) / (2 * int(pairs))
            for rows, twice, pairs in zip(rows_G[both], twice_G[both], pairs_G[both], strict=True)
        ]
        return {"gauc": math.fsum(weighted) / int(rows_G[both].sum()) if weighted else math.nan}
