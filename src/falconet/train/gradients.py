"""Gradients of the rows of a table that a step touched, and their sums.

Shapes: U distinct ids, D width of a table, H of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

_BLOCK = 1 << 19  # numbers that each thread makes at once
_SUMS = 1 << 18  # numbers of sums
_SPARSE = 64  # rows of a table for each id, from which on it costs less to sort the ids than to mark the rows


@dataclass(frozen=True)
class RowGradient:
    """The gradient of some of the `rows` rows of a table: distinct ids [U], ascending, no padding; values [U, D].

    Values are float32, or bfloat16 where they were worked out in that. With a `layer` [H, D] they are [U, H], and the
    gradient is their product (see nn/projection.py).
    """

    rows: int
    ids: Tensor
    values: Tensor
    layer: Tensor | None = None
    known_squares: Tensor | None = None

    @property
    def width(self) -> int:
        """D."""
        return (self.values if self.layer is None else self.layer).shape[1]

    @cached_property
    def squares(self) -> Tensor:
        """The sum of the squares of each row's values: float32 of [U]."""
        if self.known_squares is not None:
            return self.known_squares
        found = [squares_U for _, _, squares_U in self.blocks()]
        return torch.cat(found) if found else self.values.new_empty(0, dtype=torch.float32)

    def blocks(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """The gradient a few rows at a time, so that what is made of them need not leave the processor's cache: which
        rows, their gradient [u, D], and the sum of its squares [u], both in float32. It is gone when the next comes."""
        room = None
        for rows, some in self.parts():
            if some.dtype != torch.float32:
                room = torch.empty_like(some, dtype=torch.float32) if room is None else room  # the first has most rows
                some = room[: len(some)].copy_(some)
            yield rows, some, _squares(some) if self.known_squares is None else self.known_squares[rows]

    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        """The same without the squares, in the type of the values."""
        count = len(self.values)
        size = count if self.values.is_cuda else max(_BLOCK * torch.get_num_threads() // self.width, 1)
        form = self._former(min(size, count))
        for start in range(0, count, max(size, 1)):
            rows = slice(start, start + size)
            yield rows, form(self.values[rows])

    def _former(self, rows: int) -> Callable[[Tensor], Tensor]:
        """What makes the gradient of at most so many values, each time in the same room: products of one shape, for
        which oneDNN has its kernel."""
        layer = self.layer
        if layer is None:
            return lambda values: values
        values_UH, product_UD = layer.new_zeros(rows, len(layer)), layer.new_empty(rows, self.width)

        def form(values: Tensor) -> Tensor:
            if len(values) < rows or values.dtype != layer.dtype:
                values_UH[: len(values)] = values
            whole = values_UH if len(values) < rows or values.dtype != layer.dtype else values
            return _through(whole, layer, product_UD)[: len(values)]

        return form

    def formed(self) -> RowGradient:
        """The same without a layer."""
        if self.layer is None:
            return self
        values_UD = self.values.new_empty(len(self.values), self.width)
        for rows, some in self.parts():
            values_UD[rows] = some
        return replace(self, values=values_UD, layer=None)


@dataclass(frozen=True)
class RowSum(RowGradient):
    """The sum of several gradients, made when it is used: a few rows at a time, in float32. `values` are none.

    `pieces`: of each, the places [P] of its rows among the ids, ascending, and their values, [P, D] or [P, H].
    """

    pieces: Sequence[tuple[Tensor, Tensor]] = ()

    @classmethod
    def of(cls, parts: Sequence[RowGradient], layer: Tensor | None = None) -> RowSum:
        """That of several, in their order, all of them without a layer or with this one."""
        rows = parts[0].rows
        ids_U, places = _places([part.ids for part in parts], rows)
        pieces = [(places_P, part.values) for places_P, part in zip(places, parts, strict=True)]
        return cls(rows, ids_U, parts[0].values[:0], layer, pieces=pieces)

    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        count = len(self.ids)
        size = max(count if self.ids.is_cuda else _SUMS // self.width, 1)
        starts = torch.arange(0, count + size, size, device=self.ids.device)
        ends = [torch.searchsorted(places, starts).tolist() for places, _ in self.pieces]
        room = self.values.new_empty(min(size, count), self.values.shape[1], dtype=torch.float32)
        form = self._former(len(room))
        for i, start in enumerate(range(0, count, size)):
            total = room[: min(size, count - start)].zero_()
            for (places, values), end in zip(self.pieces, ends, strict=True):
                these = slice(end[i], end[i + 1])  # distinct, so that each addition has one order
                total.index_add_(0, places[these] - start, values[these].float())
            rows = slice(start, start + len(total))
            yield rows, form(total)

    def formed(self) -> RowGradient:
        values_UD = self.values.new_empty(len(self.ids), self.width, dtype=torch.float32)
        squares_U = self.values.new_empty(len(self.ids), dtype=torch.float32)
        for rows, some_UD, some_U in self.blocks():
            values_UD[rows], squares_U[rows] = some_UD, some_U
        return RowGradient(self.rows, self.ids, values_UD, known_squares=squares_U)


def add_up(parts: Sequence[RowGradient]) -> RowGradient:
    """One gradient from several: the values of an id are added in the order of the parts, on every device."""
    if len(parts) == 1:
        return parts[0]
    layer = parts[0].layer
    if layer is not None and all(part.layer is not None and torch.equal(part.layer, layer) for part in parts):
        total = add_up([replace(part, layer=None) for part in parts])
        return replace(total, values=total.values.to(parts[0].values), layer=layer, known_squares=None)
    return RowSum.of([part.formed() for part in parts]).formed()


def _places(ids: Sequence[Tensor], rows: int) -> tuple[Tensor, list[Tensor]]:
    """All ids, ascending, each once, of a table of so many rows; and the places among them of those of each list."""
    if rows > _SPARSE * sum(map(len, ids)):
        ids_U = torch.unique(torch.cat(list(ids)))
        return ids_U, [torch.searchsorted(ids_U, some) for some in ids]
    device = ids[0].device
    seen_V = torch.zeros(rows, dtype=torch.bool, device=device)
    for some in ids:
        seen_V.index_fill_(0, some, True)
    ids_U = seen_V.nonzero().squeeze(1)
    place_V = torch.empty(rows, dtype=torch.int64, device=device)
    place_V.index_copy_(0, ids_U, torch.arange(len(ids_U), device=device))
    return ids_U, [place_V.index_select(0, some) for some in ids]


def _through(values_UH: Tensor, layer_HD: Tensor, room_UD: Tensor) -> Tensor:
    return torch.mm(values_UH, layer_HD, out=room_UD)


def _squares(values_UD: Tensor) -> Tensor:
    sizes_U: Tensor = torch.linalg.vector_norm(values_UD, dim=1, dtype=torch.float32)
    return sizes_U.square_()
