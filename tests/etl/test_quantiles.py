"""Quantiles from counts: numpy's where there are few values, a stated error where there are many; any cut is equal."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falconet.etl import quantiles
from falconet.testing.contracts import cut, same

FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-3, 3).map(float)


def state_of(values: list[float | None] | np.ndarray, edges: tuple[int, ...] = ()) -> pl.DataFrame:
    """The merged state of a column `x` in parts."""
    frame = pl.DataFrame({"x": values}, schema={"x": pl.Float64})
    return quantiles.merge([quantiles.counts(part.lazy(), "x").collect() for part in cut(frame, edges)])


@given(st.lists(FLOATS | st.none() | st.just(float("nan")), max_size=30), st.lists(st.integers(0, 30), max_size=3))
@settings(max_examples=30, deadline=None)
def test_few_values_have_the_quantiles_of_numpy_for_any_cut(values: list[float | None], edges: list[int]) -> None:
    state = state_of(values, tuple(sorted(edges)))
    same(state, state_of(values))
    known = [x for x in values if x is not None and x == x]
    shares = [0.0, 0.1, 0.25, 0.5, 0.9, 1.0]
    if not known:
        assert (quantiles.quantiles(state, shares), quantiles.median(state)) == ([], None)
    elif max(map(abs, known)) < 1e300:
        assert quantiles.quantiles(state, shares) == np.quantile(known, shares).tolist()
        assert quantiles.median(state) == np.median(known)


@pytest.mark.parametrize("parts", [1, 2, 7, 50])
def test_the_median_of_skewed_values_does_not_depend_on_the_parts(parts: int) -> None:
    random = np.random.default_rng(0)
    x = random.permutation(np.concatenate([random.exponential(size=900), random.normal(1000, 1, 100)]))
    edges = tuple(range(0, 1000, 1000 // parts))[1:]
    assert quantiles.median(state_of(x, edges)) == np.median(x)


def test_too_many_values_are_binned_within_a_thousandth_for_any_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("falconet.etl.quantiles.EXACT", 100)
    x = np.random.default_rng(1).lognormal(0, 5, 3000) * np.random.default_rng(2).choice([-1, 1, 0], 3000)
    whole = state_of(x)
    for edges in [(50,), (1500,), (10, 20, 2990)]:
        same(state_of(x, edges), whole)
    assert whole["binned"].all()
    shares = np.linspace(0, 1, 101)
    np.testing.assert_allclose(quantiles.quantiles(whole, shares.tolist()), np.quantile(x, shares), rtol=1e-3)


def test_binning_twice_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("falconet.etl.quantiles.EXACT", 3)
    extremes = [1.0, -1.0, 1.7976931348623157e308, 2.3e-308, 5e-324, float("inf"), -float("inf"), 0.0, -0.0, 1.5]
    state = state_of(extremes)
    same(quantiles.merge([state]), state)
    assert state["value"].to_list()[0] == -float("inf")
    assert state.filter(pl.col("value") == 0)["count"].to_list() == [3]


def test_only_the_keys_with_too_many_values_are_binned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("falconet.etl.quantiles.EXACT", 3)
    frame = pl.DataFrame({"k": [1, 1, 1, 1, 2, 2, None, None], "x": [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 7.0, None]})
    parts = [quantiles.counts(part.lazy(), "x", ["k"]).collect() for part in cut(frame, (2, 5))]
    state = quantiles.merge(parts, ["k"])
    same(state, quantiles.counts(frame.lazy(), "x", ["k"]).collect())
    assert dict(state.group_by("k").agg(pl.col("binned").all()).rows()) == {1: True, 2: False, None: False}
    found = quantiles.of_keys(state, {"median": 0.5, "q25": 0.25}, ["k"])
    assert found.columns == ["k", "median", "q25"]
    assert {(2, 1.5, 1.25), (None, 7.0, 7.0)} < set(found.rows())


def test_lists_and_integers_are_taken_by_their_elements() -> None:
    lists = pl.LazyFrame({"x": [[1, 5], [], None, [None, 9]]})
    assert quantiles.median(quantiles.counts(lists, "x").collect()) == 5.0
    small = pl.LazyFrame({"x": pl.Series([100, 120, 127, 127], dtype=pl.Int8)})
    assert quantiles.median(quantiles.counts(small, "x").collect()) == 123.5


def test_infinities_are_values() -> None:
    inf = float("inf")
    assert quantiles.quantiles(state_of([1.0, inf, inf]), [0.0, 0.25, 0.5, 1.0]) == [1.0, inf, inf, inf]
    assert quantiles.median(state_of([-inf, -inf, 3.0])) == -inf
    assert quantiles.median(state_of([1.7e308, 1.7e308 * 1.01])) == pytest.approx(1.7085e308)


@pytest.mark.parametrize("zeros", [[0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0]])
def test_the_two_zeros_are_one_value(zeros: list[float]) -> None:
    assert str(state_of([*zeros, 1.0])["value"].to_list()) == "[0.0, 1.0]"
