"""What is evaluated: a retriever over the whole catalogue, alone or followed by a ranker.

Shapes: R users, N catalogue items, K candidates of each user, k items of each answer.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from falconet.batch import Batch, Ragged
from falconet.evaluation.tables import Items
from falconet.models.base import Model, Retriever
from falconet.models.index import index_of
from falconet.retrieval.candidates import CandidateRows


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


class TwoStage:
    """A ranker that puts the retriever's best `candidates` into its own order; equal ones stay in the retriever's."""

    def __init__(self, first: Retrieval, rows: CandidateRows, ranker: Model, candidates: int) -> None:
        self.first = first
        self.rows = rows
        self.ranker = ranker.eval()
        self.candidates = candidates

    @torch.inference_mode()
    def search(self, users: Batch, k: int, exclude: Ragged | None = None) -> tuple[Tensor, Tensor]:
        scores_RK, codes_RK = self.first.search(users, max(self.candidates, k), exclude)
        logits_RK = self.ranker(self.rows.rows(users, codes_RK, scores_RK)).view_as(scores_RK)
        logits_RK = logits_RK.masked_fill(codes_RK < 0, -torch.inf)
        best_RK, place_RK = logits_RK.sort(dim=1, descending=True, stable=True)
        return best_RK[:, :k], codes_RK.gather(1, place_RK)[:, :k]
