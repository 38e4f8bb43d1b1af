"""How near items are to each other in a retriever's eyes: for reasons, similar items, and lists that are not all alike.

Shapes: A and B items, N items of the catalogue, D vector width.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from falconet.models.base import Retriever
from falconet.models.closed_form import ItemScorer
from falconet.retrieval.exact import ExactIndex
from falconet.retrieval.index import Index
from falconet.retrieval.overlay import Overlay


class Nearness(Protocol):
    """Compares items by their rows in the catalogue."""

    def between(self, rows_A: Sequence[int], rows_B: Sequence[int] | None = None) -> Tensor:
        """How near each of A items is to each of B (None: all items), from -1 to 1: [A, B]."""
        ...


class Directions:
    """By the cosine of the items' vectors, their biases left out."""

    def __init__(self, vectors_ND: Tensor, *, bias: bool) -> None:
        self._bias, self._directions_ND = bias, normalize(vectors_ND[:, :-1] if bias else vectors_ND, dim=-1)
        self._said: tuple[Tensor, Overlay] | None = None

    def over(self, vectors_MD: Tensor, overlay: Overlay) -> Directions:
        """The same of a catalogue of which something is said since; the vectors of that, in the overlay's order."""
        other = copy.copy(self)
        other._said = Directions(vectors_MD, bias=self._bias)._directions_ND, overlay
        return other

    def between(self, rows_A: Sequence[int], rows_B: Sequence[int] | None = None) -> Tensor:
        mine_AD = self._of(rows_A)
        if rows_B is not None:
            return mine_AD @ self._of(rows_B).T
        near_AN = mine_AD @ self._directions_ND.T
        return near_AN if self._said is None else self._said[1].spread(near_AN, mine_AD @ self._said[0].T)

    def _of(self, rows_X: Sequence[int]) -> Tensor:
        rows = torch.from_numpy(np.fromiter(rows_X, np.int64, len(rows_X)))  # quicker than a tensor of a list
        if self._said is None:
            return self._directions_ND.index_select(0, rows)
        said_MD, overlay = self._said
        taken = overlay.take(self._directions_ND, said_MD, rows)
        assert isinstance(taken, Tensor)
        return taken


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


class Apart:
    """Another's opinion of the items that it knows; those of the rows after them are near to nothing."""

    def __init__(self, known: Nearness, overlay: Overlay) -> None:
        self._known, self._overlay = known, overlay

    def between(self, rows_A: Sequence[int], rows_B: Sequence[int] | None = None) -> Tensor:
        theirs_B = range(len(self._overlay)) if rows_B is None else rows_B
        near_AB = torch.zeros(len(rows_A), len(theirs_B))
        mine, theirs = ([i for i, row in enumerate(rows) if row < self._overlay.table] for rows in (rows_A, theirs_B))
        known_A, known_B = [rows_A[i] for i in mine], None if rows_B is None else [rows_B[i] for i in theirs]
        if mine and theirs:
            near_AB[torch.tensor(mine)[:, None], torch.tensor(theirs)] = self._known.between(known_A, known_B)
        return near_AB


def nearness_of(
    retriever: Retriever, index: Index, codes_N: Tensor, popular: Sequence[int], *, bias: bool
) -> Directions | Pulls:
    """What compares a catalogue's items. `popular`: codes, the most popular first; `bias`: the vectors end in one."""
    if isinstance(retriever, ItemScorer):
        return Pulls(retriever, codes_N, popular)
    assert isinstance(index, ExactIndex)
    return Directions(index.vectors, bias=bias)
