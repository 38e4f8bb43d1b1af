"""The HTTP API and the page, as a FastAPI application: paths and what they call; meaning is in `recommender.py`."""

from __future__ import annotations

import hmac
import sys
import uuid
from typing import Annotated

from fastapi import Depends, FastAPI, Header, Response
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from falconet.errors import ArtifactError, ConfigError, DataError
from falconet.io.artifact import falconet_version
from falconet.serve.answers import Recommendation
from falconet.serve.events import ACCEPTED, DUPLICATE, Event
from falconet.serve.http.bodies import (
    BatchIn,
    Count,
    ErrorOut,
    EventIn,
    EventsIn,
    EventsOut,
    FilterIn,
    ItemId,
    ItemIn,
    ItemOut,
    NextIn,
    RankIn,
    RecommendIn,
    RecommendOut,
    ReloadIn,
    SimilarOut,
    Text,
    UserIn,
)
from falconet.serve.http.guard import Guard, Log
from falconet.serve.http.page import add_page
from falconet.serve.http.quick import QuickCalls
from falconet.serve.http.replies import add_errors, add_outages, answer, error_reply
from falconet.serve.live import Live
from falconet.serve.metrics import Metrics
from falconet.serve.serving import Serving
from falconet.serve.stages import Degraded

AT_ONCE = 256  # requests that may wait or be answered at one time


class GuardedApp(FastAPI):
    """FastAPI's application with the guard before all of it: what goes the short way passes through nothing else."""

    def guarded(self, at_once: int, calls: QuickCalls, log: Log | None = None, live: Live | None = None) -> None:
        """Put the guard there; what it takes, guard.py says."""
        self._guard = Guard(super().__call__, at_once=at_once, calls=calls, log=log, live=live)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guard(scope, receive, send)


def create_app(
    serving: Serving, *, token: str | None = None, at_once: int = AT_ONCE, log: Log | None = None
) -> FastAPI:
    """The application. Any number of threads and processes may serve it.

    What changes items, forgets people or loads another bundle needs the `token`, as `Authorization: Bearer TOKEN`;
    without one it is refused.
    """
    app = GuardedApp(
        title="falconet",
        version=falconet_version(),
        description="What should this person see next?",
        responses={
            status: {"model": ErrorOut, "description": told}
            for status, told in (
                (400, "no request that can be read"),
                (404, "nothing of that name"),
                (408, "the body did not come in time"),
                (413, "more bytes than a body may have"),
                (422, "something in the request is wrong"),
                (429, "busy: come back after `Retry-After` seconds"),
                (503, "the store cannot be reached: come back after `Retry-After` seconds"),
            )
        },
        docs_url=None,  # those pages load scripts from other servers
        redoc_url=None,
    )
    live = Live(serving)
    calls = QuickCalls()
    app.guarded(at_once, calls, log, live)
    add_errors(app)
    store = serving.recommender.store  # a reload keeps it
    add_outages(app, () if store is None else store.outages)
    add_page(app, serving, live)
    counters = _Counters(serving, live)
    _add_recommendations(app, serving, counters)
    _add_lookups(app, serving)
    _add_admin(app, serving, token)
    _add_health(app, serving, counters)
    calls.learn(app)
    return app


class _Counters:
    """What the page shows of the last minutes, and metrics where their package is installed."""

    def __init__(self, serving: Serving, live: Live) -> None:
        self.live = live
        self.degraded = Degraded(lambda line: sys.stderr.write(f"{line}\n"))
        self.metrics: Metrics | None = None
        self.why_not: ConfigError | None = None
        try:
            self.metrics = Metrics(serving)
        except ConfigError as error:
            self.why_not = error

    def counted(self, *asked: tuple[Recommendation, int | None]) -> BackgroundTask:
        """Count answers, and how many items each was asked for, once who asked has them."""

        async def count() -> None:
            for said, k in asked:
                self.live.answered(said)
                for stage in said.degraded:
                    self.degraded.count(stage)
                if self.metrics is not None:
                    self.metrics.answered(said, k)

        return BackgroundTask(count)

    def took_in(self, accepted: int, duplicates: int, rejected: int) -> None:
        self.live.took_in(accepted, duplicates, rejected)
        if self.metrics is not None:
            self.metrics.took_in(accepted, duplicates, rejected)


def _add_recommendations(app: FastAPI, serving: Serving, counters: _Counters) -> None:
    def recommend_one(request: RecommendIn) -> Recommendation:
        return serving.recommender.recommend(**request.model_dump())

    @app.post("/v1/recommend", response_model=RecommendOut)
    def recommend(request: RecommendIn) -> Response:
        """The best items for somebody. Unknown people get what is popular, with `cold_start` set."""
        said = recommend_one(request)
        return answer(said, then=counters.counted((said, request.k)))

    @app.post("/v1/recommend/next", response_model=RecommendOut)
    def next_page(request: NextIn) -> Response:
        """More items for an answer, none of which its pages have shown; what happened since is known."""
        said = serving.recommender.next(request.recommendation_id, request.k)
        return answer(said, then=counters.counted((said, None)))

    @app.post("/v1/recommend/batch", response_model=list[RecommendOut])
    def batch(request: BatchIn) -> Response:
        """The answers to several requests, in their order."""
        said = [recommend_one(one) for one in request.requests]
        return answer(said, then=counters.counted(*zip(said, (one.k for one in request.requests), strict=True)))

    @app.post("/v1/rank", response_model=RecommendOut)
    def rank(request: RankIn) -> Response:
        """The given items in the order that suits somebody, with their scores."""
        said = serving.recommender.rank(**request.model_dump())
        return answer(said, then=counters.counted((said, None)))

    @app.post("/v1/events", response_model=EventsOut)
    def events(request: EventsIn) -> Response:
        """Take in what people did. The next answer to those people, from any process, knows it."""
        outcomes = serving.recommender.add_events([_event(event, i) for i, event in enumerate(request.events)])
        accepted, duplicates = outcomes.count(ACCEPTED), outcomes.count(DUPLICATE)
        rejected = len(outcomes) - accepted - duplicates
        counters.took_in(accepted, duplicates, rejected)
        return answer({"accepted": accepted, "duplicates": duplicates, "rejected": rejected, "outcomes": outcomes})


def _add_lookups(app: FastAPI, serving: Serving) -> None:
    @app.get("/v1/similar/{item_id:path}", response_model=list[SimilarOut])  # a path: ids may have a slash
    def similar(item_id: ItemId, k: Count = 10) -> Response:
        """The items nearest to one."""
        try:
            return answer(serving.recommender.similar(item_id, k))
        except DataError as error:
            return error_reply(404, error)

    @app.post("/v1/filter")
    def count(request: FilterIn) -> Response:
        """How many items a filter holds for."""
        return answer({"items": serving.recommender.count(request.filter, request.parameters)})

    @app.get("/v1/items", response_model=list[ItemOut])
    def items(search: Text = "", k: Count = 20) -> Response:
        """Items whose title contains the text, the best known first."""
        return answer(serving.recommender.search_items(search, k))

    @app.get("/v1/users")
    def users(search: Text = "", k: Count = 20) -> Response:
        """Ids that start with the text, and a few people worth trying."""
        found = serving.recommender.search_users(search, k) if search else []
        return answer({"users": found, "samples": serving.recommender.sample_users()})

    @app.get("/v1/start", response_model=list[ItemOut])
    def start() -> Response:
        """Twelve well-known items, unlike each other, for a new visitor to choose from."""
        return answer(serving.recommender.start_items())


def _add_admin(app: FastAPI, serving: Serving, token: str | None) -> None:
    def trusted(authorization: Annotated[str, Header(max_length=1000)] = "") -> None:
        if token is None:
            raise HTTPException(
                403, "this server takes no such calls; it was started without a token (`falconet serve --token`)"
            )
        if not hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
            raise HTTPException(
                401,
                "the token is missing or wrong; it is sent as `Authorization: Bearer TOKEN`",
                {"www-authenticate": "Bearer"},
            )

    only = [Depends(trusted)]

    @app.put("/v1/items/{item_id:path}", dependencies=only)
    def put_item(item_id: ItemId, request: ItemIn) -> Response:
        """Say what an item is like, whether it may be recommended, and until when. All processes know it at once.

        `known`: answers can have it; where they cannot before the next refresh, `why` says so.
        """
        put = serving.recommender.put_item(item_id, **request.model_dump())
        said = {"hidden": request.hidden, "expires": request.expires}
        return answer({"item_id": item_id, **said, "known": put.known, "why": put.why})

    @app.delete("/v1/items/{item_id:path}", dependencies=only)
    def hide_item(item_id: ItemId) -> Response:
        """Never recommend an item, until it is put again. What was said of it stays."""
        serving.recommender.hide_item(item_id)
        return answer({"item_id": item_id, "hidden": True, "expires": None})

    @app.post("/v1/admin/reload", dependencies=only)
    def reload(request: ReloadIn) -> Response:
        """Load the bundle anew. It is checked first; where it is refused, the one before goes on."""
        try:
            before, after = serving.reload(request.bundle)
        except ArtifactError as error:
            return error_reply(409, error, [{"field": "bundle", "message": str(error.args[0])}])
        return answer({"bundle": after, "before": before})

    @app.put("/v1/users/{user_id:path}", dependencies=only)
    def put_user(user_id: ItemId, request: UserIn) -> Response:
        """Say what is known of a user, in place of what was said before. The next answer of any process knows it."""
        serving.recommender.put_user(user_id, request.profile)
        return answer({"user_id": user_id, "profile": request.profile})

    @app.delete("/v1/users/{user_id:path}", dependencies=only)
    def forget_user(user_id: ItemId) -> Response:
        """Delete all events, pages and impressions of a user, and what was said of them."""
        return answer({"user_id": user_id, "events": serving.recommender.forget(user_id)})

    @app.delete("/v1/sessions/{session_id:path}", dependencies=only)
    def forget_session(session_id: ItemId) -> Response:
        """Delete all events, pages and impressions of a visitor. Of 7 and "7", which a path cannot tell, of both."""
        digits = session_id.isdecimal() and session_id.isascii() and len(session_id) < 19
        both: list[int | str] = [session_id, int(session_id)] if digits else [session_id]
        events = sum(serving.recommender.forget(session_id=value) for value in both)
        return answer({"session_id": session_id, "events": events})


def _add_health(app: FastAPI, serving: Serving, counters: _Counters) -> None:
    @app.get("/health/live")
    def live() -> Response:
        """The process runs."""
        return answer({"status": "live"})

    @app.get("/health/ready")
    def ready() -> Response:
        """A request can be answered: one is."""
        recommender = serving.recommender
        recommender.check()
        return answer({"status": "ready", "bundle": recommender.bundle.name})

    @app.get("/metrics", response_class=PlainTextResponse)
    def metrics() -> Response:
        """Counts and times of this process, as Prometheus reads them."""
        if counters.metrics is None:
            assert counters.why_not is not None
            return error_reply(501, counters.why_not)
        text, kind = counters.metrics.text()
        return Response(text, media_type=kind)

    @app.get("/version")
    def version() -> Response:
        """What runs here: falconet, the bundle, its models and the data they learned from."""
        beside = None if serving.beside is None else serving.beside.bundle.name
        return answer({"falconet": falconet_version(), **serving.recommender.describe(), "beside": beside})


def _event(event: EventIn, number: int) -> Event:
    try:
        return Event(**{**event.model_dump(), "event_id": event.event_id or uuid.uuid4().hex})
    except DataError as error:
        raise DataError(f"`events.{number}`: {error}") from error
