"""What a recommender answers with, as plain values that become JSON.

An answer has many items, and frozen ones take three times as long to make.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from falconet.serve.events import Id
from falconet.serve.stages import Stage


@dataclass
class Item:
    """An item as people see it. `attributes` are plain values, such as genres."""

    item_id: Id
    title: str
    attributes: dict[str, Any]


@dataclass
class SimilarItem(Item):
    """An item near another; `similarity`, from -1 to 1, is the cosine of their vectors.

    Of models without vectors it is what having taken the one adds to the score of the other.
    """

    similarity: float


@dataclass(frozen=True)
class FeatureOf:
    """A feature of the ranker for one item; without it the item would have this score and place.

    `value`: of a number, None where it is codes.
    """

    name: str
    value: float | None
    score: float
    rank: int


@dataclass(frozen=True)
class Closer:
    """Why an item is where it is: what the ranker reads, what counts most first, and the nearest items of the past.

    `rank` of a feature counts among the `candidates`, by the score alone.
    """

    features: list[FeatureOf]
    near: list[SimilarItem]
    candidates: int


@dataclass
class Named:
    """What one of several retrievers says of an item: its score, and its place in the list, None where it has none."""

    score: float
    rank: int | None


@dataclass
class RecommendedItem(Item):
    """One recommendation. Ranks count from 1; `score` is the ranker's probability, without a ranker the retriever's.

    `source`: the stage that found it, "retriever" or "popular"; `because`: the item of the history the reason names.
    Of several retrievers `retriever_score` and `retriever_rank` are those of their merged list, and `retrievers` has
    what each of them says.
    """

    retriever_score: float
    retriever_rank: int
    score: float
    rank: int
    source: str
    reason: str
    because: Id | None
    retrievers: dict[str, Named]


@dataclass
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
    `variant`: the one of the request's scenario that this person has. `degraded`: what the answer had to do without,
    because it took too long or was away: "store" (what is known of the person since training), "retrieve" (then it is
    what is popular), "rank" (then the order is the retrievers').
    """

    items: list[RecommendedItem]
    cold_start: bool
    recommendation_id: str
    bundle: str
    history: list[Met]
    funnel: dict[str, int]
    took_ms: dict[str, float]
    variant: str | None = None
    degraded: list[Stage] = field(default_factory=list)
