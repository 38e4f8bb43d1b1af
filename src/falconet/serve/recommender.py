"""What should this person see next? The request path: history → features → retrieve → filter → rank → answer."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import normalize

from falconet.errors import ConfigError, DataError
from falconet.serve.bundle import Bundle, load_bundle
from falconet.serve.engine import Answer, Place, Query
from falconet.serve.events import HIDE, Event, Outcome, Who, check_id
from falconet.serve.features import Value
from falconet.serve.samples import Sample, sample_people, spread
from falconet.serve.store import Store
from falconet.serve.tables import Id

_TRAINING = "training"  # the type of a history item that was met before the bundle was built
_VERBS = {"like": "liked", "rating": "rated", "click": "looked at"}


@dataclass(frozen=True)
class Item:
    """An item as people see it. `attributes` are plain values, such as genres."""

    item_id: Id
    title: str
    attributes: dict[str, Any]


@dataclass(frozen=True)
class SimilarItem(Item):
    """An item near another; `similarity` is the cosine of their vectors."""

    similarity: float


@dataclass(frozen=True)
class RecommendedItem(Item):
    """One recommendation. Ranks count from 1; `score` is the ranker's probability, without a ranker the retriever's.

    `source`: the stage that found it, "retriever" or "popular"; `because`: the item of the history the reason names.
    """

    retriever_score: float
    retriever_rank: int
    score: float
    rank: int
    source: str
    reason: str
    because: Id | None


@dataclass(frozen=True)
class Met:
    """An item of the history that was used. `type` is that of its last event, or "training"."""

    item_id: Id
    title: str
    type: str


@dataclass(frozen=True)
class Recommendation:
    """The answer to one request.

    `cold_start`: the person is unknown to training, or nothing is known of what they met. `history`: what was used,
    oldest first. `funnel`: items left after each stage. `took_ms`: milliseconds per stage, and in `total`.
    """

    items: list[RecommendedItem]
    cold_start: bool
    recommendation_id: str
    bundle: str
    history: list[Met]
    funnel: dict[str, int]
    took_ms: dict[str, float]


class Recommender:
    """Answers requests from a bundle, and takes in events where there is a store.

    Any number of threads may call it. The same request in the same state gives the same items and scores.
    """

    def __init__(self, bundle: Bundle, store: Store | None = None) -> None:
        self.bundle, self.store = bundle, store
        self._engine, self._catalogue, self._people = bundle.engine, bundle.engine.catalogue, bundle.engine.people
        vectors_ND = bundle.vectors[:, :-1] if bundle.config.bias else bundle.vectors
        self._directions_ND = normalize(vectors_ND, dim=-1)
        self._samples = sample_people(self._people, self._catalogue)

    @classmethod
    def load(cls, path: str | Path, store: Store | None = None, *, threads: int | None = 1) -> Recommender:
        """The recommender of a bundle folder.

        One torch thread answers a single request fastest, so the whole process gets `threads` of them; None leaves
        that alone. Raises ArtifactError for a bundle that is missing, damaged or answers differently here.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        return cls(load_bundle(path), store)

    def recommend(
        self,
        user_id: Id | None = None,
        *,
        session_id: Id | None = None,
        history: Sequence[Id] | None = None,
        k: int = 10,
        exclude_seen: bool = True,
        exclude_ids: Collection[Id] = (),
        include_ids: Collection[Id] | None = None,
        context: Mapping[str, Value] | None = None,
    ) -> Recommendation:
        """The best k items for a user, a visitor's session, or whoever met the items of `history` (oldest first).

        A `history` that is given stands in place of all that is known of the person. `exclude_ids` never appear; with
        `include_ids` nothing else does; items the person hid are gone for good; `exclude_seen` leaves out what they
        met. Fewer than k items come back only where fewer are left. Unknown people and items are no error.
        Raises ConfigError or DataError, naming the field, for values that make no sense.
        """
        start = time.perf_counter()
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ConfigError(f"`k` must be a whole number of at least 1, not {k!r}")
        who = self._who(user_id, session_id)
        row = self._people.row(who.id) if who is not None and who.kind == "user" else None
        met = self._met(who, row, history)
        seen = self._seen(who, row) | self._codes(history or (), "history") if exclude_seen else frozenset()
        query = Query(
            k=k,
            person=row,
            user_id=who.id if who is not None and who.kind == "user" else None,
            history=[code for code, _ in met],
            exclude=seen | self._hidden(who) | self._codes(exclude_ids, "exclude_ids"),
            include=None if include_ids is None else self._codes(include_ids, "include_ids"),
            context=context or {},
        )
        read_ms = (time.perf_counter() - start) * 1000
        answer = self._engine.answer(query)
        explain = time.perf_counter()
        items = self._explain(answer, met)
        end = time.perf_counter()
        took = {"history": read_ms, **answer.took_ms, "explain": (end - explain) * 1000, "total": (end - start) * 1000}
        return Recommendation(
            items,
            cold_start=row is None or (not met and self._engine.features.uses_history),
            recommendation_id=uuid.uuid4().hex,
            bundle=self.bundle.name,
            history=self._shown_history(met),
            funnel=answer.funnel,
            took_ms={stage: round(ms, 3) for stage, ms in took.items()},
        )

    def add_events(self, events: Sequence[Event]) -> list[Outcome]:
        """Store events; the next `recommend` of their people sees them. An outcome for each, in order."""
        if self.store is None:
            raise ConfigError("this recommender has no store of events", hint="Recommender.load(bundle, store)")
        return self.store.add_events([self._normal(event) for event in events])

    def similar(self, item_id: Id, k: int = 10) -> list[SimilarItem]:
        """The k items nearest to one, nearest first. Raises DataError for an item the catalogue does not have."""
        row = self._catalogue.ids.row(item_id)
        if row is None:
            raise DataError(f"no item {item_id!r} in the catalogue", hint="`search_items` finds items by title")
        with torch.inference_mode():
            nearness_N = self._directions_ND @ self._directions_ND[row]
            nearness_N[row] = -math.inf
            order_N = torch.sort(nearness_N, descending=True, stable=True).indices
        near = order_N[: min(k, len(self._catalogue) - 1)].tolist()
        return [SimilarItem(*self._shown(other), float(nearness_N[other])) for other in near]

    def search_items(self, text: str = "", limit: int = 20) -> list[Item]:
        """Items whose title contains the text, the best known first."""
        return [Item(*self._shown(row)) for row in self._catalogue.search(text, limit)]

    def start_items(self, k: int = 12) -> list[Item]:
        """Well-known items as unlike each other as possible, for a new visitor to choose from."""
        pool = [self._catalogue.row_of_code(code) for code in self._engine.popular[:120]]
        rows = spread([row for row in pool if row is not None], self._directions_ND, k)
        return [Item(*self._shown(row)) for row in rows]

    def sample_users(self) -> list[Sample]:
        """A few people known to training: with much and with little history, and with unusual taste."""
        return self._samples

    def search_users(self, text: str, limit: int = 20) -> list[Id]:
        """Ids known to training that start with the text, the shortest first."""
        found = [value for value in self._people.ids.values if str(value).startswith(text)]
        return sorted(found, key=lambda value: (len(str(value)), str(value)))[:limit]

    def describe(self) -> dict[str, Any]:
        """What answers here: the bundle, its models, the data they learned from. Plain values."""
        extra = self.bundle.manifest.extra
        return {
            "bundle": self.bundle.name,
            "models": extra["models"],
            "dim": extra["dim"],
            "items": len(self._catalogue),
            "users": len(self._people),
            "candidates": self.bundle.config.candidates,
            "data": extra["data"],
            "verb": self.bundle.config.verb,
        }

    def _who(self, user_id: Id | None, session_id: Id | None) -> Who | None:
        for name, value in (("user_id", user_id), ("session_id", session_id)):
            if value is not None:
                check_id(value, name)
        who = Who.of(user_id, session_id)
        return replace(who, id=self._people.ids.normal(who.id)) if who is not None and who.kind == "user" else who

    def _normal(self, event: Event) -> Event:
        """An event with ids as the training data has them, so that "7" and 7 are one person where ids are numbers."""
        user = None if event.user_id is None else self._people.ids.normal(event.user_id)
        return replace(event, user_id=user, item_id=self._catalogue.ids.normal(event.item_id))

    def _met(self, who: Who | None, row: int | None, history: Sequence[Id] | None) -> list[tuple[int, str]]:
        """What the person met, oldest first: training's history, then events; hidden ones left out.

        An item that was met again moves to its new place.
        """
        length = self._engine.features.length
        if history is not None:
            codes = [code for item in history if (code := self._code(item, "history")) is not None]
            return [(code, "view") for code in list(dict.fromkeys(reversed(codes)))[:length][::-1]]
        hidden = self._hidden(who)
        events = self._events(who, hidden)
        known = [] if row is None else self._engine.features.history(row)
        old = [(code, _TRAINING) for code in known if code not in events and code not in hidden]
        return [*old, *events.items()][-length:]

    def _events(self, who: Who | None, hidden: Collection[int]) -> dict[int, str]:
        """Code and type of the last items of the catalogue that the person's events are of, oldest first."""
        if self.store is None or who is None:
            return {}
        wanted = limit = self._engine.features.length
        while True:
            met = self.store.history(who, limit)
            codes = ((self._catalogue.code(item), kind) for item, kind in met)
            found = {code: kind for code, kind in codes if code is not None and code not in hidden}
            if len(found) >= wanted or len(met) < limit:
                return found
            limit *= 4  # items newer than the bundle, and hidden ones, must not push out the others

    def _hidden(self, who: Who | None) -> frozenset[int]:
        if self.store is None or who is None:
            return frozenset()
        return self._codes(self.store.seen(who, (HIDE,)), "hidden")

    def _seen(self, who: Who | None, row: int | None) -> frozenset[int]:
        """Codes of everything the person met, in training and since."""
        before = frozenset() if row is None else frozenset(self._people.seen(row).tolist())
        return before if self.store is None or who is None else before | self._codes(self.store.seen(who), "seen")

    def _code(self, item: Id, name: str) -> int | None:
        check_id(item, name)
        return self._catalogue.code(item)

    def _codes(self, items: Collection[Id], name: str) -> frozenset[int]:
        """Codes of the items the catalogue has."""
        return frozenset(code for item in items if (code := self._code(item, name)) is not None)

    def _shown(self, row: int) -> tuple[Id, str, dict[str, Any]]:
        return self._catalogue.ids.values[row], self._catalogue.titles[row], self._catalogue.attributes(row)

    def _shown_history(self, met: Sequence[tuple[int, str]]) -> list[Met]:
        ids, titles = self._catalogue.ids.values, self._catalogue.titles
        rows = [(self._catalogue.row_of_code(code), kind) for code, kind in met]
        return [Met(ids[row], titles[row], kind) for row, kind in rows if row is not None]

    def _explain(self, answer: Answer, met: Sequence[tuple[int, str]]) -> list[RecommendedItem]:
        """The places of an answer with what people read; one reason each."""
        past = [(row, kind) for code, kind in met if (row := self._catalogue.row_of_code(code)) is not None]
        past.reverse()  # of equally near items the latest is the better reason
        rows = [place.row for place in answer.places]
        nearest: list[tuple[float, int]] = []
        if past and rows and answer.source != "popular":
            with torch.inference_mode():
                near_KH = self._directions_ND[rows] @ self._directions_ND[[row for row, _ in past]].T
                best = near_KH.max(dim=1)
            nearest = list(zip(best.values.tolist(), best.indices.tolist(), strict=True))
        items = []
        for i, place in enumerate(answer.places):
            reason, because = self._popular_reason(place), None
            if nearest and nearest[i][0] > 0:
                row, kind = past[nearest[i][1]]
                verb = _VERBS.get(kind, self.bundle.config.verb)
                reason, because = (
                    f"Because you {verb} {self._catalogue.titles[row]}",
                    self._catalogue.ids.values[row],
                )
            scores = (place.retriever_score, place.retriever_rank, place.score)
            items.append(RecommendedItem(*self._shown(place.row), *scores, i + 1, answer.source, reason, because))
        return items

    def _popular_reason(self, place: Place) -> str:
        return f"Popular with {self._catalogue.counts[place.row]:,} people"
