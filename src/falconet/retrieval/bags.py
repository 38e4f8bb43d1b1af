"""The lists of codes that a catalogue's items have, and how much a history is of an item's kind.

Shapes: N items, H items of a history, K candidates, L values of the longest list, V codes.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from falconet.batch import Ragged

_LONGEST = 16  # values of a list, for all lists to stand in one table


class Bag:
    """A multi-hot column of a catalogue: a list for each item, of codes below `cardinality`."""

    def __init__(self, lists: Ragged, cardinality: int) -> None:
        self.lists, self._codes = lists, cardinality

    def affinity(self, history_H: Tensor, rows_K: Tensor) -> Tensor | None:
        """What `CandidateRows` says of one user's candidates, in the same order of additions: float32 of [K].

        None where that is not quicker: of long lists, and beside a processor. In numpy, whose steps begin several times
        as fast as torch's.
        """
        if self._table is None:
            return None
        table_NL, lengths_N = self._table
        counts_V = np.bincount(table_NL.take(history_H.numpy(), 0).ravel(), minlength=self._codes + 1)
        share_V = counts_V.astype(np.float32)
        share_V /= np.float32(max(len(history_H), 1))
        share_V[self._codes] = 0.0
        rows = rows_K.numpy()
        shares_KL = share_V.take(table_NL.take(rows, 0))
        total_K = shares_KL[:, 0].copy()
        for column in range(1, shares_KL.shape[1]):
            total_K += shares_KL[:, column]
        total_K /= lengths_N.take(rows)
        return torch.from_numpy(total_K)

    @cached_property
    def _table(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]] | None:
        """The lists side by side, `cardinality` behind their ends: [N, L]; and how long they are, at least 1: [N]."""
        lengths_N = self.lists.lengths
        if lengths_N.device.type != "cpu" or not len(lengths_N):
            return None
        longest = max(int(lengths_N.max()), 1)
        if longest > _LONGEST:
            return None
        there_NL = np.arange(longest) < lengths_N.numpy()[:, None]
        table_NL = np.full(there_NL.shape, self._codes, np.int32)
        table_NL[there_NL] = self.lists.values.numpy()
        return table_NL, np.maximum(lengths_N.numpy(), 1).astype(np.float32)
