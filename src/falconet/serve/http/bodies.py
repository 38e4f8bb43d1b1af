"""The bodies of requests and answers: what may be in them, and how much of it."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema

from falconet.errors import DataError
from falconet.serve.events import check_id
from falconet.serve.filters import LONGEST

MAX_K = 500
MAX_BODY = 1_000_000  # bytes
BODY_SECONDS = 10.0  # in which all of a body must come
MAX_EVENTS = 1000
MAX_HISTORY = 1000
MAX_FILTER = 10_000  # ids in `exclude_ids` or `include_ids`
MAX_TEXT = 200  # characters of a search
MAX_COLUMNS = 200  # of an item or a user of whom something is said
MAX_REQUESTS = 100  # of a batch


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


Said = Value | list[Value]


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
                {"user_id": 42, "scenario": "home"},
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
    scenario: str | None = Field(
        default=None, min_length=1, max_length=256, description="where the list is shown, of an A/B test"
    )


class WhyIn(RecommendIn):
    """A request for a list, and one item of it to look at."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"user_id": 42, "k": 10, "item_id": 260}]}
    )
    item_id: Id


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
    """What an item is like, whether it may be recommended, and until when, in microseconds since 1970, UTC."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"features": {"title": "A new film (2026)", "genres": ["Drama"], "year": 2026}},
                {"hidden": True},
            ]
        },
    )
    hidden: bool = False
    expires: int | None = Field(default=None, ge=0, lt=2**63)
    features: dict[str, Said] | None = Field(
        default=None,
        max_length=MAX_COLUMNS,
        description="title and attributes by name; null leaves what was said before, {} takes it back",
    )


class UserIn(BaseModel):
    """What is known of a user: values by column of the users' table."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"profile": {"age": 31}}]})
    profile: dict[str, Said] = Field(max_length=MAX_COLUMNS)


class ReloadIn(BaseModel):
    """Which bundle is to be loaded: the one in the folder that is served, or in a folder beside it."""

    model_config = ConfigDict(extra="forbid")
    bundle: str | None = Field(default=None, min_length=1, max_length=256)


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


class FeatureOut(BaseModel):
    name: str
    value: float | None
    score: float
    rank: int


class WhyOut(BaseModel):
    """What the ranker reads of an item, that without which the score changes most first, and the past that is near."""

    features: list[FeatureOut]
    near: list[SimilarOut]
    candidates: int


class NamedOut(BaseModel):
    score: float
    rank: int | None


class RecommendedOut(ItemOut):
    retriever_score: float
    retriever_rank: int
    score: float
    rank: int
    source: str
    reason: str
    because: int | str | None
    retrievers: dict[str, NamedOut]


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
    variant: str | None
    degraded: list[str]


class CompareOut(BaseModel):
    """The answers of two bundles to one request, that of the served one first."""

    answers: list[RecommendOut]


class EventsOut(BaseModel):
    """`outcomes`: `accepted`, `duplicate` or a reason, for each event in order."""

    accepted: int
    duplicates: int
    rejected: int
    outcomes: list[str]


class FieldOut(BaseModel):
    field: str
    message: str


class WrongOut(BaseModel):
    message: str
    hint: str | None
    fields: list[FieldOut]


class ErrorOut(BaseModel):
    """Why a request is refused; `fields` are those that are wrong, by their place in what was sent."""

    error: WrongOut
