"""What should this person see next? The request path: history → features → retrieve → filter → rank → answer."""

from __future__ import annotations

import copy
import datetime as dt
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

import pyarrow as pa
import torch
from torch import Tensor

from falconet.errors import ConfigError, DataError
from falconet.serve.answers import Closer, Item, Recommendation, SimilarItem
from falconet.serve.bulk import Bulk, Listed
from falconet.serve.bundle import Bundle, load_bundle
from falconet.serve.closer import look_closer
from falconet.serve.engine import Query
from falconet.serve.events import Event, Id, Outcome, Who
from falconet.serve.grown import GrownBundle
from falconet.serve.known import Knowledge, Known
from falconet.serve.outage import Outage
from falconet.serve.request import Asked, Request
from falconet.serve.said import check_said
from falconet.serve.samples import Sample, sample_people, spread
from falconet.serve.scenarios import Scenarios, Variant
from falconet.serve.stages import Stages
from falconet.serve.store import Impression, Page, Store
from falconet.serve.users_file import UsersFile
from falconet.serve.words import Words

P = ParamSpec("P")
R = TypeVar("R")


def _as_of_now(method: Callable[Concatenate[Recommender, P], R]) -> Callable[Concatenate[Recommender, P], R]:
    """The same method of a recommender that knows what the store says of items."""

    @wraps(method)
    def call(self: Recommender, /, *args: P.args, **named: P.kwargs) -> R:
        return method(self._now(), *args, **named)

    return call


@dataclass(frozen=True)
class PutItem:
    """What came of a change of an item. `known`: answers can have it; else `why` they cannot before a refresh."""

    item_id: Id
    known: bool
    why: str | None


class Recommender:
    """Answers requests from a bundle, and takes in events where there is a store.

    Any number of threads may call it. The same request in the same state gives the same items and scores.
    """

    def __init__(
        self,
        bundle: Bundle,
        store: Store | None = None,
        scenarios: Scenarios | None = None,
        stages: Stages | None = None,
    ) -> None:
        """`stages`: bounds the time that an answer takes. Raises DataError for a boost of a scenario that does not fit
        the catalogue.
        """
        self.store, self.scenarios = store, scenarios or Scenarios()
        self.stages, self._outage = stages, Outage(() if store is None else store.outages)
        self._grown = None if store is None else GrownBundle(bundle, store)
        self._settle(bundle, Knowledge(bundle.engine, store, self._outage))
        self._samples = sample_people(self._people, self._catalogue)
        for variant in (variant for scenario in self.scenarios.scenario for variant in scenario.variants):
            self._boosts(variant.apply(Request()))

    def _settle(self, bundle: Bundle, knowledge: Knowledge) -> None:
        """Answer from a bundle."""
        self.bundle, self._latest = bundle, self
        self._engine, self._catalogue, self._people = bundle.engine, bundle.engine.catalogue, bundle.engine.people
        self._knowledge = knowledge
        self._past = self._knowledge.past
        self._words = Words(bundle.engine, bundle.config.verb)

    def _now(self) -> Recommender:
        """This recommender with what the store says of items: another where something was said since."""
        now = None if self._grown is None else self._outage.attempt(self._follow)
        return self._latest if now is None else now

    def _follow(self) -> Recommender:
        """The same; raises what the store does."""
        assert self.store is not None
        assert self._grown is not None
        number, latest = self.store.change_number(), self._latest
        bundle = self._grown.now(number)
        if bundle is self.bundle:
            latest = self
        elif bundle is not latest.bundle:
            latest = copy.copy(self)
            latest._grown = None
            latest._settle(bundle, self._latest._knowledge.over(bundle.engine))
        latest._knowledge.follow(number)
        self._latest = latest
        return latest

    @classmethod
    def load(
        cls,
        path: str | Path,
        store: Store | None = None,
        *,
        scenarios: Scenarios | None = None,
        threads: int | None = 1,
    ) -> Recommender:
        """The recommender of a bundle folder. `scenarios`: the A/B tests that requests may name.

        One torch thread answers a single request fastest, so the whole process gets `threads` of them; None leaves
        that alone. Raises ArtifactError for a bundle that is missing, damaged or answers differently here.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        return cls(load_bundle(path), store, scenarios)

    @_as_of_now
    def recommend(self, user_id: Id | None = None, **asked: Unpack[Asked]) -> Recommendation:
        """The best k items for a user, a visitor's session, or whoever met the items of a history.

        Takes what `Request` has: `recommend(7, k=20, filter="year > 1990")`. Fewer than k items come back only where
        fewer are left. Unknown people and items are no error. Items that are hidden or expired never appear, nor does
        what a person hid. Raises ConfigError or DataError, naming the field, for values that make no sense.
        """
        request = Request(user_id=user_id, **asked)
        variant = self._variant(request)
        answer = self._answer(request if variant is None else variant.apply(request), shown=())
        said = answer.said if variant is None else replace(answer.said, variant=variant.name)
        store = self.store
        if store is None or "store" in said.degraded:
            return said
        if answer.needed:
            self._keep(store, answer.request, answer.who, said)
            return said
        kept = self._outage.attempt(lambda: self._keep(store, answer.request, answer.who, said))
        return said if kept else replace(said, degraded=["store", *said.degraded])

    def _variant(self, request: Request) -> Variant | None:
        """The variant of the person; None without a scenario, and for nobody. Raises ConfigError for an unknown one."""
        if request.scenario is None:
            return None
        scenario = self.scenarios.of(request.scenario)
        who = self._past.who(request.user_id, request.session_id)
        return None if who is None else scenario.variant(who)

    def _keep(self, store: Store, request: Request, who: Who | None, said: Recommendation) -> bool:
        """Remember an answer for its next pages, and of a scenario what was shown; True."""
        now, shown = time.time_ns() // 1000, tuple(item.item_id for item in said.items)
        plain = {**request.to_plain(), "variant": said.variant}
        store.save_page(said.recommendation_id, Page(who=who, request=plain, shown=shown), now)
        if request.scenario is not None:
            seen = Impression(
                recommendation_id=said.recommendation_id,
                who=who,
                time=now,
                bundle=said.bundle,
                items=shown,
                scenario=request.scenario,
                variant=said.variant,
            )
            store.log_impressions([seen])
        return True

    @_as_of_now
    def next(self, recommendation_id: str, k: int | None = None) -> Recommendation:
        """The next page of an answer: k more items that none of its pages has shown, under the same id.

        It knows what has happened since. Raises DataError for an id that no answer had, or one that was forgotten.
        """
        store = self._store("next pages")
        while True:
            page = store.page(recommendation_id)
            if page is None:
                raise DataError(
                    f"no answer has the `recommendation_id` {recommendation_id!r}", hint="that of a former answer"
                )
            plain = dict(page.request)
            variant = plain.pop("variant", None)  # its settings are those of the request
            request = Request.from_plain(plain)
            answer = self._answer(replace(request, k=k or request.k), shown=page.shown)
            items = [item.item_id for item in answer.said.items]
            if store.extend_page(recommendation_id, len(page.shown), items):  # else another page came between
                return replace(answer.said, recommendation_id=recommendation_id, variant=variant)

    @_as_of_now
    def rank(self, item_ids: Collection[Id], user_id: Id | None = None, **asked: Unpack[Asked]) -> Recommendation:
        """The given items, those that may be shown, in the order that suits a person, with their scores."""
        if asked.get("scenario") is not None:
            raise ConfigError("`scenario` is of lists that are shown", hint="`recommend` takes it, `rank` does not")
        every: Asked = {**asked, "exclude_seen": False, "k": max(len(item_ids), 1), "include_ids": item_ids}
        return self._answer(Request(user_id=user_id, **every), shown=()).said

    @_as_of_now
    def preview(self, user_id: Id | None = None, **asked: Unpack[Asked]) -> Recommendation:
        """What `recommend` would answer, but for scenarios; it has no next pages, and nobody counts it as shown."""
        if asked.get("scenario") is not None:
            raise ConfigError("`scenario` is of lists that are shown", hint="`recommend` takes it")
        return self._answer(Request(user_id=user_id, **asked), shown=()).said

    @_as_of_now
    def closer(self, item_id: Id, user_id: Id | None = None, **asked: Unpack[Asked]) -> Closer:
        """Why an item is where it is in the answer to a request. Raises DataError for an item that is not known."""
        row = self._row(item_id)
        request = Request(user_id=user_id, **asked)
        return look_closer(
            self._engine, self._query(request, self._knowledge.of(request), (), self._bounds(request)), row
        )

    @_as_of_now
    def recommend_users(
        self,
        users: str | Path,
        out: str | Path,
        *,
        column: str = "user_id",
        overwrite: bool = False,
        **asked: Unpack[Asked],
    ) -> Path:
        """Recommendations for every user of a Parquet or CSV file, as Parquet in the folder `out`, which is returned.

        Each is what `recommend` gives, but for the reasons and the last digits of scores, and takes what it takes.
        Memory does not grow with the file. A run that was killed carries on when it is started again. `column`: where
        the ids are. Raises ArtifactError where `out` exists, DataError where a user cannot be asked for.
        """
        plain: Asked = {**asked, "explain": False}
        request = Request(**plain)
        if request.scenario is not None:
            raise ConfigError("`scenario` is of lists that are shown", hint="`recommend` takes it")
        if request.session_id is not None:
            raise ConfigError("`session_id` is of one visitor", hint="leave it out: the file says for whom")
        asker = _Everybody(self, request)
        ids = self._catalogue.ids
        bulk = Bulk(
            users=UsersFile(Path(users), column),
            request=request,
            bundle=self.bundle.manifest.sha256,
            item_type=pa.int64() if ids.are_numbers else pa.string(),
            out=Path(out).absolute(),
            overwrite=overwrite,
        )
        return bulk.run(asker)

    def check(self) -> None:
        """Answer a request of somebody known, the whole path, and keep nothing of it."""
        known = self._samples[0].user_id if self._samples else None
        self.rank(self._catalogue.ids.values[:1], known)

    @_as_of_now
    def count(self, filter: str, parameters: Mapping[str, Any] | None = None) -> int:
        """How many items a filter holds for. Raises DataError, saying where it is wrong."""
        return int(self._catalogue.filters.mask(filter, parameters).sum())

    def _answer(self, request: Request, shown: Collection[Id]) -> _Said:
        start = time.perf_counter()
        known = self._knowledge.of(request)
        query = self._query(request, known, shown, self._bounds(request))
        read_ms = (time.perf_counter() - start) * 1000
        answer = self._engine.answer(query, self.stages, start)
        answered = time.perf_counter()
        met = self._words.met(known.met)
        items = self._words.places(answer, met if request.explain else [], explain=request.explain)
        end = time.perf_counter()
        took = {"history": read_ms, **answer.took_ms, "explain": (end - answered) * 1000, "total": (end - start) * 1000}
        said = Recommendation(
            items,
            cold_start=self._is_cold(known),
            recommendation_id=uuid.uuid4().hex,
            bundle=self.bundle.name,
            history=self._words.history(met),
            funnel=answer.funnel,
            took_ms={stage: round(ms, 3) for stage, ms in took.items()},
            degraded=["store", *answer.degraded] if known.away else [*answer.degraded],
        )
        return _Said(said, request, known.who, known.needed)

    def _is_cold(self, known: Known) -> bool:
        return known.row is None or (not known.met and self._engine.features.uses_history)

    def _bounds(self, request: Request) -> tuple[Tensor | None, Tensor | None]:
        """Which items may appear, and what is added to their scores: the same for everybody who asks so."""
        return self._allowed(request), self._boosts(request)

    def _query(
        self, request: Request, known: Known, shown: Collection[Id], bounds: tuple[Tensor | None, Tensor | None]
    ) -> Query:
        allowed, boosts = bounds
        return Query(
            k=request.k,
            person=known.row,
            user_id=known.who.id if known.who is not None and known.who.kind == "user" else None,
            history=[code for code, _ in known.met],
            seen=known.everything,
            profile=known.profile,
            exclude=known.exclude | self._past.codes(shown, "shown"),
            allowed=allowed,
            context=self._engine.features.at(request.context, dt.datetime.now(dt.UTC)),
            boosts=boosts,
            diversity=request.diversity,
            temperature=request.temperature,
            seed=request.seed,
        )

    def _allowed(self, request: Request) -> Tensor | None:
        """Which rows of the catalogue may appear; None for all."""
        allowed = None
        if request.filter is not None:
            allowed = torch.from_numpy(self._catalogue.filters.mask(request.filter, request.parameters))
        if request.include_ids is not None:
            included = torch.zeros(len(self._catalogue), dtype=torch.bool)
            codes = self._past.codes(request.include_ids, "include_ids")
            included[self._catalogue.rows(torch.tensor(sorted(codes), dtype=torch.int64))] = True
            allowed = included if allowed is None else allowed & included
        return allowed

    def _boosts(self, request: Request) -> Tensor | None:
        """What is added to the score of every row of the catalogue."""
        if not request.boosts:
            return None
        total = torch.zeros(len(self._catalogue), dtype=torch.float64)
        for expression, by in request.boosts.items():
            total[torch.from_numpy(self._catalogue.filters.mask(expression, request.parameters))] += by
        return total

    def _store(self, what: str) -> Store:
        if self.store is None:
            raise ConfigError(f"this recommender has no store of {what}", hint="Recommender.load(bundle, store)")
        return self.store

    def add_events(self, events: Sequence[Event]) -> list[Outcome]:
        """Store events; the next `recommend` of their people sees them. An outcome for each, in order."""
        return self._store("events").add_events([self._past.normal(event) for event in events])

    def put_item(
        self,
        item_id: Id,
        *,
        hidden: bool = False,
        expires: int | None = None,
        features: Mapping[str, Any] | None = None,
    ) -> PutItem:
        """Say whether an item may be recommended, until when (µs since 1970), and what it is like.

        `features`: `title` and attributes by their names, in place of the bundle's; None leaves what was said before,
        `{}` takes it back. Every process knows it at once. An item that the bundle does not know can be recommended
        where one of its retrievers reads features, else after the next refresh: the answer says so. Raises
        ColumnNotFoundError and DataError for features that items do not have.
        """
        store, item = self._store("items"), self._catalogue.ids.normal(item_id)
        if features is not None:
            columns = self._items_said_of().columns
            features = check_said(features, columns, field="features", what="an item of this bundle")
            self._items_said_of().check(item, features)
        store.put_item(item, features=features, hidden=hidden, expires=expires)
        known = self._now()._catalogue.ids.row(item) is not None
        return PutItem(item, known, None if known else self._items_said_of().why_unknown(item))

    def hide_item(self, item_id: Id) -> None:
        """Never recommend an item, until it is put again; what was said of it stays."""
        self._store("items").hide_item(self._catalogue.ids.normal(item_id))

    def put_user(self, user_id: Id, profile: Mapping[str, Any]) -> None:
        """Say what is known of a user: raw values by column of the users' table, in place of what training knew.

        What was said before is forgotten. Every process knows it at once. Raises ColumnNotFoundError and DataError for
        values that users do not have, ConfigError where no model of the bundle reads any.
        """
        columns = self._engine.features.columns
        if not columns:
            raise ConfigError(
                "no model of this bundle reads anything of users but what they did",
                hint="`[data] users` of a recipe names a table of users",
            )
        profile = check_said(profile, columns, field="profile", what="a user of this bundle")
        user = self._people.ids.normal(user_id)
        self._engine.features.check_profile(user, profile)
        self._store("profiles").put_user(user, profile)

    def _items_said_of(self) -> GrownBundle:
        assert self._grown is not None
        return self._grown

    def forget(self, user_id: Id | None = None, session_id: Id | None = None) -> int:
        """Delete all that the store has of a person; how many events there were. The bundle keeps what it learned."""
        who = self._past.who(user_id, session_id)
        if who is None:
            raise ConfigError("nobody to forget", hint="a `user_id` or a `session_id`")
        return self._store("people").forget(who)

    @_as_of_now
    def similar(self, item_id: Id, k: int = 10) -> list[SimilarItem]:
        """The k items nearest to one, nearest first, none that is hidden or expired.

        Raises DataError for an item the catalogue does not have.
        """
        row = self._row(item_id)
        hidden = {row, *(self._catalogue.row_of_code(code) for code in self._knowledge.gone())}
        with torch.inference_mode():
            nearness_N = self._engine.nearness.between([row])[0]
            order_N = torch.sort(nearness_N, descending=True, stable=True).indices
        near = [other for other in order_N[: k + len(hidden)].tolist() if other not in hidden][:k]
        return [SimilarItem(*self._words.item(other), float(nearness_N[other])) for other in near]

    def _row(self, item_id: Id) -> int:
        row = self._catalogue.ids.row(item_id)
        if row is None:
            raise DataError(f"no item {item_id!r} in the catalogue", hint="`search_items` finds items by title")
        return row

    @_as_of_now
    def search_items(self, text: str = "", limit: int = 20) -> list[Item]:
        """Items whose title contains the text, the best known first."""
        return [Item(*self._words.item(row)) for row in self._catalogue.search(text, limit)]

    @_as_of_now
    def start_items(self, k: int = 12) -> list[Item]:
        """Well-known items as unlike each other as possible, for a new visitor to choose from."""
        gone = self._knowledge.gone()
        there = islice((code for code in self._engine.popular if code not in gone), 120)
        pool = [self._catalogue.row_of_code(code) for code in there]
        rows = spread([row for row in pool if row is not None], self._engine.nearness, k)
        return [Item(*self._words.item(row)) for row in rows]

    def sample_users(self) -> list[Sample]:
        """A few people known to training: with much and with little history, and with unusual taste."""
        return self._samples

    def search_users(self, text: str, limit: int = 20) -> list[Id]:
        """Ids known to training that start with the text, the shortest first."""
        found = [value for value in self._people.ids.values if str(value).startswith(text)]
        return sorted(found, key=lambda value: (len(str(value)), str(value)))[:limit]

    @_as_of_now
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
            "context": [asdict(one) for one in self._engine.features.moments],
        }


@dataclass(frozen=True)
class _Said:
    """An answer, what it answers, to whom, and whether it could not have been without the store."""

    said: Recommendation
    request: Request
    who: Who | None
    needed: bool


class _Everybody:
    """Answers one request for many users, several at once. Raises what is wrong with the request itself."""

    def __init__(self, recommender: Recommender, request: Request) -> None:
        self._recommender, self._request = recommender, request
        self._bounds = recommender._bounds(request)
        self.candidates = recommender._engine.candidates

    def look_up(self, user: Id) -> Known:
        self._recommender._outage.attempt(self._recommender._knowledge.follow)
        return self._recommender._knowledge.of(replace(self._request, user_id=user))

    def answer(self, known: Sequence[Known]) -> list[Listed]:
        recommender, ids = self._recommender, self._recommender._catalogue.ids.values
        queries = [recommender._query(self._request, one, (), self._bounds) for one in known]
        listed = []
        for one, answer in zip(known, recommender._engine.answers(queries), strict=True):
            items = [(ids[p.row], p.score, p.retriever_score, p.retriever_rank) for p in answer.places]
            listed.append(Listed(items, answer.source, recommender._is_cold(one)))
        return listed
