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
        lists_HL = self._table.take(history_H.numpy(), 0)
        counts_V = np.bincount(lists_HL[:, 1:].ravel(), minlength=self._codes + 1)
        share_V = counts_V.astype(np.float32)
        share_V /= np.float32(max(len(history_H), 1))
        share_V[self._codes] = 0.0
        lists_KL = self._table.take(rows_K.numpy(), 0)
        shares_KL = share_V.take(lists_KL[:, 1:])
        total_K = shares_KL[:, 0].copy()
        for column in range(1, shares_KL.shape[1]):
            total_K += shares_KL[:, column]
        total_K /= lists_KL[:, 0].astype(np.float32)
        return torch.from_numpy(total_K)

    @cached_property
    def _table(self) -> npt.NDArray[np.int32] | None:
        """Of each list its length, at least 1, its values, and `cardinality` behind its end: [N, 1 + L]."""
        lengths_N = self.lists.lengths.numpy() if self.lists.offsets.device.type == "cpu" else np.zeros(0)
        longest = int(lengths_N.max(initial=1))
        if not len(lengths_N) or longest > _LONGEST:
            return None
        table = np.full((len(lengths_N), 1 + longest), self._codes, np.int32)
        table[:, 0] = np.maximum(lengths_N, 1)
        table[:, 1:][np.arange(longest) < lengths_N[:, None]] = self.lists.values.numpy()
        return table
