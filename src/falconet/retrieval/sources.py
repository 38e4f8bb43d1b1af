"""One retriever or several as one: their lists are merged, and each of them scores every item of the merged list.

Shapes: R users, K candidates of each, S sources, L = S * K places of all lists.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from falconet.batch import Batch, Ragged
from falconet.errors import ConfigError
from falconet.retrieval.index import Index

FUSION = 60.0
"""What is added to a place before it is inverted (Cormack, Clarke and Büttcher, SIGIR 2009)."""


class Queries(Protocol):
    """What turns users into queries of an index: a retriever."""

    def user(self, batch: Batch) -> Tensor:
        """One query per row."""
        ...


@dataclass(frozen=True)
class Source:
    """A retriever and the index of its items.

    `name` is what its columns are called after; `weight` is how much its places count in the merged list: with 0 it
    names nothing by itself, but scores what the others name.
    """

    name: str
    retriever: Queries
    index: Index
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not (0 <= self.weight < math.inf):
            raise ConfigError(f"the weight of the retriever `{self.name}` is {self.weight}", hint="0 or more")


@dataclass(frozen=True)
class Found:
    """The candidates of some users, best first; code -1 where there are fewer than K.

    `scores` [R, K]: what they are ordered by, the retriever's scores or, of several, the merged ones; `of_sources`
    [R, K, S]: every source's own score, whether it named the item or not; `places` [R, K, S]: the item's place in each
    source's list, from 1, or `asked` + 1 where it is not in it; `asked`: how many items each source was asked for.
    """

    codes: Tensor
    scores: Tensor
    of_sources: Tensor
    places: Tensor
    asked: int

    @classmethod
    def of_one(cls, codes_RK: Tensor, scores_RK: Tensor) -> Found:
        """What a single retriever returned."""
        places_RK = _from_one(codes_RK.shape[1], codes_RK.device).expand_as(codes_RK)
        return cls(codes_RK, scores_RK, scores_RK[:, :, None], places_RK[:, :, None], codes_RK.shape[1])

    def of(self, row: int) -> Found:
        """Those of one user."""
        one = slice(row, row + 1)
        return Found(self.codes[one], self.scores[one], self.of_sources[one], self.places[one], self.asked)

    def take(self, keep_K: Tensor) -> Found:
        """The columns where `keep_K` is true."""
        return Found(
            self.codes[:, keep_K],
            self.scores[:, keep_K],
            self.of_sources[:, keep_K],
            self.places[:, keep_K],
            self.asked,
        )


@lru_cache(maxsize=16)
def _from_one(count: int, device: torch.device) -> Tensor:
    """1 to `count`, which many searches share."""
    with torch.inference_mode(False):
        return torch.arange(1, count + 1, device=device)


class Sources:
    """Retrievers that answer together.

    Several lists become one by reciprocal rank fusion: an item's score is the sum over the sources that name it of
    weight · 61 / (60 + place), divided by the sum of all weights, so 1 for the first of every list; ties by ascending
    code. No item comes twice, and every list gives its share.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = tuple(sources)
        if not self.sources:
            raise ConfigError("there is no retriever", hint="one at least finds the candidates")
        if len(set(self.names)) < len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise ConfigError(f"two retrievers are called `{twice}`", hint="give one of them another name")
        if not any(source.weight for source in self.sources):
            raise ConfigError("the weights of all retrievers are 0", hint="one at least must name candidates")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(source.name for source in self.sources)

    @property
    def first(self) -> Source:
        return self.sources[0]

    def __len__(self) -> int:
        """Number of items."""
        return len(self.first.index)

    def search(self, users: Batch, k: int, exclude: Ragged | None = None, include: Tensor | None = None) -> Found:
        """The best k candidates of every user. `exclude` and `include` are those of `Index.search`."""
        queries = [source.retriever.user(users) for source in self.sources]
        lists = [s.index.search(q, k, exclude, include) for s, q in zip(self.sources, queries, strict=True)]
        if len(self.sources) == 1:
            scores_RK, codes_RK = lists[0]
            return Found.of_one(codes_RK, scores_RK)
        each = [codes_RK for _, codes_RK in lists]
        codes_RK, scores_RK = fuse(each, [source.weight for source in self.sources], k)
        of_sources = [source.index.score(query, codes_RK) for source, query in zip(self.sources, queries, strict=True)]
        places = [_places(codes_RK, theirs_RK) for theirs_RK in each]
        return Found(codes_RK, scores_RK, torch.stack(of_sources, dim=2), torch.stack(places, dim=2), k)


def fuse(lists: Sequence[Tensor], weights: Sequence[float], k: int) -> tuple[Tensor, Tensor]:
    """Codes and merged scores of the best k items of several lists of codes [R, K], by reciprocal rank fusion.

    What only a list of weight 0 has is left out. Code -1 and score -inf where the lists have fewer than k items
    together. Scores are added up in float64 and rounded to float32, so that the order of the lists does not tell equal
    ones apart.
    """
    full = sum(weights) / (FUSION + 1)
    counted = [(x, weight) for x, weight in zip(lists, weights, strict=True) if weight]
    share_L = torch.cat(
        [weight / full / (FUSION + 1 + torch.arange(x.shape[1], dtype=torch.float64)) for x, weight in counted]
    ).to(lists[0].device)
    codes_RL, order_RL = torch.cat([x for x, _ in counted], dim=1).sort(dim=1, stable=True)
    share_RL = share_L[order_RL]
    new_RL = torch.ones_like(codes_RL, dtype=torch.bool)
    new_RL[:, 1:] = codes_RL[:, 1:] != codes_RL[:, :-1]
    item_RL = new_RL.long().cumsum(1) - 1  # equal codes stand side by side: the same place for all of them
    total_RL = torch.zeros_like(share_RL).scatter_add_(1, item_RL, share_RL)
    found_RL = torch.full_like(codes_RL, -1).scatter_(1, item_RL, codes_RL)
    scores_RL = total_RL.float().masked_fill_(found_RL < 0, -torch.inf)
    best_RL, places_RL = scores_RL.sort(dim=1, descending=True, stable=True)  # stable: ties stay by code
    width = min(k, best_RL.shape[1])
    return found_RL.gather(1, places_RL[:, :width]), best_RL[:, :width]


def _places(codes_RK: Tensor, list_RK: Tensor) -> Tensor:
    """Where each code stands in its user's list, from 1; one more than the list is long where it does not."""
    sorted_RK, order_RK = list_RK.sort(dim=1)
    found_RK = torch.searchsorted(sorted_RK, codes_RK).clamp_(max=list_RK.shape[1] - 1)
    there_RK = (sorted_RK.gather(1, found_RK) == codes_RK) & (codes_RK >= 0)
    return torch.where(there_RK, order_RK.gather(1, found_RK) + 1, list_RK.shape[1] + 1)
