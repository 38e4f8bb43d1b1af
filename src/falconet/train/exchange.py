"""How processes exchange rows of tables and their gradients: only what a batch touches.

Shapes: U distinct ids, D width of a table, W processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from falconet.nn.lookup import distinct, filled, rows_of
from falconet.train.board import Board, Network, Way
from falconet.train.gradients import RowGradient, RowSum
from falconet.train.runtime import Runtime

_RUN = 64  # rows: their state, too, is whole lines of a processor's cache


@dataclass(frozen=True)
class Layout:
    """Which process holds which of the `rows` rows of a table that is dealt to `world` processes.

    `owner` holds all of them; without one, row i lies with process i modulo `world`: codes are ordered by how frequent
    they are, so all processes get their part of the work.
    """

    rows: int
    world: int = 1
    owner: int | None = None

    def owners(self, ids_U: Tensor) -> Tensor:
        """The process of each id."""
        return ids_U % self.world if self.owner is None else torch.full_like(ids_U, self.owner)

    def places(self, ids_U: Tensor) -> Tensor:
        """The place of each id among the rows of its process."""
        return ids_U // self.world if self.owner is None else ids_U

    def ids(self, places_U: Tensor, rank: int) -> Tensor:
        """The ids of rows at some places of a process: the inverse of `places`."""
        return places_U * self.world + rank if self.owner is None and self.world > 1 else places_U

    def of(self, rank: int) -> slice:
        """The rows of a process."""
        if self.owner is None:
            return slice(rank, self.rows, self.world)
        return slice(0, self.rows if rank == self.owner else 0)


class Route(NamedTuple):
    """How rows of a dealt table travel between this process and those that hold them, and their gradients back."""

    ids: Tensor  # [U]
    order: Tensor  # [U]; the ids that this one asks for, put into the order of the processes that hold them
    give: list[int]  # how many of them each process holds
    asked: Tensor  # the places of rows here that the others ask for, by rank
    take: list[int]  # how many each of them asks for


class Exchange:
    """The collective operations of a run's tables; every process calls each of them, also one that touched nothing."""

    def __init__(self, runtime: Runtime, dtype: torch.dtype = torch.float32, way: Way | None = None) -> None:
        self._runtime, self._dtype, self._way = runtime, dtype, way
        self.sent = 0  # bytes that this process gave to others so far

    @property
    def way(self) -> Way:
        """How they travel: through the memory of the machine where all processes are on one, else by the network."""
        if self._way is None:
            self._way = Board.of(self._runtime) or Network(self._runtime)
        return self._way

    @property
    def board(self) -> Board | None:
        """The memory that all processes can have in common, if there is any."""
        return self.way if self._runtime.world > 1 and isinstance(self.way, Board) else None

    def add_up(self, mine: Mapping[str, RowGradient]) -> dict[str, RowGradient]:
        """The sum over all processes of every table's gradient, the same bits on each of them.

        It is made when it is used, which is to be before the next exchange.
        """
        if self._runtime.world == 1 or not mine:
            return dict(mine)
        mine = {name: gradient.formed() for name, gradient in mine.items()}
        found = self._gather(
            [(g.ids, g.values, None) for g in mine.values()], _id_type(max(g.rows for g in mine.values()))
        )
        self.sent += (len(found) - 1) * max(map(_bytes, found))
        return {name: _sum(g, [some[i] for some in found]) for i, (name, g) in enumerate(mine.items())}

    def share_out(self, mine: Mapping[str, RowGradient]) -> dict[str, RowGradient]:
        """The sums over all processes of the gradients of the rows that this one moves, of tables that lie in memory
        that all have in common.

        They are made when they are used, which is to be before the next exchange.
        """
        if not mine:
            return {}
        world, rank, parts = self._runtime.world, self._runtime.rank, []
        moved_by = [movers(g.ids, world) for g in mine.values()]
        for mover in range(world):
            for g, movers_U in zip(mine.values(), moved_by, strict=True):
                parts.append((g.ids, g.values, (movers_U == mover).nonzero().squeeze(1)))
        found = self._gather(parts, _id_type(max(g.rows for g in mine.values())))
        if len({tuple(values.shape[1] for _, values in some) for some in found}) > 1:  # not all are through layers
            return self.share_out({name: g.formed() for name, g in mine.items()})
        here = slice(rank * len(mine), (rank + 1) * len(mine))
        self.sent += _bytes(found[rank]) - _bytes(found[rank][here])
        return {name: _sum(g, [some[here][i] for some in found]) for i, (name, g) in enumerate(mine.items())}

    def _gather(self, mine: Sequence[_Part], id_type: torch.dtype) -> list[list[tuple[Tensor, Tensor]]]:
        """Every process's ids [U] and values [U, D], by rank; of as many tables on each of them."""
        counts = [len(ids_U if these is None else these) for ids_U, _, these in mine]
        widths = [values_UD.shape[1] for _, values_UD, _ in mine]
        wide = any(values_UD.dtype == torch.float32 and n for (_, values_UD, _), n in zip(mine, counts, strict=True))
        numbers = sum(n * width for n, width in zip(counts, widths, strict=True))
        size = sum(counts) * id_type.itemsize + numbers * self._type_of(wide).itemsize
        message = self.way.room(-(-size // 8) * 8)
        there = _tables(message, counts, widths, id_type, self._type_of(wide))
        for (ids_U, values_UD, these), (there_U, there_UD) in zip(mine, there, strict=True):
            _put(ids_U, these, there_U)
            _put(values_UD, these, there_UD)
        told, messages = self.way.gather(message, [*counts, *widths, wide])
        n = len(mine)
        return [
            _tables(one, some[:n], some[n:-1], id_type, self._type_of(some[-1]))
            for some, one in zip(told, messages, strict=True)
        ]

    def _type_of(self, wide: int) -> torch.dtype:
        """In which type a process's values travel: what has no more digits than bfloat16 needs none."""
        return self._dtype if wide else torch.bfloat16

    def route(self, layout: Layout, ids_U: Tensor) -> Route:
        """The way to the processes that hold the rows of some ids."""
        owners_U = layout.owners(ids_U)
        order_U = torch.argsort(owners_U, stable=True)
        give = torch.bincount(owners_U, minlength=layout.world).tolist()
        places_U = layout.places(ids_U).index_select(0, order_U).to(_id_type(layout.rows))
        return Route(ids_U, order_U, give, *self._trade(places_U, give))

    def fetch(self, route: Route, held: Tensor, out_UD: Tensor) -> None:
        """Write the rows at the other end of a route to `out_UD`, and travel in its type. `held`: those held here."""
        out_UD.copy_(self.answer(route, rows_of(held, route.asked, out_UD.dtype)))

    def deliver(self, layout: Layout, route: Route, values_UD: Tensor, *, narrow: bool = False) -> RowGradient:
        """The gradient of the rows that this process holds, from all processes, with the ids of its own rows.

        `narrow`: no process has values of more digits than bfloat16.
        """
        values = self.send_back(route, values_UD, torch.bfloat16 if narrow else self._dtype)
        parts = zip(torch.split(route.asked, route.take), values, strict=True)
        return RowSum.of([RowGradient(layout.rows, some_ids.long(), some_values) for some_ids, some_values in parts])

    def visit(self, layout: Layout, held: Tensor, ids_U: Tensor) -> Dealt:
        """The rows of some ids, padding first, to be multiplied where they lie. `held`: those held here."""
        return Dealt(self, self.route(layout, ids_U[1:]), held)

    def answer(self, route: Route, answers: Tensor) -> Tensor:
        """What was found for others, in the order of `route.asked`, given to them: for each of `route.ids`."""
        found, _ = self._trade(answers, route.take, route.give)
        return torch.empty_like(found).index_copy_(0, route.order, found)

    def send_back(self, route: Route, values: Tensor, dtype: torch.dtype) -> list[Tensor]:
        """What belongs to the ids of a route, sent in type `dtype` to where they lie: from each process what is for the
        rows it asked for, in the order of `route.asked`."""
        sent, _ = self._trade(values.index_select(0, route.order).to(dtype), route.give, route.take)
        return list(torch.split(sent, route.take))

    @property
    def dtype(self) -> torch.dtype:
        """In which type gradients of float32 travel."""
        return self._dtype

    def _trade(self, rows: Tensor, give: list[int], take: list[int] | None = None) -> tuple[Tensor, list[int]]:
        self.sent += (len(rows) - give[self._runtime.rank]) * (rows[:1].numel() * rows.element_size())
        return self.way.trade(rows, give, take)


class Dealt:
    """A `Visit` to the rows of a dealt table: each process multiplies those it holds that any of them asks for."""

    first = 0

    def __init__(self, exchange: Exchange, route: Route, held: Tensor) -> None:
        self._exchange, self._route, self._held = exchange, route, held
        ids, places = distinct(route.asked.long() + 1)  # 0 is there a row, and not padding
        self.ids, self._asked = ids[1:] - 1, places - 1

    def rows(self, dtype: torch.dtype) -> Tensor:
        return rows_of(self._held, filled(self.ids), dtype)

    def give(self, products: Tensor) -> Tensor:
        found = self._exchange.answer(self._route, products.index_select(0, self._asked))
        return F.pad(found, (0, 0, 1, 0))  # padding need not travel

    def take(self, gradient: Tensor) -> Tensor:
        dtype = self._exchange.dtype if gradient.dtype == torch.float32 else gradient.dtype
        parts = self._exchange.send_back(self._route, gradient[1:], dtype)
        total = gradient.new_zeros(len(filled(self.ids)), gradient.shape[1], dtype=torch.float32)
        for asked, values in zip(torch.split(self._asked, self._route.take), parts, strict=True):
            total.index_add_(0, asked, values.float())  # each once, so that the order is that of the processes
        return total.to(gradient.dtype)


def movers(ids_U: Tensor, world: int) -> Tensor:
    """Which process moves each row of a table that all have in common: by turns, a few rows each, so that what two of
    them write at a time does not lie side by side in memory."""
    return (ids_U // _RUN) % world


def _sum(like: RowGradient, parts: Sequence[tuple[Tensor, Tensor]]) -> RowSum:
    """That of ids [U] and values [U, D] of rows of one table."""
    return RowSum.of([RowGradient(like.rows, ids_U.long(), values_UD) for ids_U, values_UD in parts], like.layer)


_Part = tuple[Tensor, Tensor, Tensor | None]
"""Ids [U] and values [U, D] of rows of one table, and which of them are meant, if not all."""


def _put(x: Tensor, these: Tensor | None, there: Tensor) -> None:
    """Write x, or these of its rows, to `there`, in the type of that."""
    if these is None:
        there.copy_(x)
    elif x.dtype == there.dtype:
        torch.index_select(x, 0, these, out=there)
    else:
        there.copy_(x.index_select(0, these))


def _bytes(parts: Sequence[tuple[Tensor, Tensor]]) -> int:
    return sum(x.numel() * x.element_size() for part in parts for x in part)


def _tables(
    message: Tensor, counts: Sequence[int], widths: Sequence[int], id_type: torch.dtype, dtype: torch.dtype
) -> list[tuple[Tensor, Tensor]]:
    """Where in a message the ids [U] and the values [U, D] of each table lie: first all ids, then all values."""
    end, numbers = sum(counts) * id_type.itemsize, [n * d for n, d in zip(counts, widths, strict=True)]
    ids = torch.split(message[:end].view(id_type), list(counts))
    values = torch.split(message[end : end + sum(numbers) * dtype.itemsize].view(dtype), numbers)
    return [(some, x.view(len(some), d)) for some, x, d in zip(ids, values, widths, strict=True)]


def _id_type(rows: int) -> torch.dtype:
    return torch.int32 if rows < 1 << 31 else torch.int64
