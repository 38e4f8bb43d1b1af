"""Where codes stand in an ascending list of them.

Shapes: N codes of the list, V codes asked for.
"""

from __future__ import annotations

import torch
from torch import Tensor

_DENSE = 8
"""Codes up to so many times their number are looked up in a table."""


class Places:
    """Finds codes in `codes_N`, int64, ascending and distinct."""

    def __init__(self, codes_N: Tensor) -> None:
        self._codes_N, self._items = codes_N, len(codes_N)
        self._table = _table(codes_N)

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
