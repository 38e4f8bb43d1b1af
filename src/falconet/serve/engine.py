"""One answer from the models: features → retrieve → rank, or the popular items where nothing is known of the person.

No store and no clock but for timing: the same query gives the same answer. Shapes: K candidates, D vector width.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

import torch
from torch import Tensor

from falconet.batch import Batch, Ragged
from falconet.models.base import Model, Retriever
from falconet.retrieval.candidates import CandidateRows
from falconet.retrieval.exact import ExactIndex
from falconet.serve.features import RequestFeatures, Value
from falconet.serve.tables import Catalogue, Id, People

Source = Literal["retriever", "popular"]


@dataclass(frozen=True, kw_only=True)
class Query:
    """What is asked, in codes. `person` is the row of a person known to training, None for a stranger."""

    k: int
    person: int | None = None
    user_id: Id | None = None
    history: Sequence[int] = ()
    exclude: frozenset[int] = frozenset()
    include: frozenset[int] | None = None
    context: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """One item of an answer: its row in the catalogue, and what each stage said. Places count from 1."""

    row: int
    retriever_score: float
    retriever_rank: int
    score: float


@dataclass(frozen=True)
class Answer:
    """At most k places, best first; `took_ms` per stage; `funnel`: how many items were left after each."""

    places: list[Place]
    source: Source
    took_ms: dict[str, float]
    funnel: dict[str, int]


@dataclass(frozen=True)
class Engine:
    """The loaded parts of a bundle, and how they answer."""

    catalogue: Catalogue
    people: People
    features: RequestFeatures
    retriever: Retriever
    index: ExactIndex
    ranker: Model | None
    rows: CandidateRows | None
    popular: list[int]
    candidates: int

    def answer(self, query: Query) -> Answer:
        """Retrieve, rank, cut. A stranger without a history gets what is popular."""
        watch = _Watch()
        if query.person is None and not (query.history and self.features.uses_history):
            places = self._popular(query)
            watch.stop("retrieve")
            return Answer(places, "popular", watch.took_ms, self._funnel(query, len(places), len(places)))
        with torch.inference_mode():
            user = self.features.batch(query.person, query.user_id, query.history, query.context)
            watch.stop("features")
            codes_K, scores_K = self._retrieve(user, query)
            watch.stop("retrieve")
            places = self._rank(user, codes_K, scores_K)[: query.k]
            watch.stop("rank")
        return Answer(places, "retriever", watch.took_ms, self._funnel(query, len(codes_K), len(places)))

    def _retrieve(self, user: Batch, query: Query) -> tuple[Tensor, Tensor]:
        """Codes and scores of the best items that are allowed, best first: [K] each."""
        include = None if query.include is None else torch.tensor(sorted(query.include), dtype=torch.int64)
        scores_1K, codes_1K = self.index.search(
            self.retriever.user(user),
            min(max(self.candidates, query.k), len(self.catalogue)),
            exclude=Ragged.of([sorted(query.exclude)]),
            include=include,
        )
        there_K = codes_1K[0] >= 0
        return codes_1K[0][there_K], scores_1K[0][there_K]

    def _rank(self, user: Batch, codes_K: Tensor, scores_K: Tensor) -> list[Place]:
        """All candidates in their final order. Without a ranker, the retriever's."""
        rows = self.catalogue.rows(codes_K).tolist()
        first: list[float] = scores_K.tolist()
        if self.ranker is None or self.rows is None or not rows:
            return [Place(row, score, i + 1, score) for i, (row, score) in enumerate(zip(rows, first, strict=True))]
        logits_K = self.ranker(self.rows.rows(user, codes_K[None], scores_K[None]))
        # Stable: equal logits keep the retriever's order.
        order: list[int] = torch.sort(logits_K, descending=True, stable=True).indices.tolist()
        logits: list[float] = logits_K.tolist()
        return [Place(rows[i], first[i], i + 1, _probability(logits[i])) for i in order]

    def _popular(self, query: Query) -> list[Place]:
        allowed = (
            code
            for code in self.popular
            if code not in query.exclude and (query.include is None or code in query.include)
        )
        places = []
        for i, code in enumerate(islice(allowed, query.k)):  # not all of a large catalogue
            row = self.catalogue.row_of_code(code)
            assert row is not None
            score = math.log1p(self.catalogue.counts[row])
            places.append(Place(row, score, i + 1, score))
        return places

    def _funnel(self, query: Query, retrieved: int, answered: int) -> dict[str, int]:
        known = {code for code in query.exclude if self.catalogue.row_of_code(code) is not None}
        allowed = len(self.catalogue) - len(known) if query.include is None else len(query.include - known)
        return {"catalogue": len(self.catalogue), "allowed": allowed, "retrieved": retrieved, "answered": answered}


class _Watch:
    """Milliseconds per stage."""

    def __init__(self) -> None:
        self.took_ms: dict[str, float] = {}
        self._last = time.perf_counter()

    def stop(self, stage: str) -> None:
        now = time.perf_counter()
        self.took_ms[stage] = round((now - self._last) * 1000, 3)
        self._last = now


def _probability(logit: float) -> float:
    """The logistic function, without overflow."""
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))
