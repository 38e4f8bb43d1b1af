"""A value in place of what is missing."""

from __future__ import annotations

import datetime as dt
import re

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import falconet as fl
from falconet import ops
from falconet.errors import ConfigError, SchemaError
from falconet.testing.contracts import OpContract
from plain_rows import same_on_rows


def fill(frame: pl.DataFrame, **settings: object) -> pl.DataFrame:
    return fl.Workflow(frame.columns >> ops.FillMissing(**settings)).fit(fl.Dataset(frame)).transform(frame)


class TestFillMissing(OpContract):
    op = ops.FillMissing(fill_val=7, add_binary_cols=True)
    frame = pl.DataFrame({"x": [1.0, float("nan"), None], "y": [1, None, 3], "z": [[1, None], None, []]})


class TestFillMissingOfText(OpContract):
    op = ops.FillMissing(fill_val="?")
    frame = pl.DataFrame({"x": ["a", None, ""], "y": [["a", None], None, []], "z": [b"a", None, b""]})


class TestFillMissingOfTimes(OpContract):
    op = ops.FillMissing(fill_val=dt.datetime(2020, 1, 1))
    frame = pl.DataFrame({"x": [dt.datetime(1999, 12, 31, 23), None]})


def test_nulls_and_nan_are_missing_and_the_flag_says_where() -> None:
    got = fill(pl.DataFrame({"x": [1.0, float("nan"), None]}), fill_val=7, add_binary_cols=True)
    assert got.to_dict(as_series=False) == {"x": [1.0, 7.0, 7.0], "x_filled": [False, True, True]}


def test_in_lists_elements_are_filled_and_null_lists_become_empty() -> None:
    frame = pl.DataFrame({"x": [[1, None], None, []]})
    got = fill(frame, fill_val=7, add_binary_cols=True)
    assert got.to_dict(as_series=False) == {"x": [[1, 7], [], []], "x_filled": [False, True, False]}
    assert got.schema["x"] == pl.List(pl.Int64)


@pytest.mark.parametrize(
    ("value", "series", "dtype"),
    [
        (0.5, pl.Series([1, None]), "Int64"),
        (300, pl.Series([1, None], dtype=pl.Int8), "Int8"),
        (-1, pl.Series([1, None], dtype=pl.UInt16), "UInt16"),
        ("?", pl.Series([1, None]), "Int64"),
        (0, pl.Series(["a", None]), "String"),
        (0.5, pl.Series([True, None]), "Boolean"),
        (1e300, pl.Series([1.0, None], dtype=pl.Float32), "Float32"),
        (0, pl.Series([dt.date(2020, 1, 1), None]), "Date"),
        (dt.datetime(2020, 1, 1), pl.Series([dt.date(2020, 1, 1), None]), "Date"),
        (0.5, pl.Series([[1], None]), "Int64"),
    ],
    ids=["fraction", "large", "negative", "text", "number", "half", "infinite", "day", "moment", "element"],
)
def test_a_value_that_does_not_fit_is_an_error_naming_both(value: object, series: pl.Series, dtype: str) -> None:
    message = f"fill_val={value!r} does not fit `x`, which is {dtype}"
    with pytest.raises(SchemaError, match=re.escape(message)):
        fill(series.alias("x").to_frame(), fill_val=value)


@pytest.mark.parametrize(
    ("value", "values", "filled"),
    [
        (True, [1, None], 1),
        (2.0, [1, None], 2),
        (1, [True, None], True),
        ("q", [b"a", None], b"q"),
        (3, [0.5, None], 3.0),
    ],
    ids=str,
)
def test_a_filled_row_has_the_type_of_the_column(value: object, values: list[object], filled: object) -> None:
    frame = pl.DataFrame({"x": values})
    fitted = fl.Workflow(["x"] >> ops.FillMissing(fill_val=value)).fit(fl.Dataset(frame))
    assert repr(fitted.online()({"x": None})) == repr(fitted.transform(frame).to_dicts()[1]) == repr({"x": filled})


def test_a_missing_value_fills_nothing() -> None:
    with pytest.raises(ConfigError, match="fill_val=nan is itself missing"):
        ops.FillMissing(fill_val=float("nan"))


def test_a_flag_does_not_take_the_place_of_a_column() -> None:
    with pytest.raises(ConfigError, match="would add a second column `x_filled`"):
        ["x", "x_filled"] >> ops.FillMissing(add_binary_cols=True)


@given(
    st.lists(st.none() | st.floats(width=32), max_size=6),
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=6),
    st.integers(-100, 100),
    st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_one_row_is_filled_as_in_the_batch(
    floats: list[float | None], integers: list[int | None], value: int, add_binary_cols: bool
) -> None:
    op = ops.FillMissing(fill_val=value, add_binary_cols=add_binary_cols)
    for values, dtype in ((floats, pl.Float32), (floats, pl.Float64), (integers, pl.Int64)):
        same_on_rows(op, pl.DataFrame({"x": values}, schema={"x": dtype}))
        same_on_rows(op, pl.DataFrame({"x": [values, None]}, schema={"x": pl.List(dtype)}))
