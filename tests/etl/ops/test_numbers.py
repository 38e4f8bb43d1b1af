"""Clip, LogOp and ReduceDtypeSize."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import falconet as fl
from falconet import ops
from falconet.errors import ConfigError, DataError, SchemaError
from falconet.schema import Column
from falconet.testing.contracts import OpContract, StatOpContract
from plain_rows import same_on_rows

NUMBERS = pl.DataFrame(
    {
        "whole": [1, None, -7, 2**40, 5, 0],
        "small": pl.Series([1.5, float("nan"), None, -3.0, 0.1, 9.0], dtype=pl.Float32),
        "large": [1e300, float("-inf"), None, -0.0, 2.5, -1.0],
        "lists": [[1, None, 9], [], None, [-4], [100], [3]],
        "pairs": pl.Series(
            [[1.0, None], None, [-1.0, 9.5], [0.0, 0.1], [1.0, 1.0], [2.0, 3.0]], dtype=pl.Array(pl.Float64, 2)
        ),
    }
)
some_floats = st.lists(st.none() | st.floats(width=64), max_size=8)
some_integers = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-9, 9), max_size=8)


class TestClip(OpContract):
    op = ops.Clip(min_value=0.5, max_value=3)
    frame = NUMBERS


class TestLogOp(OpContract):
    op = ops.LogOp()
    frame = NUMBERS


class TestReduceDtypeSize(StatOpContract):
    op = ops.ReduceDtypeSize()
    frame = NUMBERS.with_columns(text=pl.Series(["a", None, "b", "c", "d", "e"]), flag=pl.lit(True))


def apply(op: ops.Op, frame: pl.DataFrame, train: pl.DataFrame | None = None) -> pl.DataFrame:
    return fl.Workflow(frame.columns >> op).fit(fl.Dataset(frame if train is None else train)).transform(frame)


# Clip


def test_values_outside_become_the_bound_and_the_type_stays() -> None:
    frame = pl.DataFrame(
        {"i": pl.Series([1, 5, None], dtype=pl.Int8), "f": [1.0, float("nan"), 9.0], "l": [[0, 9], [None], None]}
    )
    got = apply(ops.Clip(min_value=0.5, max_value=3.5), frame)
    assert got.schema == frame.schema
    assert got["i"].to_list() == [1, 3, None]
    assert str(got["f"].to_list()) == "[1.0, nan, 3.5]"
    assert got["l"].to_list() == [[1, 3], [None], None]


@given(some_floats, st.floats(-1e3, 1e3), st.floats(0, 1e3))
@settings(max_examples=30, deadline=None)
def test_clip_is_numpy_s(values: list[float | None], low: float, width: float) -> None:
    op, frame = ops.Clip(min_value=low, max_value=low + width), pl.DataFrame({"x": values}, schema={"x": pl.Float64})
    got = frame.select(op.expr(pl.col("x"), Column(name="x", dtype="float64")))["x"].drop_nulls().to_numpy()
    assert np.array_equal(got, np.clip(frame["x"].drop_nulls().to_numpy(), low, low + width), equal_nan=True)


@given(some_integers, some_floats, st.floats(-1e3, 1e3), st.none() | st.floats(1, 1e20))
@settings(max_examples=30, deadline=None)
def test_clip_of_one_row(
    integers: list[int | None], floats: list[float | None], low: float, width: float | None
) -> None:
    op = ops.Clip(min_value=low, max_value=None if width is None else low + width)
    same_on_rows(op, pl.DataFrame({"x": integers}, schema={"x": pl.Int64}))
    same_on_rows(op, pl.DataFrame({"x": floats}, schema={"x": pl.Float64}))
    same_on_rows(op, pl.DataFrame({"x": floats}, schema={"x": pl.Float64}).cast(pl.Float32))
    same_on_rows(op, pl.DataFrame({"x": [floats, None]}, schema={"x": pl.List(pl.Float64)}))


def test_a_bound_beyond_the_type_leaves_all_values() -> None:
    frame = pl.DataFrame({"x": pl.Series([-128, 127], dtype=pl.Int8)})
    assert apply(ops.Clip(min_value=-1e9, max_value=float("inf")), frame)["x"].to_list() == [-128, 127]


@pytest.mark.parametrize(
    "settings",
    [{"min_value": 300}, {"max_value": -129}, {"min_value": 1.2, "max_value": 1.8}, {"min_value": float("inf")}],
)
def test_bounds_that_leave_no_value_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(SchemaError, match="leaves no value to `x`, which is Int8"):
        apply(ops.Clip(**settings), pl.DataFrame({"x": pl.Series([1], dtype=pl.Int8)}))


def test_the_schema_knows_the_limits() -> None:
    clip = ops.Clip(min_value=0, max_value=10)
    column = clip.describe(Column(name="x", dtype="int64", min=5, max=50))
    assert (column.min, column.max) == (5, 10)
    assert clip.describe(Column(name="x", dtype="float64")).min == 0.0


def test_clip_says_what_it_needs() -> None:
    with pytest.raises(ConfigError, match="Clip has no bound"):
        ops.Clip()
    with pytest.raises(ConfigError, match="min_value=3 is above max_value=2"):
        ops.Clip(min_value=3, max_value=2)
    with pytest.raises(ConfigError, match="NaN is no bound"):
        ops.Clip(min_value=float("nan"))
    with pytest.raises(SchemaError, match="Clip needs numbers, `x` is String"):
        apply(ops.Clip(min_value=0), pl.DataFrame({"x": ["a"]}))


# LogOp


def test_the_logarithm_of_what_has_none_is_null() -> None:
    frame = pl.DataFrame(
        {"x": [0.0, 1.0, -1.0, -5.0, None, float("nan"), float("inf")], "l": [[0, -1], [], None, [3], [], [], []]}
    )
    got = apply(ops.LogOp(), frame)
    assert str(got["x"].to_list()) == f"[0.0, {float(np.float32(np.log(2)))}, None, None, None, nan, inf]"
    assert got["l"].to_list()[:3] == [[0.0, None], [], None]
    assert got.schema == {"x": pl.Float32, "l": pl.List(pl.Float32)}


@given(some_floats, some_integers)
@settings(max_examples=30, deadline=None)
def test_the_logarithm_of_one_row(floats: list[float | None], integers: list[int | None]) -> None:
    same_on_rows(ops.LogOp(), pl.DataFrame({"x": floats}, schema={"x": pl.Float64}))
    same_on_rows(ops.LogOp(), pl.DataFrame({"x": integers}, schema={"x": pl.Int64}))
    same_on_rows(ops.LogOp(), pl.DataFrame({"x": [floats, None]}, schema={"x": pl.List(pl.Float64)}))


@given(st.lists(st.floats(-0.999, 1e12), min_size=1, max_size=20))
@settings(max_examples=30, deadline=None)
def test_the_logarithm_is_numpy_s(values: list[float]) -> None:
    got = pl.DataFrame({"x": values}).select(ops.LogOp().expr(pl.col("x"), Column(name="x", dtype="float64")))["x"]
    assert got.to_numpy() == pytest.approx(np.log1p(np.array(values)), rel=1e-6)


def test_a_logarithm_is_a_continuous_feature() -> None:
    schema = fl.Workflow(["x"] >> ops.LogOp()).fit(fl.Dataset(pl.DataFrame({"x": [1, 2]}))).schema
    assert (schema["x"].dtype, schema["x"].tags) == ("float32", {"continuous"})


# ReduceDtypeSize


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([0, 127], pl.Int8),
        ([-128, None], pl.Int8),
        ([128], pl.Int16),
        ([-32769], pl.Int32),
        ([2**31], pl.Int64),
        ([None, None], pl.Int8),
    ],
)
def test_the_smallest_type_that_holds_all(values: list[int | None], dtype: pl.DataType) -> None:
    frame = pl.DataFrame({"x": values, "l": [[x] for x in values]}, schema={"x": pl.Int64, "l": pl.List(pl.Int64)})
    got = apply(ops.ReduceDtypeSize(), frame)
    assert got.schema == {"x": dtype, "l": pl.List(dtype)}
    assert got["x"].to_list() == values


def test_a_type_never_grows() -> None:
    frame = pl.DataFrame(
        {"x": [200, 0], "y": [2**64 - 1, 0], "h": [0.5, 1.0]}, schema={"x": pl.UInt8, "y": pl.UInt64, "h": pl.Float16}
    )
    assert apply(ops.ReduceDtypeSize(), frame).schema == frame.schema


@pytest.mark.parametrize("wrong", [{"x": 300}, {"l": [2, 300]}, {"f": 3e300}], ids=str)
def test_a_later_value_that_does_not_fit_is_an_error(wrong: dict[str, object]) -> None:
    train = pl.DataFrame({"x": [1, 100], "f": [0.5, 1.0], "l": [[1], [2]]})
    fitted = fl.Workflow(["x", "f", "l"] >> ops.ReduceDtypeSize()).fit(fl.Dataset(train))
    row = {"x": 1, "f": 1.0, "l": [1]} | wrong
    with pytest.raises(DataError, match="300"):
        fitted.transform(pl.DataFrame([row]))
    with pytest.raises(DataError, match="300"):
        fitted.online()(row)


@given(some_integers, some_floats)
@settings(max_examples=30, deadline=None)
def test_reduced_is_the_same_number(integers: list[int | None], floats: list[float | None]) -> None:
    op = ops.ReduceDtypeSize()
    frame = pl.DataFrame({"x": integers}, schema={"x": pl.Int64})
    fitted = op.finish(op.partial(frame.lazy(), ("x",)).collect())
    assert frame.select(fitted.expr(pl.col("x"), Column(name="x", dtype="int64")))["x"].to_list() == integers
    same_on_rows(fitted, frame)
    frame = pl.DataFrame({"x": floats}, schema={"x": pl.Float64})
    fitted = op.finish(op.partial(frame.lazy(), ("x",)).collect())
    made = frame.select(fitted.expr(pl.col("x"), Column(name="x", dtype="float64")))["x"]
    assert made.equals(frame["x"].cast(made.dtype), null_equal=True)
    same_on_rows(fitted, frame)


def test_infinite_floats_stay_infinite_and_large_ones_keep_their_type() -> None:
    frame = pl.DataFrame({"x": [float("inf"), 1.0, float("nan")], "y": [1e300, 1.0, None]})
    got = apply(ops.ReduceDtypeSize(), frame)
    assert str(got["x"].to_list()) == "[inf, 1.0, nan]"
    assert got.schema == {"x": pl.Float32, "y": pl.Float64}
