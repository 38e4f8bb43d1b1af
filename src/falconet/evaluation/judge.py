"""One model's lists for all tested users, some users at a time: are they right, what are they like, and for whom.

What is kept of a user is a few numbers, so memory grows neither with the catalogue times the users nor with the lists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from falconet.batch import Ragged
from falconet.evaluation.recommend import Recommends
from falconet.evaluation.segments import Segments
from falconet.evaluation.tables import Items, Users
from falconet.metrics.compare import Difference, interval
from falconet.metrics.exact import mean
from falconet.metrics.lists import ListMetrics
from falconet.metrics.ranking import Divisor, RankingMetrics
from falconet.progress import progress
from falconet.schema import Tag

DIGITS = 6  # of every figure in a report
USER_ROWS = 256  # users scored at once
STATES = 8  # states of lists kept apart, each of which counts the whole catalogue
WIDEST = 1024  # values of a list column that diversity looks at

Figure = dict[str, float | None]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Judged:
    """A model's figures as they stand in a report, and the values of every user that models are compared by."""

    figures: dict[str, Any]
    per_user: Mapping[str, Floats]


class Judge:
    """Measures models on the same users by the same metrics."""

    def __init__(
        self, users: Users, items: Items, k: int, ks: tuple[int, ...], *, map_by: Divisor, recall_by: Divisor
    ) -> None:
        self.users, self.k, self.ks = users, k, ks
        self.segments = Segments.of(users, items)
        self.ranking = RankingMetrics(ks, map_by=map_by, recall_by=recall_by)
        self.in_segment = RankingMetrics((k,), recall_by=recall_by)
        self.lists = ListMetrics((k,), items.codes, items.counts, attribute_vectors(items))
        self.compared = (f"ndcg@{k}", f"recall@{k}")

    def judge(self, model: Recommends, title: str) -> Judged:
        """The figures of one model."""
        found: dict[str, list[Any]] = {"ranking": [], "lists": [], **{name: [] for name in self.segments.items}}
        with progress(f"evaluating {title}", len(self.users), "users") as task:
            for start in range(0, len(self.users), USER_ROWS):
                some = self.users[start : start + USER_ROWS]
                _, codes = model.search(some.features, self.ks[-1], some.seen)
                found["ranking"].append(self.ranking.partial(codes, some.relevant, some.unknown))
                found["lists"].append(self.lists.partial(codes[:, : self.k]))
                if len(found["lists"]) == STATES:
                    found["lists"] = [self.lists.merge(found["lists"])]
                for name in self.segments.items:
                    relevant = self.segments.relevant(name, some.relevant)
                    found[name].append(self.in_segment.partial(codes, relevant))
                task.advance(len(some))
        values = self.ranking.per_user(self.ranking.merge(found["ranking"]))
        lists = self.lists.merge(found["lists"])
        recall = f"recall@{self.k}"
        figures = {
            "ranking": {name: mean_figure(x) for name, x in values.items()},
            "lists": {name: rounded(x) for name, x in self.lists.finish(lists).items()},
            "users": {
                segment: {name: mean_figure(values[name][flags]) for name in self.compared}
                for segment, flags in self.segments.users.items()
            },
            "items": {
                segment: {
                    recall: mean_figure(self.in_segment.per_user(self.in_segment.merge(found[segment]))[recall]),
                    "share": rounded(self.segments.share(segment, lists[f"shown@{self.k}"][0])),
                }
                for segment in self.segments.items
            },
        }
        return Judged(figures, {name: values[name] for name in self.compared})


def attribute_vectors(items: Items) -> Tensor | None:
    """What diversity compares: 1 for every value of an item's list columns (such as genres); None without any."""
    columns = [
        column
        for column in items.schema.select(Tag.ITEM, Tag.CATEGORICAL)
        if column.list is not None and column.cardinality is not None and column.cardinality <= WIDEST
    ]
    vectors = []
    for column in columns:
        values = items.features.features[column.name]
        if isinstance(values, Ragged):
            vector = torch.zeros(len(items.codes), column.cardinality or 0)
            vector[values.row_of_value(), values.values.long()] = 1.0
            vectors.append(vector)
    return torch.cat(vectors, dim=1) if vectors else None


def mean_figure(values: Floats) -> Figure:
    """The mean of one value per user, and its 95 % interval."""
    low, high = interval(values)
    return {"value": rounded(mean(values)), "low": rounded(low), "high": rounded(high)}


def difference_figure(difference: Difference) -> Figure:
    """A difference of two models as it stands in a report."""
    return {name: rounded(getattr(difference, name)) for name in ("value", "low", "high", "p")}


def rounded(value: float | None) -> float | None:
    """As it stands in a report: so many digits; None where there is no figure."""
    return None if value is None or math.isnan(value) else round(value, DIGITS)
