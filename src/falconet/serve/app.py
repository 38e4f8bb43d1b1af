"""The HTTP API and the page, as a FastAPI application over a Recommender.

Checks of shape and size are here, all meaning is in `recommender.py`. Every answer is JSON, errors too:
{"error": {"message", "hint", "fields": [{"field", "message"}]}}.
"""

from __future__ import annotations

import hmac
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from importlib.resources import files
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from falconet.errors import ConfigError, DataError, FalconetError
from falconet.io.artifact import falconet_version
from falconet.serve.events import ACCEPTED, DUPLICATE, Event, check_id
from falconet.serve.filters import LONGEST
from falconet.serve.recommender import Recommender

MAX_K = 500
MAX_BODY = 1_000_000  # bytes
MAX_EVENTS = 1000
MAX_HISTORY = 1000
MAX_FILTER = 10_000  # ids in `exclude_ids` or `include_ids`
MAX_TEXT = 200  # characters of a search
MAX_REQUESTS = 100  # of a batch

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}


def _id(value: object) -> int | str:
    try:
        check_id(value, "id")
    except DataError as error:
        raise ValueError(str(error)) from error
    assert isinstance(value, (int, str))
    return value


Id = Annotated[int | str, PlainValidator(_id), WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}]})]
Count = Annotated[int, Query(ge=1, le=MAX_K)]
Text = Annotated[str, Query(max_length=MAX_TEXT)]
Expression = Annotated[str, Field(min_length=1, max_length=LONGEST)]
ItemId = Annotated[str, Path(min_length=1, max_length=256)]


def _value(value: object) -> object:
    if value is not None and not isinstance(value, (int, float, str)):
        raise ValueError("must be a number, a string, true, false or null")
    return value


Value = Annotated[
    int | float | str | bool | None,
    PlainValidator(_value),
    WithJsonSchema({"type": ["number", "string", "boolean", "null"]}),
]


class AskIn(BaseModel):
    """Who asks, and how items are ordered."""

    model_config = ConfigDict(extra="forbid")
    user_id: Id | None = None
    session_id: Id | None = None
    history: list[Id] | None = Field(default=None, max_length=MAX_HISTORY, description="item ids, oldest first")
    context: dict[str, Value] = Field(default={}, max_length=50)
    boosts: dict[Expression, float] = Field(
        default={}, max_length=20, description="filter to number, added to the score that items are ordered by"
    )
    parameters: dict[str, Value | list[Id]] = Field(
        default={}, max_length=50, description="values for the $names in `filter` and `boosts`"
    )
    diversity: float = Field(default=0, ge=0, le=1, description="0: the best items; 1: items unlike each other")
    temperature: float = Field(default=0, ge=0, le=1000, description="above 0 the order is drawn, by `seed`")
    seed: int = Field(default=0, ge=0, lt=2**63)
    explain: bool = Field(default=True, description="whether each item has a reason")


class RecommendIn(AskIn):
    """Who asks, for how many items, and which."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"user_id": 42, "k": 10},
                {"history": [1, 50, 260], "k": 10},
                {"user_id": 42, "filter": "$genre in genres and year >= 1990", "parameters": {"genre": "Comedy"}},
            ]
        },
    )
    k: int = Field(default=10, ge=1, le=MAX_K)
    exclude_seen: bool | list[str] = Field(
        default=True, description='or the types of events that count; "training" is what training knew'
    )
    exclude_ids: list[Id] = Field(default=[], max_length=MAX_FILTER)
    include_ids: list[Id] | None = Field(default=None, max_length=MAX_FILTER)
    filter: Expression | None = Field(default=None, description="an expression over the columns of the items")


class RankIn(AskIn):
    """Who asks, and the items to put in order."""

    item_ids: list[Id] = Field(min_length=1, max_length=MAX_K)


class NextIn(BaseModel):
    """Of which answer the next page is wanted."""

    model_config = ConfigDict(extra="forbid")
    recommendation_id: str = Field(min_length=1, max_length=256)
    k: int | None = Field(default=None, ge=1, le=MAX_K, description="as before where it is not given")


class BatchIn(BaseModel):
    """Several requests at once."""

    model_config = ConfigDict(extra="forbid")
    requests: list[RecommendIn] = Field(min_length=1, max_length=MAX_REQUESTS)


class FilterIn(BaseModel):
    """A filter to count the items of."""

    model_config = ConfigDict(extra="forbid")
    filter: Expression
    parameters: dict[str, Value | list[Id]] = Field(default={}, max_length=50)


class ItemIn(BaseModel):
    """Whether an item may be recommended, and until when, in microseconds since 1970, UTC."""

    model_config = ConfigDict(extra="forbid")
    hidden: bool = False
    expires: int | None = Field(default=None, ge=0, lt=2**63)


class EventIn(BaseModel):
    """One event. Without `event_id` it cannot be sent twice safely; `time` is in microseconds since 1970, UTC."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"event_id": "a-1", "user_id": 42, "item_id": 260, "type": "like"}]},
    )
    event_id: str | None = Field(default=None, min_length=1, max_length=256)
    user_id: Id | None = None
    session_id: Id | None = None
    item_id: Id
    type: str = Field(min_length=1, max_length=256, description="view, click, like, hide, rating, …")
    value: float | None = Field(default=None, allow_inf_nan=False)
    time: int | None = Field(default=None, ge=0, lt=2**63)
    recommendation_id: str | None = Field(
        default=None, min_length=1, max_length=256, description="of the answer the person saw the item in"
    )


class EventsIn(BaseModel):
    """A batch of events."""

    model_config = ConfigDict(extra="forbid")
    events: list[EventIn] = Field(min_length=1, max_length=MAX_EVENTS)


class ItemOut(BaseModel):
    item_id: int | str
    title: str
    attributes: dict[str, Any]


class SimilarOut(ItemOut):
    similarity: float


class RecommendedOut(ItemOut):
    retriever_score: float
    retriever_rank: int
    score: float
    rank: int
    source: str
    reason: str
    because: int | str | None


class MetOut(BaseModel):
    item_id: int | str
    title: str
    type: str


class RecommendOut(BaseModel):
    items: list[RecommendedOut]
    cold_start: bool
    recommendation_id: str
    bundle: str
    history: list[MetOut]
    funnel: dict[str, int]
    took_ms: dict[str, float]


class EventsOut(BaseModel):
    """`outcomes`: `accepted`, `duplicate` or a reason, for each event in order."""

    accepted: int
    duplicates: int
    rejected: int
    outcomes: list[str]


def create_app(recommender: Recommender, token: str | None = None) -> FastAPI:
    """The application. It answers from one bundle; any number of threads and processes may serve it.

    What changes items or forgets people needs the `token`, as `Authorization: Bearer TOKEN`; without one it is refused.
    """
    app = FastAPI(
        title="falconet",
        version=falconet_version(),
        description="What should this person see next?",
        docs_url=None,  # those pages load scripts from other servers
        redoc_url=None,
    )
    app.add_middleware(_Guard)
    _add_errors(app)
    _add_page(app)
    _add_recommendations(app, recommender)
    _add_lookups(app, recommender)
    _add_admin(app, recommender, token)
    _add_health(app, recommender)
    return app


def _add_recommendations(app: FastAPI, recommender: Recommender) -> None:
    @app.post("/v1/recommend", response_model=RecommendOut)
    def recommend(request: RecommendIn) -> Response:
        """The best items for somebody. Unknown people get what is popular, with `cold_start` set."""
        return _answer(recommender.recommend(**request.model_dump()))

    @app.post("/v1/recommend/next", response_model=RecommendOut)
    def next_page(request: NextIn) -> Response:
        """More items for an answer, none of which its pages have shown; what happened since is known."""
        return _answer(recommender.next(request.recommendation_id, request.k))

    @app.post("/v1/recommend/batch", response_model=list[RecommendOut])
    def batch(request: BatchIn) -> Response:
        """The answers to several requests, in their order."""
        return _answer([recommender.recommend(**one.model_dump()) for one in request.requests])

    @app.post("/v1/rank", response_model=RecommendOut)
    def rank(request: RankIn) -> Response:
        """The given items in the order that suits somebody, with their scores."""
        return _answer(recommender.rank(**request.model_dump()))

    @app.post("/v1/events", response_model=EventsOut)
    def events(request: EventsIn) -> Response:
        """Take in what people did. The next answer to those people, from any process, knows it."""
        outcomes = recommender.add_events([_event(event, i) for i, event in enumerate(request.events)])
        accepted, duplicates = outcomes.count(ACCEPTED), outcomes.count(DUPLICATE)
        rejected = len(outcomes) - accepted - duplicates
        return _answer({"accepted": accepted, "duplicates": duplicates, "rejected": rejected, "outcomes": outcomes})


def _add_lookups(app: FastAPI, recommender: Recommender) -> None:
    @app.get("/v1/similar/{item_id:path}", response_model=list[SimilarOut])  # a path: ids may have a slash
    def similar(item_id: ItemId, k: Count = 10) -> Response:
        """The items nearest to one."""
        try:
            return _answer(recommender.similar(item_id, k))
        except DataError as error:
            return _error(404, error)

    @app.post("/v1/filter")
    def count(request: FilterIn) -> Response:
        """How many items a filter holds for."""
        return _answer({"items": recommender.count(request.filter, request.parameters)})

    @app.get("/v1/items", response_model=list[ItemOut])
    def items(search: Text = "", k: Count = 20) -> Response:
        """Items whose title contains the text, the best known first."""
        return _answer(recommender.search_items(search, k))

    @app.get("/v1/users")
    def users(search: Text = "", k: Count = 20) -> Response:
        """Ids that start with the text, and a few people worth trying."""
        found = recommender.search_users(search, k) if search else []
        return _answer({"users": found, "samples": recommender.sample_users()})

    @app.get("/v1/start", response_model=list[ItemOut])
    def start() -> Response:
        """Twelve well-known items, unlike each other, for a new visitor to choose from."""
        return _answer(recommender.start_items())


def _add_admin(app: FastAPI, recommender: Recommender, token: str | None) -> None:
    def trusted(authorization: Annotated[str, Header(max_length=1000)] = "") -> None:
        if token is None:
            raise HTTPException(403, "this server takes no such calls; it was started without a token")
        if not hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
            raise HTTPException(401, "the token is missing or wrong", {"www-authenticate": "Bearer"})

    only = [Depends(trusted)]

    @app.put("/v1/items/{item_id:path}", dependencies=only)
    def put_item(item_id: ItemId, request: ItemIn) -> Response:
        """Say whether an item may be recommended, and until when. The next answer of any process knows it."""
        recommender.put_item(item_id, hidden=request.hidden, expires=request.expires)
        return _answer({"item_id": item_id, "hidden": request.hidden, "expires": request.expires})

    @app.delete("/v1/items/{item_id:path}", dependencies=only)
    def hide_item(item_id: ItemId) -> Response:
        """Never recommend an item, until it is put again."""
        recommender.put_item(item_id, hidden=True)
        return _answer({"item_id": item_id, "hidden": True, "expires": None})

    @app.delete("/v1/users/{user_id:path}", dependencies=only)
    def forget_user(user_id: ItemId) -> Response:
        """Delete all events, pages and impressions of a user, and what was said of them."""
        return _answer({"user_id": user_id, "events": recommender.forget(user_id)})

    @app.delete("/v1/sessions/{session_id:path}", dependencies=only)
    def forget_session(session_id: ItemId) -> Response:
        """Delete all events, pages and impressions of a visitor. Of 7 and "7", which a path cannot tell, of both."""
        digits = session_id.isdecimal() and session_id.isascii() and len(session_id) < 19
        both: list[int | str] = [session_id, int(session_id)] if digits else [session_id]
        events = sum(recommender.forget(session_id=value) for value in both)
        return _answer({"session_id": session_id, "events": events})


def _add_health(app: FastAPI, recommender: Recommender) -> None:
    @app.get("/health/live")
    def live() -> Response:
        """The process runs."""
        return _answer({"status": "live"})

    @app.get("/health/ready")
    def ready() -> Response:
        """A request can be answered: one is."""
        answer = recommender.recommend(session_id="health", k=1)
        return _answer({"status": "ready", "bundle": answer.bundle})

    @app.get("/version")
    def version() -> Response:
        """What runs here: falconet, the bundle, its models and the data they learned from."""
        return _answer({"falconet": falconet_version(), **recommender.describe()})


def _add_page(app: FastAPI) -> None:
    folder = files("falconet.serve") / "page"

    def add(route: str, content: bytes, kind: str) -> None:
        @app.get(route, include_in_schema=False)
        def page() -> Response:
            return Response(content, media_type=kind)

    for route, (name, kind) in _PAGE.items():
        add(route, (folder / name).read_bytes(), kind)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> Response:
        fields = [_field(mistake) for mistake in error.errors()]
        return _error(422, f"`{fields[0]['field']}`: {fields[0]['message']}", fields=fields)

    @app.exception_handler(FalconetError)
    def refused(request: Request, error: FalconetError) -> Response:
        return _error(422 if isinstance(error, (ConfigError, DataError)) else 500, error)

    @app.exception_handler(HTTPException)
    def http(request: Request, error: HTTPException) -> Response:
        answer = _error(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
        answer.headers.update(error.headers or {})  # after 405: what is allowed
        return answer

    @app.exception_handler(Exception)
    def broken(request: Request, error: Exception) -> Response:
        answer = _error(500, "this request broke something here; the log of the server says what")
        answer.headers.update(_HEADERS)  # this one is made outside of the guard
        return answer


def _event(event: EventIn, number: int) -> Event:
    try:
        return Event(**{**event.model_dump(), "event_id": event.event_id or uuid.uuid4().hex})
    except DataError as error:
        raise DataError(f"`events.{number}`: {error}") from error


def _field(mistake: Mapping[str, Any]) -> dict[str, str]:
    """`k` or `events.3.item_id`, the place in what the caller wrote, and what is wrong with it."""
    location, message = mistake["loc"], mistake["msg"].removeprefix("Value error, ")
    if mistake["type"] == "json_invalid":  # its place is a number of characters
        return {"field": str(location[0]), "message": f"no JSON from character {location[1]} on"}
    if mistake["type"] == "model_attributes_type":
        message = "must be a JSON object, sent as content-type application/json"
    return {"field": ".".join(str(part) for part in location[1:]) or str(location[0]), "message": message}


def _answer(content: Any, status: int = 200) -> Response:
    """Plain values and our dataclasses as JSON. Not FastAPI's encoder, which would check every value again."""
    body = json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=_plain)
    return Response(body.encode(errors="replace"), status_code=status, media_type="application/json")


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def _error(status: int, error: FalconetError | str, fields: Sequence[dict[str, str]] = ()) -> Response:
    message, hint = (error.args[0], error.hint) if isinstance(error, FalconetError) else (error, None)
    return _answer({"error": {"message": message, "hint": hint, "fields": list(fields)}}, status)


class _Guard:
    """Refuses bodies above MAX_BODY before they are parsed, and puts the security headers on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            await send(message)

        body = b""
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":  # the caller has gone
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > MAX_BODY:
                await _error(413, f"the body has more than {MAX_BODY:,} bytes")(scope, receive, guarded)
                return
        parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return parts.pop() if parts else await receive()

        await self.app(scope, replay, guarded)
