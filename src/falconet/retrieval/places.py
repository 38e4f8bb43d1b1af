"""Where codes stand in an ascending list of them.

Shapes: N codes of the list, V codes asked for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_DENSE = 8
"""Codes up to so many times their number are looked up in a table."""


class Places:
    """Finds codes in `codes_N`, int64, ascending and distinct."""

    def __init__(self, codes_N: Tensor) -> None:
        self._codes_N, self._items = codes_N, len(codes_N)
        self._table = _table(codes_N)
        in_a_row = self._items > 0 and int(codes_N[-1]) - int(codes_N[0]) == self._items - 1
        self._first = int(codes_N[0]) if in_a_row else None

    def codes(self, places_V: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The codes at places, [V]; -1 for place -1. On a CPU."""
        if self._first is not None:  # nothing to look up, which would be waiting for memory
            codes_V = places_V + self._first
        else:
            codes_V = self._codes_N.numpy().take(places_V, mode="clip") if self._items else places_V
        return np.where(places_V >= 0, codes_V, -1)

    def of(self, codes_V: Tensor) -> Tensor:
        """Their places, int64 of [V]; N where the list has no such code."""
        codes_V = codes_V.long()
        if self._table is not None:
            return self._table.take(codes_V.clamp(-1, len(self._table) - 2) + 1)
        places_V = torch.searchsorted(self._codes_N, codes_V)
        known_V = self._codes_N[places_V.clamp(max=self._items - 1)] == codes_V
        return torch.where(known_V, places_V, self._items)


def _table(codes_N: Tensor) -> Tensor | None:
    """The place of every code from -1 on, N for those that are not in the list, the last of them; None for scattered
    codes."""
    items = len(codes_N)
    codes = int(codes_N[-1]) + 1 if items else 0
    if codes > _DENSE * items:
        return None
    table = torch.full((codes + 2,), items, dtype=torch.int64, device=codes_N.device)
    table[codes_N + 1] = torch.arange(items, device=codes_N.device)
    return table
