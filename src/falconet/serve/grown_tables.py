"""The catalogue with what is said of its items since: the bundle's own tables, and a small one beside them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from falconet.batch import Batch
from falconet.retrieval.overlay import Overlay
from falconet.schema import Schema
from falconet.serve.events import Id
from falconet.serve.filters import Filters, Mask, Parameter
from falconet.serve.tables import UNKNOWN, Catalogue, Ids

T = TypeVar("T")


class SaidItems(Catalogue):
    """What is said of items, as a table like items.parquet: one row per item, by ascending code.

    Items whose codes are `known` or above are unknown to all models.
    """

    def __init__(self, table: pa.Table, schema: Schema, item: str, *, known: int) -> None:
        self._fill(table, schema, item, "what is said of items")
        self.known = known
        features = {**self.features.features, item: self.codes.masked_fill(self.codes >= known, UNKNOWN)}
        self.features: Batch = replace(self.features, features=features)

    @property
    def changed(self) -> Tensor:
        """The codes of those items that the bundle has, too."""
        return self.codes[self.codes < self.known]


class GrownCatalogue(Catalogue):
    """A catalogue, and what is said of its items and of new ones, which follow its rows.

    What it costs to make does not grow with the catalogue. Tables and features are those of `base` and of `said`.
    """

    def __init__(self, base: Catalogue, said: SaidItems) -> None:
        self.base, self.said = base, said
        self.schema, self.features_schema = base.schema, base.features_schema
        changed = base.rows(said.changed)
        self.overlay = Overlay(len(base), changed, len(said) - len(changed))
        self.ids: Ids = _GrownIds(base.ids, said.ids, self.overlay)
        self.titles: Sequence[str] = _Rows(base.titles, said.titles, self.overlay)
        self.counts: Sequence[int] = _Rows(base.counts, said.counts, self.overlay)
        self._codes = _Rows(base._codes, said._codes, self.overlay)  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.overlay)

    @cached_property
    def codes(self) -> Tensor:  # type: ignore[override]
        return torch.cat([self.base.codes, self.said.codes[len(self.overlay.changed) :]])

    @property
    def newer(self) -> Sequence[int]:
        """The codes of the items that the bundle does not have."""
        return self.said._codes[len(self.overlay.changed) :]

    def rows(self, codes: Tensor) -> Tensor:
        known = self.said.known
        if self.overlay.new and bool((codes >= known).any()):
            there = self.base.rows(torch.where(codes < known, codes, self.base.codes[0]))
            return torch.where(codes < known, there, codes - known + self.overlay.table)
        return self.base.rows(codes)

    def find(self, codes: Collection[int]) -> npt.NDArray[np.int64]:
        after = np.fromiter(codes, np.int64, len(codes)) - self.said.known
        new = (after >= 0) & (after < self.overlay.new)
        return np.where(new, after + self.overlay.table, self.base.find(codes))

    def row_of_code(self, code: int) -> int | None:
        after = code - self.said.known
        return self.base.row_of_code(code) if after < 0 else self._new_row(after)

    def _new_row(self, after: int) -> int | None:
        return self.overlay.table + after if after < self.overlay.new else None

    @cached_property
    def filters(self) -> Filters:
        return _GrownFilters(self.base.filters, self.said.filters, self.overlay)

    def attributes(self, row: int) -> dict[str, Any]:
        place = self.overlay.said(row)
        return self.base.attributes(row) if place is None else self.said.attributes(place)

    def _found(self, wanted: str) -> Iterator[tuple[bool, int, int]]:
        for found in self.base._found(wanted):
            if self.overlay.said(found[-1]) is None:
                yield found
        for begins, popular, place in self.said._found(wanted):
            yield begins, popular, self.overlay.row(place)


class _GrownIds(Ids):
    """The ids of a catalogue and of what is said. What ids are like the catalogue's tell."""

    def __init__(self, base: Ids, said: Ids, overlay: Overlay) -> None:
        self._whole, self.are_numbers, self._base = base._whole, base.are_numbers, base
        theirs = [base.normal(value) for value in said.values]
        self.values: Sequence[Id] = _Rows(base.values, theirs, overlay)
        self._new = {theirs[place]: overlay.row(place) for place in range(len(overlay.changed), len(theirs))}

    def row(self, value: Id) -> int | None:
        row = self._base.row(value)
        return self._new.get(self.normal(value)) if row is None else row


class _GrownFilters(Filters):
    """Expressions over both tables: what holds for the catalogue's is remembered there."""

    def __init__(self, base: Filters, said: Filters, overlay: Overlay) -> None:
        self._base, self._said, self._overlay = base, said, overlay
        self.rows = len(overlay)

    @property
    def columns(self) -> dict[str, str]:
        return self._base.columns

    def mask(self, expression: str, parameters: Mapping[str, Parameter] | None = None) -> Mask:
        base, said = (torch.from_numpy(filters.mask(expression, parameters)) for filters in (self._base, self._said))
        return np.asarray(self._overlay.spread(base, said))


class _Rows(Sequence[T]):
    """Values by row, of the catalogue or of what is said."""

    def __init__(self, base: Sequence[T], said: Sequence[T], overlay: Overlay) -> None:
        self._base, self._said, self._overlay = base, said, overlay

    def __len__(self) -> int:
        return len(self._overlay)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[one] for one in range(*row.indices(len(self)))]
        place = self._overlay.said(row)
        return self._base[row] if place is None else self._said[place]
