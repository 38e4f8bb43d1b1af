"""A linear layer of the distinct rows of a table, without a gradient as wide as the table.

The rows X [V, D] and the layer's weights W [H, D] make P = X Wᵀ. Where G [V, H] is the gradient of P, that of X is G W.
It is kept as these two factors, which are narrower than X, and formed a few rows at a time when the rows move.

Shapes: R rows of the batch, U distinct ids, V of them multiplied here, D width of a table, H of a layer.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from falconet.nn.lookup import filled, rows_of, sums_of
from falconet.nn.products import over_rows


class Visit(Protocol):
    """A look at the rows of a table, wherever they lie. What is asked for here may be multiplied by other processes,
    and rows here for them; all ask alike."""

    @property
    def ids(self) -> Tensor:
        """Of the rows that are multiplied here, ascending, no padding: [V]; places where others hold other rows."""

    @property
    def first(self) -> int:
        """At which of the rows multiplied here these begin."""

    def rows(self, dtype: torch.dtype) -> Tensor:
        """What is multiplied here, perhaps more than V rows: [>= V, D]."""

    def give(self, products: Tensor) -> Tensor:
        """The products of the ids that were asked for here, padding first: [>= U, H]."""

    def take(self, gradient: Tensor) -> Tensor:
        """From the gradient of those that of `rows`' products, of all processes: [>= V, H]."""


@dataclass
class Projected:
    """The rows of a table that one layer multiplied. After `backward` the gradient of the rows `ids` [V] is `outer`
    [V, H] times `layer` [H, D]."""

    table: str
    ids: Tensor
    layer: Tensor
    outer: Tensor | None = None


class Local:
    """The rows of distinct ids, padding first, of a table that lies here as a whole."""

    first = 1

    def __init__(self, weight: Tensor, ids_U: Tensor) -> None:
        self._weight, self._ids = weight, ids_U
        self.ids = ids_U[1:]

    def rows(self, dtype: torch.dtype) -> Tensor:
        return rows_of(self._weight, filled(self._ids), dtype)

    def give(self, products: Tensor) -> Tensor:
        return products

    def take(self, gradient: Tensor) -> Tensor:
        return gradient


class Stack:
    """Room for about so many rows of width H that are to be added up: what is made in it need not be copied there."""

    def __init__(self, rows: int, weight_HD: Tensor, dtype: torch.dtype) -> None:
        self._room_XH = weight_HD.new_empty(rows, len(weight_HD), dtype=dtype, requires_grad=False)
        self._end = 0

    def take(self, rows: int) -> Tensor:
        """The next rows of it, not filled yet; others where there are not so many left."""
        begin, self._end = self._end, self._end + rows
        if self._end > len(self._room_XH):
            return self._room_XH.new_empty(rows, self._room_XH.shape[1])
        return self._room_XH.data[begin : self._end]  # filling one is not, for autograd, a change of the others

    def put(self, parts: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
        """Rows of which all parts are some, and where each begins there."""
        starts = [self._begin_of(part) for part in parts]
        apart = [i for i, start in enumerate(starts) if start < 0]
        if self._end + sum(len(parts[i]) for i in apart) > len(self._room_XH):
            return torch.cat(list(parts)), list(itertools.accumulate(map(len, parts[:-1]), initial=0))
        for i in apart:
            starts[i] = self._end
            self.take(len(parts[i])).copy_(parts[i])
        return self._room_XH, starts

    def _begin_of(self, part: Tensor) -> int:
        """At which row a part begins; less than 0 where it is none of them."""
        bytes_of_row = self._room_XH.shape[1] * self._room_XH.element_size()
        begin = (part.data_ptr() - self._room_XH.data_ptr()) // bytes_of_row if len(part) else -1
        return begin if begin < len(self._room_XH) and part.is_contiguous() else -1


def project(
    table: str, visit: Visit, weight_HD: Tensor, dtype: torch.dtype, stack: Stack | None = None
) -> tuple[Tensor, Projected]:
    """The products of a visit's rows and a layer, in type `dtype`, and where `backward` leaves the rows' gradient.
    `stack`: where they are made."""
    made = Projected(table, visit.ids, weight_HD.detach().to(dtype))
    anchor = torch.empty(0, requires_grad=True)  # a frozen layer has a gradient to pass on, too
    products: Tensor = _Project.apply(weight_HD, anchor, visit, made, stack)  # type: ignore[no-untyped-call]
    return products, made


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight_HD: Tensor, anchor: Tensor, visit: Visit, made: Projected, stack: Stack | None
    ) -> Tensor:
        rows_VD = visit.rows(made.layer.dtype)
        ctx.save_for_backward(rows_VD)
        ctx.visit, ctx.made = visit, made
        room = None if stack is None else stack.take(len(rows_VD))
        return visit.give(torch.mm(rows_VD, made.layer.T, out=room))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (rows_VD,), made = ctx.saved_tensors, ctx.made
        gradient = ctx.visit.take(grads[0])
        outer_VH = gradient[ctx.visit.first :][: len(made.ids)]
        made.outer = outer_VH if made.outer is None else made.outer + outer_VH
        dweight_HD = over_rows(gradient, rows_VD) if ctx.needs_input_grad[0] else None
        return dweight_HD, None, None, None, None


def add_rows(
    taken: Sequence[tuple[Tensor, Tensor]],
    beside: Sequence[Tensor],
    bias_H: Tensor | None,
    dtype: torch.dtype,
    stack: Stack,
) -> Tensor:
    """The sum of what is `taken`, at least once, from vectors [U, H] at a place for each row [R], of what stands
    `beside` [R, H] and of a bias: [R, H]. All is in type `dtype`, as is `stack`, in which some of the vectors may lie,
    and added up in float32; so are the gradients."""
    vectors, places = zip(*taken, strict=True)
    bias = [] if bias_H is None else [bias_H.unsqueeze(0)]
    parts = [x.to(dtype) for x in (*vectors, *beside, *bias)]
    result: Tensor = _AddRows.apply(places, bool(bias), stack, *parts)  # type: ignore[no-untyped-call]
    return result


class _AddRows(torch.autograd.Function):
    """A row of the sum adds up some of the rows of all parts, which stand one below the other."""

    @staticmethod
    def forward(ctx: Any, places: Sequence[Tensor], has_bias: bool, stack: Stack, *parts: Tensor) -> Tensor:
        ctx.places, ctx.has_bias, ctx.lengths = places, has_bias, [len(x) for x in parts]
        same_R = torch.arange(len(places[0]), device=places[0].device)
        rows = [*places, *[same_R] * (len(parts) - len(places) - has_bias), *[torch.zeros_like(same_R)] * has_bias]
        whole_XH, starts = stack.put(parts)
        index_RK = torch.stack([row_R + start for row_R, start in zip(rows, starts, strict=True)], dim=1)
        return F.embedding_bag(index_RK, whole_XH, mode="sum")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (gradient_RH,) = grads
        found: list[Tensor | None] = []
        for i, needed in enumerate(ctx.needs_input_grad[3:]):
            if not needed:
                found.append(None)
            elif i < len(ctx.places):
                found.append(sums_of(gradient_RH, ctx.places[i], ctx.lengths[i]))
            else:
                is_bias = ctx.has_bias and i == len(ctx.lengths) - 1
                found.append(gradient_RH.sum(0, keepdim=True) if is_bias else gradient_RH)
        return None, None, None, *found
