"""How processes exchange rows of tables and their gradients: only what a batch touches.

Shapes: U distinct ids, D width of a table, W processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from falconet.nn.collective import from_all
from falconet.nn.lookup import distinct, filled, rows_of
from falconet.train.gradients import RowGradient, add_up
from falconet.train.runtime import Runtime


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

    def __init__(self, runtime: Runtime, dtype: torch.dtype = torch.float32) -> None:
        self._runtime, self._dtype = runtime, dtype
        self.sent = 0  # bytes that this process gave to others so far

    def add_up(self, mine: Mapping[str, RowGradient]) -> dict[str, RowGradient]:
        """The sum over all processes of every table's gradient, the same bits on each of them."""
        if self._runtime.world == 1 or not mine:
            return dict(mine)
        mine = {name: gradient.formed() for name, gradient in mine.items()}
        wide = any(g.values.dtype == torch.float32 and len(g.ids) for g in mine.values())
        numbers = from_all(_counts([*(len(g.ids) for g in mine.values()), wide], self._runtime.device)).tolist()
        lengths = [row[:-1] for row in numbers]
        dtype = self._dtype if any(row[-1] for row in numbers) else torch.bfloat16  # what has no more digits needs none
        id_type = _id_type(max(g.rows for g in mine.values()))
        widths = [g.values.shape[1] for g in mine.values()]
        ids = self._gather([g.ids for g in mine.values()], [sum(n) for n in lengths], id_type)
        values = self._gather(
            [g.values.reshape(-1) for g in mine.values()],
            [sum(n * d for n, d in zip(row, widths, strict=True)) for row in lengths],
            dtype,
        )
        parts: dict[str, list[RowGradient]] = {name: [] for name in mine}
        for row, row_ids, row_values in zip(lengths, ids, values, strict=True):
            each_ids = torch.split(row_ids, row)
            each_values = torch.split(row_values, [n * d for n, d in zip(row, widths, strict=True)])
            for (name, g), some_ids, some_values, d in zip(mine.items(), each_ids, each_values, widths, strict=True):
                parts[name].append(RowGradient(g.rows, some_ids.long(), some_values.view(-1, d)))
        return {name: add_up(some) for name, some in parts.items()}

    def _gather(self, mine: Sequence[Tensor], lengths: Sequence[int], dtype: torch.dtype) -> list[Tensor]:
        """Every process's values, one after the other, by rank."""
        longest = max(lengths)
        if not longest:
            return [mine[0].new_empty(0, dtype=dtype)] * len(lengths)
        padded, end = mine[0].new_empty(longest, dtype=dtype), 0
        for x in mine:
            padded[end : end + len(x)] = x
            end += len(x)
        self.sent += (len(lengths) - 1) * longest * padded.element_size()
        return [row[:n] for row, n in zip(from_all(padded), lengths, strict=True)]

    def route(self, layout: Layout, ids_U: Tensor) -> Route:
        """The way to the processes that hold the rows of some ids."""
        owners_U = layout.owners(ids_U)
        order_U = torch.argsort(owners_U, stable=True)
        counts_WW = from_all(torch.bincount(owners_U, minlength=layout.world)).tolist()
        give, take = counts_WW[self._runtime.rank], [row[self._runtime.rank] for row in counts_WW]
        places_U = layout.places(ids_U).index_select(0, order_U).to(_id_type(layout.rows))
        return Route(ids_U, order_U, give, self._all_to_all(places_U, give, take), take)

    def fetch(self, route: Route, held: Tensor, out_UD: Tensor) -> None:
        """Write the rows at the other end of a route to `out_UD`, and travel in its type. `held`: those held here."""
        out_UD.copy_(self.answer(route, rows_of(held, route.asked, out_UD.dtype)))

    def deliver(self, layout: Layout, route: Route, values_UD: Tensor, *, narrow: bool = False) -> RowGradient:
        """The gradient of the rows that this process holds, from all processes, with the ids of its own rows.

        `narrow`: no process has values of more digits than bfloat16.
        """
        values = self.send_back(route, values_UD, torch.bfloat16 if narrow else self._dtype)
        parts = zip(torch.split(route.asked, route.take), values, strict=True)
        return add_up([RowGradient(layout.rows, some_ids.long(), some_values) for some_ids, some_values in parts])

    def visit(self, layout: Layout, held: Tensor, ids_U: Tensor) -> Dealt:
        """The rows of some ids, padding first, to be multiplied where they lie. `held`: those held here."""
        return Dealt(self, self.route(layout, ids_U[1:]), held)

    def answer(self, route: Route, answers: Tensor) -> Tensor:
        """What was found for others, in the order of `route.asked`, given to them: for each of `route.ids`."""
        found = self._all_to_all(answers, route.take, route.give)
        return torch.empty_like(found).index_copy_(0, route.order, found)

    def send_back(self, route: Route, values: Tensor, dtype: torch.dtype) -> list[Tensor]:
        """What belongs to the ids of a route, sent in type `dtype` to where they lie: from each process what is for the
        rows it asked for, in the order of `route.asked`."""
        sent = self._all_to_all(values.index_select(0, route.order).to(dtype), route.give, route.take)
        return list(torch.split(sent, route.take))

    @property
    def dtype(self) -> torch.dtype:
        """In which type gradients of float32 travel."""
        return self._dtype

    def _all_to_all(self, x: Tensor, give: list[int], take: list[int]) -> Tensor:
        found = x.new_empty(sum(take), *x.shape[1:])
        # Bytes, as gloo does not know bfloat16 everywhere.
        dist.all_to_all_single(_bytes(found), _bytes(x.contiguous()), take, give)
        self.sent += (len(x) - give[self._runtime.rank]) * (x[:1].numel() * x.element_size())
        return found


class Dealt:
    """A `Visit` to the rows of a dealt table: each process multiplies those it holds that any of them asks for."""

    first = 0

    def __init__(self, exchange: Exchange, route: Route, held: Tensor) -> None:
        self._exchange, self._route, self._held = exchange, route, held
        ids, places = distinct(route.asked.long() + 1, len(held) + 1)  # 0 is there a row, and not padding
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


def _bytes(x: Tensor) -> Tensor:
    return x.view(torch.uint8) if x.dim() > 1 else x.unsqueeze(1).view(torch.uint8)


def _id_type(rows: int) -> torch.dtype:
    return torch.int32 if rows < 1 << 31 else torch.int64


def _counts(numbers: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=device)
