"""What is evaluated: retrievers over the whole catalogue, alone, together, or followed by a ranker.

Shapes: R users, N catalogue items, K candidates of each user, k items of each answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from falconet.batch import Batch, Ragged
from falconet.evaluation.tables import Items
from falconet.models.base import Model, Retriever
from falconet.models.index import index_of
from falconet.retrieval.candidates import CandidateRows
from falconet.retrieval.sources import Source, Sources


class Recommends(Protocol):
    """Something that gives every user a list."""

    def search(self, users: Batch, k: int, exclude: Ragged | None) -> tuple[Tensor, Tensor]:
        """(scores [R, k], codes [R, k]), best first; code -1 where there are fewer than k items."""
        ...


class Retrieval:
    """A retriever and the index of the whole catalogue."""

    def __init__(self, retriever: Retriever, items: Items) -> None:
        self.retriever = retriever.eval()
        self.index = index_of(retriever, items.features, items.codes)

    @torch.inference_mode()
    def search(self, users: Batch, k: int, exclude: Ragged | None = None) -> tuple[Tensor, Tensor]:
        return self.index.search(self.retriever.user(users), k, exclude)


def sources_of(
    retrievers: Mapping[str, Retriever], items: Items, weights: Mapping[str, float] | None = None
) -> Sources:
    """Retrievers by name over a catalogue; a weight is 1 where none is given."""
    return Sources(
        [
            Source(
                name,
                retriever.eval(),
                index_of(retriever, items.features, items.codes),
                1.0 if weights is None else weights.get(name, 1.0),
            )
            for name, retriever in retrievers.items()
        ]
    )


class Together:
    """What several retrievers name together, as a list of its own: what a ranker is there to put into a better order.

    Every source names `candidates` items, as it does before a ranker.
    """

    def __init__(self, first: Sources, candidates: int) -> None:
        self.first = first
        self.candidates = candidates

    @torch.inference_mode()
    def search(self, users: Batch, k: int, exclude: Ragged | None = None) -> tuple[Tensor, Tensor]:
        found = self.first.search(users, max(self.candidates, k), exclude)
        return found.scores[:, :k], found.codes[:, :k]


class TwoStage:
    """A ranker that puts the best `candidates` into its own order; equal ones stay in the retrievers'."""

    def __init__(self, first: Sources, rows: CandidateRows, ranker: Model, candidates: int) -> None:
        self.first = first
        self.rows = rows
        self.ranker = ranker.eval()
        self.candidates = candidates

    @torch.inference_mode()
    def search(self, users: Batch, k: int, exclude: Ragged | None = None) -> tuple[Tensor, Tensor]:
        found = self.first.search(users, max(self.candidates, k), exclude)
        logits_RK = self.ranker(self.rows.rows(users, found)).view_as(found.scores)
        logits_RK = logits_RK.masked_fill(found.codes < 0, -torch.inf)
        best_RK, place_RK = logits_RK.sort(dim=1, descending=True, stable=True)
        return best_RK[:, :k], found.codes.gather(1, place_RK)[:, :k]
