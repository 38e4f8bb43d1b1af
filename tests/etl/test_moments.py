"""Exact sums: what Python's fractions give, rounded once, for any cut."""

from __future__ import annotations

import math
from fractions import Fraction

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falconet.errors import DataError, SchemaError
from falconet.etl import moments
from falconet.testing.contracts import cut, same

TRICKY = [0.0, -0.0, 5e-324, -2.3e-308, 0.1, 2.0**53, -(2.0**53), 1.6e9 + 1, 1e300, -1e300, 127.99, 128.0]
FLOATS = st.sampled_from(TRICKY) | st.floats(-1e306, 1e306) | st.none() | st.just(math.nan)
INTEGERS = st.sampled_from([2**53 + 1, -(2**53) - 1, 2**31, -(2**31) - 1, 0]) | st.integers(-(2**60), 2**60) | st.none()
EDGES = st.lists(st.integers(0, 30), max_size=3)


def state_of(frame: pl.DataFrame, edges: list[int], *, squares: bool = True) -> pl.DataFrame:
    """The merged state of the column `x` by the key `k`, in parts."""
    parts = cut(frame, sorted(edges))
    return moments.merge([moments.sums(part.lazy(), "x", ["k"], squares=squares).collect() for part in parts], ["k"])


def check(frame: pl.DataFrame, edges: list[int], *, integer: bool) -> None:
    state = state_of(frame, edges)
    same(state, state_of(frame, []))
    for row in moments.finish(state, ["k"], integer=integer).to_dicts():
        values = [Fraction(x) for k, x in frame.rows() if k == row["k"] and x is not None and x == x]
        n, total = len(values), sum(values)
        assert row["count"] == n
        assert row["sum"] == (total if integer else float(total))
        assert row["mean"] == float(total / n)
        if n == 1:
            assert (row["var"], row["std"]) == (None, None)
        else:
            var = sum((x - total / n) ** 2 for x in values) / (n - 1)
            assert row["var"] == (float(var) if var < Fraction(2) ** 1023 else math.inf)
            assert row["std"] is not None
            if 1e-300 < row["var"] < math.inf:
                assert row["std"] == math.sqrt(row["var"])


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), FLOATS), max_size=30), EDGES)
@settings(max_examples=30, deadline=None)
def test_floats(rows: list[tuple[str | None, float | None]], edges: list[int]) -> None:
    check(pl.DataFrame(rows, schema={"k": pl.String, "x": pl.Float64}, orient="row"), edges, integer=False)


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), INTEGERS), max_size=7), EDGES)
@settings(max_examples=30, deadline=None)
def test_integers(rows: list[tuple[str | None, int | None]], edges: list[int]) -> None:
    check(pl.DataFrame(rows, schema={"k": pl.String, "x": pl.Int64}, orient="row"), edges, integer=True)


@pytest.mark.parametrize(
    ("values", "dtype", "total", "mean", "var"),
    [
        ([100] * 4, pl.Int8, 400, 100.0, 0.0),
        ([60000, 60001, 60002, 60003], pl.Int32, 240006, 60001.5, 5 / 3),
        ([16777216.0, 1.0], pl.Float32, 16777217.0, 8388608.5, 16777215.0**2 / 2),
        ([2**64 - 1, 2**64 - 1, 2**64 - 3, None], pl.UInt64, None, 2.0**64, 4 / 3),
        ([2**63 - 1, -(2**63)], pl.Int64, -1, -0.5, (2.0**64 - 1) ** 2 / 2),
        ([True, False, True, True], pl.Boolean, 3, 0.75, 0.25),
    ],
)
def test_no_width_overflows(values: list[int], dtype: pl.DataType, total: int | None, mean: float, var: float) -> None:
    state = moments.sums(pl.LazyFrame({"x": values}, schema={"x": dtype}), "x", squares=True).collect()
    found = moments.finish(state)
    assert found["mean"].item() == mean
    assert found["var"].item() == var
    if total is not None:
        assert moments.finish(state, integer=moments.is_integer(dtype()))["sum"].item() == total


def test_digits_of_large_numbers_do_not_cancel() -> None:
    state = moments.sums(pl.LazyFrame({"x": [1.6e9, 1.6e9 + 1, 1.6e9 + 2, 1.6e9 + 3]}), "x", squares=True).collect()
    assert moments.finish(state)["std"].item() == 1.2909944487358056


def test_a_sum_beyond_64_bits_is_refused_by_name() -> None:
    state = moments.sums(pl.LazyFrame({"x": [2**63 - 1, 1]}), "x").collect()
    with pytest.raises(DataError, match="the sum of `x` does not fit 64 bits"):
        moments.finish(state, integer=True, where="the sum of `x`")


def test_infinities_reach_sum_and_mean_and_leave_no_variance() -> None:
    inf = math.inf
    frame = pl.DataFrame({"k": ["a", "a", "b", "b", "c", "c", "d"], "x": [1.0, inf, -inf, -inf, inf, -inf, 3.0]})
    found = moments.finish(state_of(frame, [1, 3]), ["k"])
    assert found["count"].to_list() == [2, 2, 2, 1]
    assert found["sum"].to_list() == [inf, -inf, None, 3.0]
    assert found["mean"].to_list() == [inf, -inf, None, 3.0]
    assert found["var"].to_list() == [None, None, None, None]
    assert moments.finish(moments.finite(state_of(frame, []).lazy()).collect(), ["k"])["sum"].to_list() == [1.0, 3.0]


def test_sums_too_large_for_a_float_are_infinite() -> None:
    state = moments.sums(pl.LazyFrame({"x": [-1.7e308, -1.7e308]}), "x", squares=True).collect()
    assert moments.finish(state).row(0) == (2, -math.inf, -1.7e308, 0.0, 0.0)


def test_nothing_has_no_rows_and_the_right_types() -> None:
    state = moments.sums(pl.LazyFrame({"x": [None, math.nan]}), "x", squares=True).collect()
    found = moments.finish(state, integer=True)
    assert len(found) == 0
    assert found.schema == {
        "count": pl.Int64,
        "sum": pl.Int64,
        "mean": pl.Float64,
        "var": pl.Float64,
        "std": pl.Float64,
    }


def test_strings_have_no_sum() -> None:
    with pytest.raises(SchemaError, match="Normalize needs numbers, `x` is String"):
        moments.sums(pl.LazyFrame({"x": ["a"]}), "x", where="Normalize")
