"""A linear layer of the distinct rows of a table, without a gradient as wide as the table.

The rows X [V, D] and the layer's weights W [H, D] make P = X Wᵀ. Where G [V, H] is the gradient of P, that of X is G W.
It is kept as these two factors, which are narrower than X, and formed a few rows at a time when the rows move.

Shapes: R rows of the batch, U distinct ids, V of them multiplied here, D width of a table, H of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from falconet.nn.lookup import filled, rows_of

_BLOCK = 1024  # rows of a batch that need not leave the processor's cache


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


def project(table: str, visit: Visit, weight_HD: Tensor, dtype: torch.dtype) -> tuple[Tensor, Projected]:
    """The products of a visit's rows and a layer, in type `dtype`, and where `backward` leaves the rows' gradient."""
    made = Projected(table, visit.ids, weight_HD.detach().to(dtype))
    anchor = torch.empty(0, requires_grad=True)  # a frozen layer has a gradient to pass on, too
    products: Tensor = _Project.apply(weight_HD, anchor, visit, made)  # type: ignore[no-untyped-call]
    return products, made


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight_HD: Tensor, anchor: Tensor, visit: Visit, made: Projected) -> Tensor:
        rows_VD = visit.rows(made.layer.dtype)
        ctx.save_for_backward(rows_VD)
        ctx.visit, ctx.made = visit, made
        return visit.give(rows_VD @ made.layer.T)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (rows_VD,), made = ctx.saved_tensors, ctx.made
        gradient = ctx.visit.take(grads[0])
        outer_VH = gradient[ctx.visit.first :][: len(made.ids)]
        made.outer = outer_VH if made.outer is None else made.outer + outer_VH
        dweight_HD = (gradient.T @ rows_VD).float() if ctx.needs_input_grad[0] else None
        return dweight_HD, None, None, None


def add_rows(total_RH: Tensor, vectors: Sequence[Tensor], places: Sequence[Tensor]) -> Tensor:
    """`total` (float32, used up) plus, for each of the `vectors` [U, H], those at its `places` [R].

    All at once for a few rows at a time; gradients are added up in float32.
    """
    if not vectors:
        return total_RH
    result: Tensor = _AddRows.apply(total_RH, places, *vectors)  # type: ignore[no-untyped-call]
    return result


class _AddRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, total_RH: Tensor, places: Sequence[Tensor], *vectors: Tensor) -> Tensor:
        ctx.places = places
        ctx.like = [(len(x), x.dtype) for x in vectors]
        ctx.mark_dirty(total_RH)
        size = max(len(total_RH), 1) if total_RH.is_cuda else _BLOCK
        cut = [torch.split(total_RH, size), *(torch.split(place_R, size) for place_R in places)]
        for total, *some in zip(*cut, strict=True):
            for x, place in zip(vectors, some, strict=True):
                total += x.index_select(0, place)
        return total_RH

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (gradient_RH,) = grads
        found: list[Tensor | None] = []
        for i, (place_R, (rows, dtype)) in enumerate(zip(ctx.places, ctx.like, strict=True)):
            if not ctx.needs_input_grad[2 + i]:
                found.append(None)
                continue
            summed = gradient_RH.new_zeros(rows, gradient_RH.shape[1]).index_add_(0, place_R, gradient_RH)
            found.append(summed.to(dtype))
        return gradient_RH, None, *found
