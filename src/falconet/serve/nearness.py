"""How near items are to each other in a retriever's eyes: for reasons, similar items, and lists that are not all alike.

Shapes: A and B items, N items of the catalogue, D vector width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import normalize

from falconet.models.base import Retriever
from falconet.models.closed_form import ItemScorer
from falconet.retrieval.exact import ExactIndex
from falconet.retrieval.index import Index


class Nearness(Protocol):
    """Compares items by their rows in the catalogue."""

    def between(self, rows_A: Sequence[int], rows_B: Sequence[int] | None = None) -> Tensor:
        """How near each of A items is to each of B (None: all items), from -1 to 1: [A, B]."""
        ...


class Directions:
    """By the cosine of the items' vectors, their biases left out."""

    def __init__(self, vectors_ND: Tensor, *, bias: bool) -> None:
        self._directions_ND = normalize(vectors_ND[:, :-1] if bias else vectors_ND, dim=-1)

    def between(self, rows_A: Sequence[int], rows_B: Sequence[int] | None = None) -> Tensor:
        theirs_BD = self._directions_ND if rows_B is None else self._of(rows_B)
        return self._of(rows_A) @ theirs_BD.T

    def _of(self, rows_X: Sequence[int]) -> Tensor:
        return self._directions_ND.index_select(0, torch.tensor(rows_X, dtype=torch.int64))


class Pulls:
    """By what having taken the one adds to the score of the other: of models that score items by items.

    Of the most popular items the strongest pull is 1; what is beyond that is 1 too.
    """

    def __init__(self, model: ItemScorer, codes_N: Tensor, popular: Sequence[int]) -> None:
        self._model, self._codes_N = model, codes_N
        known = torch.tensor(popular[:200], dtype=torch.int64)
        with torch.inference_mode():
            strongest = model.pulls(known, known).abs().max() if len(known) else torch.zeros(())
        self._scale = float(strongest) or 1.0

    def between(self, rows_A: Sequence[int], rows_B: Sequence[int] | None = None) -> Tensor:
        theirs_B = self._codes_N if rows_B is None else self._codes_N[list(rows_B)]
        return (self._model.pulls(theirs_B, self._codes_N[list(rows_A)]).T / self._scale).clamp(-1, 1)


def nearness_of(
    retriever: Retriever, index: Index, codes_N: Tensor, popular: Sequence[int], *, bias: bool
) -> Directions | Pulls:
    """What compares a catalogue's items. `popular`: codes, the most popular first; `bias`: the vectors end in one."""
    if isinstance(retriever, ItemScorer):
        return Pulls(retriever, codes_N, popular)
    assert isinstance(index, ExactIndex)
    return Directions(index.vectors, bias=bias)
