"""A table of items with what is said of them since: some rows are otherwise, some are new. Nothing of it is copied.

Shapes: N rows of the table; M rows that are said, first the C that stand in place of rows of the table; K rows asked
for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from falconet.batch import Feature, Ragged
from falconet.columns import join


@dataclass(frozen=True)
class Overlay:
    """Rows count from 0: those of the table, then the new ones.

    `table`: N; `changed` [C], int64: the rows that the first of what is said stand for, ascending; `new`: how many
    follow.
    """

    table: int
    changed: Tensor
    new: int

    def __len__(self) -> int:
        return self.table + self.new

    def said(self, row: int) -> int | None:
        """The place of a row in what is said; None where the table's holds."""
        return row - self.table + len(self.changed) if row >= self.table else self._place.get(row)

    def row(self, place: int) -> int:
        """The row that a place in what is said has."""
        changed = len(self.changed)
        return int(self.changed[place]) if place < changed else self.table + place - changed

    @cached_property
    def _place(self) -> dict[int, int]:
        return {row: place for place, row in enumerate(self.changed.tolist())}

    def take(self, table: Feature, said: Feature, rows_K: Tensor) -> Feature:
        """The given rows (int64), in the given order, of a feature of the table and of what is said."""
        place_K = self._places(rows_K)
        there_K = place_K >= 0
        if not bool(there_K.any()):
            return _take(table, rows_K)
        first, then = (~there_K).nonzero().squeeze(1), there_K.nonzero().squeeze(1)
        both = join([{"": _take(table, rows_K[first])}, {"": _take(said, place_K[then])}])[""]
        return _take(both, torch.cat([first, then]).argsort())

    def _places(self, rows_K: Tensor) -> Tensor:
        """The places of rows in what is said; -1 where the table's hold."""
        place_K = torch.where(rows_K >= self.table, rows_K - self.table + len(self.changed), -1)
        if not len(self.changed):
            return place_K
        near_K = torch.searchsorted(self.changed, rows_K).clamp_(max=len(self.changed) - 1)
        return torch.where(self.changed[near_K] == rows_K, near_K, place_K)

    def spread(self, table_XN: Tensor, said_XM: Tensor) -> Tensor:
        """The last dimension over all rows, from the values of the table and those of what is said."""
        whole = torch.cat([table_XN, said_XM[..., len(self.changed) :]], dim=-1)
        whole[..., self.changed] = said_XM[..., : len(self.changed)]
        return whole


def _take(feature: Feature, rows: Tensor) -> Feature:
    return feature.take(rows) if isinstance(feature, Ragged) else feature.index_select(0, rows)
