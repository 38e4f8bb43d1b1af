"""Intervals, differences and segments."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from falconet.errors import DataError
from falconet.metrics.compare import by_segment, difference, interval

RNG = np.random.default_rng(0)
VALUES = RNG.exponential(size=400)


def test_the_interval_is_scipys_but_for_its_draws() -> None:
    want = stats.bootstrap((VALUES,), np.mean, n_resamples=9999, method="percentile", rng=1).confidence_interval
    assert interval(VALUES) == pytest.approx((want.low, want.high), abs=0.01)
    assert interval(VALUES) == interval(VALUES[::-1])
    assert interval(VALUES) != interval(VALUES, seed=1)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    samples = np.random.default_rng(2).exponential(size=(200, 100))
    held = [low <= 1 <= high for low, high in (interval(some) for some in samples)]
    assert 0.88 <= np.mean(held) <= 0.99


def test_many_users_need_no_more_memory_at_once() -> None:
    low, high = interval(np.random.default_rng(3).random(30_000))
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(1 / 12 / 30_000), rel=0.15)


def test_a_real_difference_is_seen_and_none_is_not() -> None:
    better = difference(VALUES + 0.1 + RNG.normal(0, 0.1, 400), VALUES)
    assert better.low > 0.08 and better.p == 1 / 500
    worse = difference(VALUES, VALUES + 0.1)
    assert worse.value == pytest.approx(-0.1) and worse.p == 1 / 500
    same = difference(VALUES, VALUES)
    assert (same.value, same.low, same.high, same.p) == (0, 0, 0, 1)
    noise = difference(VALUES + RNG.normal(0, 1, 400), VALUES)
    assert noise.low < 0 < noise.high and noise.p > 0.05


def test_p_is_about_that_of_a_paired_t_test() -> None:
    second = VALUES + RNG.normal(0.04, 0.4, 400)
    assert difference(second, VALUES).p == pytest.approx(stats.ttest_rel(second, VALUES).pvalue, abs=0.03)


def test_pairs_are_needed_and_no_users_are_no_figure() -> None:
    with pytest.raises(DataError, match="figures of 3 users against those of 2"):
        difference(VALUES[:3], VALUES[:2])
    assert math.isnan(difference(VALUES[:0], VALUES[:0]).p)
    assert all(math.isnan(x) for x in interval(VALUES[:0]))


def test_segments_share_out_the_users() -> None:
    found = by_segment(np.array([1.0, 2, 3]), np.array([1, 0, 1]), ["few", "many", "none"])
    assert {name: values.tolist() for name, values in found.items()} == {"few": [2], "many": [1, 3], "none": []}
    with pytest.raises(DataError, match="segments must be from 0 to 1, not 1 to 2"):
        by_segment(np.array([1.0, 2]), np.array([1, 2]), ["few", "many"])
    with pytest.raises(DataError, match="2 users have figures, 1 a segment"):
        by_segment(np.array([1.0, 2]), np.array([1]), ["few"])
