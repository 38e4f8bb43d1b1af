"""One answer from the models: features → retrieve → rank, or the popular items where nothing is known of the person.

No store and no clock but for timing: the same query gives the same answer. Shapes: K candidates, S retrievers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from falconet.batch import Batch, Ragged
from falconet.columns import join
from falconet.retrieval.candidates import CandidateRows
from falconet.retrieval.sources import Found, Sources
from falconet.serve.events import Id
from falconet.serve.features import RequestFeatures
from falconet.serve.nearness import Nearness
from falconet.serve.order import best, diverse, drawn
from falconet.serve.request import Value
from falconet.serve.stages import Stage, Stages
from falconet.serve.tables import Catalogue, People

Source = Literal["retriever", "popular"]


@dataclass(frozen=True, kw_only=True)
class Query:
    """What is asked, in codes. `person` is the row of a person known to training, None for a stranger."""

    k: int
    person: int | None = None
    user_id: Id | None = None
    history: Sequence[int] = ()
    seen: Sequence[int] | None = None  # everything the person met, where models read more than the history
    profile: Mapping[str, Any] | None = None  # what was said of the person, by column
    exclude: frozenset[int] = frozenset()
    allowed: Tensor | None = None  # bool [items], in the catalogue's order; None: all
    context: Mapping[str, Value] = field(default_factory=dict)
    boosts: Tensor | None = None  # [items], in the catalogue's order, added to the scores that items are ordered by
    diversity: float = 0.0
    temperature: float = 0.0
    seed: int = 0

    @property
    def takes_the_best(self) -> bool:
        """Whether the order is that of the scores alone."""
        return self.boosts is None and not self.diversity and not self.temperature


@dataclass(slots=True)
class Place:
    """One item of an answer: its row in the catalogue, and what each stage said. Places count from 1.

    `named`: of several retrievers, what each said, its score and its place, None where it did not name the item.
    """

    row: int
    retriever_score: float
    retriever_rank: int
    score: float
    named: Mapping[str, tuple[float, int | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """At most k places, best first; `took_ms` per stage; `funnel`: how many items were left after each.

    `degraded`: the stages that took too long, so that the answer is one without them.
    """

    places: list[Place]
    source: Source
    took_ms: dict[str, float]
    funnel: dict[str, int]
    degraded: tuple[Stage, ...] = ()


@dataclass(frozen=True)
class Engine:
    """The loaded parts of a bundle, and how they answer."""

    catalogue: Catalogue
    people: People
    features: RequestFeatures
    sources: Sources
    ranker: Callable[[Batch], Tensor] | None
    rows: CandidateRows | None
    popular: list[int]
    candidates: int
    nearness: Nearness
    newer: Sequence[int] = ()  # codes of items that the bundle does not have

    def answer(self, query: Query, stages: Stages | None = None, since: float | None = None) -> Answer:
        """Retrieve, rank, cut. A stranger without a history gets what is popular.

        `stages`: who bounds the time of each, of an answer that began at `since` (time.perf_counter). An answer whose
        retrieval is late has what is popular, one whose ranking is late the order of the retrievers.
        """
        watch = _Watch()
        if self.is_stranger(query):
            return self._without_person(query, watch)
        steps = self._steps(query)
        if stages is None:
            (found, took_ms), (places, ranked_ms) = steps
            return self._answer(query, found, places, took_ms | ranked_ms)
        done, late = stages.take(steps, ("retrieve", "rank"), time.perf_counter() if since is None else since)
        if not done:
            return self._without_person(query, watch, ("retrieve",))
        found, took_ms = done[0]
        if late is None:
            places, ranked_ms = done[1]
            return self._answer(query, found, places, took_ms | ranked_ms)
        with torch.inference_mode():
            places = self._places(found, found.scores[0], query)
        watch.stop("rank")
        waited = {"rank": watch.took_ms["rank"] - sum(took_ms.values())}
        return self._answer(query, found, places, took_ms | waited, ("rank",))

    def answers(self, queries: Sequence[Query]) -> list[Answer]:
        """The answers to several queries of one `k` and one `allowed`, as `answer` gives them but for last bits.

        Products of many rows are rounded otherwise than those of few. Nothing is timed.
        """
        known = [query for query in queries if not self.is_stranger(query)]
        with torch.inference_mode():
            places = iter(self._places_of_many(known) if known else [])
            made = []
            for query in queries:
                if self.is_stranger(query):
                    made.append(self._without_person(query, _Watch()))
                else:
                    found, listed = next(places)
                    made.append(self._answer(query, found, listed, {}))
        return made

    def _places_of_many(self, queries: Sequence[Query]) -> Iterator[tuple[Found, list[Place]]]:
        users = Batch.of(join([dict(self._user(query).features) for query in queries]))
        found = self._search(users, queries)
        ranks = self.ranker is not None and self.rows is not None and found.codes.shape[1]
        final_RK = found.scores
        if ranks:
            assert self.ranker is not None and self.rows is not None
            final_RK = self.ranker(self.rows.rows(users, found)).view(found.codes.shape)
        for i, query in enumerate(queries):
            there_K = found.codes[i] >= 0
            one = found.of(i).take(there_K)
            yield one, self._places(one, final_RK[i][there_K], query, probability if ranks else float)

    def is_stranger(self, query: Query) -> bool:
        """Whether nothing is known of who asks."""
        return query.person is None and not (query.history and self.features.uses_history)

    def ranker_rows(self, query: Query) -> Batch:
        """The rows that the ranker sees for a query."""
        assert self.rows is not None
        with torch.inference_mode():
            return self.rows.rows(*self.retrieve(query))

    def retrieve(self, query: Query) -> tuple[Batch, Found]:
        """The person's row, and the candidates of a query."""
        user = self._user(query)
        return user, self._retrieve(user, query)

    def _user(self, query: Query) -> Batch:
        """The row of the person."""
        known = (query.person, query.user_id, query.history, query.context, query.seen, query.profile)
        return self.features.batch(*known)

    def _steps(self, query: Query) -> Iterator[Any]:
        """What is found, then its places, each with the milliseconds it took. Runs nothing until it is asked."""
        watch = _Watch()
        with torch.inference_mode():
            user = self._user(query)
            watch.stop("features")
            found = self._retrieve(user, query)
            watch.stop("retrieve")
        yield found, watch.took_ms
        watch = _Watch()
        with torch.inference_mode():
            places = self._rank(user, found, query)
            watch.stop("rank")
        yield places, watch.took_ms

    def _answer(
        self,
        query: Query,
        found: Found,
        places: list[Place],
        took_ms: dict[str, float],
        degraded: tuple[Stage, ...] = (),
    ) -> Answer:
        funnel = self._funnel(query, found.codes.shape[1], len(places))
        return Answer(places, "retriever", took_ms, funnel, degraded)

    def _without_person(self, query: Query, watch: _Watch, degraded: tuple[Stage, ...] = ()) -> Answer:
        """What is popular."""
        with torch.inference_mode():
            places = self._popular(query)
        watch.stop("retrieve")
        return Answer(places, "popular", watch.took_ms, self._funnel(query, len(places), len(places)), degraded)

    def _retrieve(self, user: Batch, query: Query) -> Found:
        """The best items that are allowed, of one user."""
        found = self._search(user, [query])
        there = found.codes.numpy()[0] >= 0
        return found if there.all() else found.take(torch.from_numpy(there))

    def _search(self, users: Batch, queries: Sequence[Query]) -> Found:
        """The best items of every user; codes -1 where fewer are left."""
        allowed = queries[0].allowed
        include = None if allowed is None else self.catalogue.codes[allowed]
        k = min(max(self.candidates, queries[0].k), len(self.catalogue))
        exclude = _lists([query.exclude for query in queries])
        return self.sources.search(users, k, exclude=exclude, include=include)

    def _rank(self, user: Batch, found: Found, query: Query) -> list[Place]:
        """The best k candidates in their final order. Without a ranker it is the retrievers'."""
        if self.ranker is None or self.rows is None or not found.codes.shape[1]:
            return self._places(found, found.scores[0], query)
        return self._places(found, self.ranker(self.rows.rows(user, found)), query, probability)

    def _places(
        self, found: Found, final_K: Tensor, query: Query, shown: Callable[[float], float] = float
    ) -> list[Place]:
        """The best k candidates by their final scores; `shown`: as what a score is shown."""
        order = self._order(final_K, None if query.takes_the_best else self.catalogue.rows(found.codes[0]), query)
        codes, first, final = (x_K.numpy().take(order).tolist() for x_K in (found.codes[0], found.scores[0], final_K))
        rows = self.catalogue.find(codes).tolist()
        named = self._named(found, order)
        return [
            Place(row, score, i + 1, shown(last), said)
            for i, row, score, last, said in zip(order, rows, first, final, named, strict=True)
        ]

    def _named(self, found: Found, order: Sequence[int]) -> list[dict[str, tuple[float, int | None]]]:
        """What each of several retrievers said of some candidates."""
        names = self.sources.names
        if len(names) < 2:
            return [{} for _ in order]
        scores, places = found.of_sources[0, order].tolist(), found.places[0, order].tolist()
        outside = found.asked + 1
        return [
            {name: (s, None if place == outside else place) for name, s, place in zip(names, *said, strict=True)}
            for said in zip(scores, places, strict=True)
        ]

    def _order(self, scores_K: Tensor, rows_K: Tensor | None, query: Query) -> list[int]:
        """Which candidates take the places of an answer. `rows_K`: theirs, None where the best are taken."""
        if rows_K is None:
            return best(scores_K, query.k)
        if query.boosts is not None:
            scores_K = scores_K + query.boosts[rows_K]
        if query.temperature:
            scores_K = drawn(scores_K, query.temperature, query.seed)
        if query.diversity and len(rows_K):
            rows = rows_K.tolist()
            return diverse(scores_K, lambda i: self.nearness.between(rows, [rows[i]])[:, 0], query.k, query.diversity)
        return best(scores_K, query.k)

    def _popular(self, query: Query) -> list[Place]:
        codes = chain(self.popular, self.newer)
        rows = (self.catalogue.row_of_code(code) for code in codes if code not in query.exclude)
        allowed = (row for row in rows if row is not None and (query.allowed is None or query.allowed[row]))
        # Not all of a large catalogue, but where boosts may bring up any of it.
        several = max(self.candidates, query.k)
        limit = query.k if query.takes_the_best else len(self.catalogue) if query.boosts is not None else several
        rows_K = torch.tensor(list(islice(allowed, limit)), dtype=torch.int64)
        scores = [math.log1p(self.catalogue.counts[row]) for row in rows_K.tolist()]
        order = self._order(torch.tensor(scores, dtype=torch.float64), rows_K, query)
        return [Place(int(rows_K[i]), scores[i], i + 1, scores[i]) for i in order]

    def _funnel(self, query: Query, retrieved: int, answered: int) -> dict[str, int]:
        excluded = self.catalogue.find(query.exclude)
        known = excluded[excluded >= 0]
        if query.allowed is None:
            allowed = len(self.catalogue) - len(known)
        else:
            allowed = int(query.allowed.sum()) - int(query.allowed[torch.from_numpy(known)].sum())
        return {"catalogue": len(self.catalogue), "allowed": allowed, "retrieved": retrieved, "answered": answered}


def _lists(sets: Sequence[frozenset[int]]) -> Ragged:
    """The codes of each set, ascending."""
    lists = [np.sort(np.fromiter(codes, np.int64, len(codes))) for codes in sets]
    values = lists[0] if len(lists) == 1 else np.concatenate(lists)
    return Ragged(torch.from_numpy(values), torch.tensor([*accumulate(map(len, lists), initial=0)]))


class _Watch:
    """Milliseconds per stage."""

    def __init__(self) -> None:
        self.took_ms: dict[str, float] = {}
        self._last = time.perf_counter()

    def stop(self, stage: str) -> None:
        now = time.perf_counter()
        self.took_ms[stage] = round((now - self._last) * 1000, 3)
        self._last = now


def probability(logit: float) -> float:
    """The logistic function, without overflow."""
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))
