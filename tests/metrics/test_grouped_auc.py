"""GAUC: the definition's values, whatever the batches and the order."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from falconet.errors import DataError
from falconet.metrics.grouped import GroupedAUC

METRICS = GroupedAUC()
Row = tuple[int, int, bool]
"""Group, logit, target."""


def figure(rows: list[Row], size: int) -> float:
    groups, logits, targets = (torch.tensor([row[i] for row in rows]) for i in range(3))
    parts = zip(logits.float().split(size), targets.split(size), groups.split(size), strict=True)
    return METRICS.finish(METRICS.merge([METRICS.partial(*part) for part in parts]))["gauc"]


def by_definition(rows: list[Row]) -> float:
    weighted, weight = 0.0, 0
    for group in {group for group, *_ in rows}:
        own = [(logit, target) for g, logit, target in rows if g == group]
        if len({target for _, target in own}) == 2:
            weighted += len(own) * roc_auc_score([target for _, target in own], [logit for logit, _ in own])
            weight += len(own)
    return weighted / weight if weight else math.nan


@given(
    st.lists(st.tuples(st.integers(-3, 2**62), st.integers(-2, 2), st.booleans()), min_size=1, max_size=40)
    | st.lists(st.tuples(st.integers(0, 3), st.integers(-2, 2), st.booleans()), min_size=1, max_size=60),
    st.integers(1, 60),
)
def test_it_is_the_mean_of_groups_weighted_by_rows(rows: list[Row], size: int) -> None:
    want = by_definition(rows)
    assert figure(rows, size) == pytest.approx(want, abs=1e-12, nan_ok=True)
    assert math.isnan(want) or figure(rows, size) == figure(rows[::-1], 60)


def test_the_level_of_a_groups_scores_does_not_matter() -> None:
    assert figure([(1, 0, False), (1, 1, True), (2, 10, False), (2, 11, True)], 1) == 1.0


def test_no_rows_are_no_figure_and_groups_are_whole_numbers() -> None:
    assert math.isnan(METRICS.finish(METRICS.merge([]))["gauc"])
    with pytest.raises(DataError, match=r"groups \(2,\) \(torch.float32\) must be one whole number per row of 2"):
        METRICS.partial(torch.zeros(2), torch.zeros(2), torch.zeros(2))
