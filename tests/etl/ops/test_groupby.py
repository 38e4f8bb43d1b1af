"""Groupby."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import falconet as fl
from falconet import ops
from falconet.errors import ColumnNotFoundError, ConfigError, DataError, SchemaError
from falconet.schema import Column
from falconet.testing.contracts import OpContract, write_parts

ALL = ["list", "first", "last", "count", "nunique", "sum", "mean", "std", "var", "median", "min", "max"]


class TestGroupby(OpContract):
    op = ops.Groupby(groupby_cols="user", sort_cols="time", aggs=ALL)
    frame = pl.DataFrame(
        {
            "user": ["b", "a", None, "b", "a", "b", None],
            "time": [5, 1, 3, 2, None, 5, 2],
            "price": [0.1, float("nan"), 2.5, -0.0, None, 1e300, 3.0],
            "size": pl.Series([100, 100, 1, 100, None, -128, 2], dtype=pl.Int8),
        }
    )


class TestGroupbyDescending(OpContract):
    op = ops.Groupby(
        groupby_cols=["user", "shop"],
        sort_cols=["time", "size"],
        aggs={"item": ["list", "first"], "genres": ["first", "last"], "time": "max"},
        ascending=False,
        name_sep="-",
    )
    frame = pl.DataFrame(
        {
            "user": [1, 1, 2, 1, 2],
            "shop": [0.0, -0.0, float("nan"), None, float("nan")],
            "time": [1, 2, 3, None, 3],
            "size": [1, 1, 1, 1, 2],
            "item": ["a", "b", "c", None, "d"],
            "genres": [["x"], [], None, ["y"], ["z", "z"]],
        }
    )


def grouped(frame: pl.DataFrame, op: ops.Groupby, columns: list[str] | None = None) -> pl.DataFrame:
    return fl.Workflow((columns or frame.columns) >> op).fit(fl.Dataset(frame)).transform(frame)


def test_the_aggregations_are_those_of_polars() -> None:
    random = np.random.default_rng(0)
    frame = pl.DataFrame(
        {"k": random.integers(0, 9, 300), "t": random.permutation(300), "x": random.normal(3, 2, 300).round(1)}
    )
    got = grouped(frame, ops.Groupby(groupby_cols="k", sort_cols="t", aggs={"x": ALL}))
    x = pl.col("x")
    want = (
        frame.with_row_index("row")
        .sort("t")
        .group_by("k")
        .agg(
            row=pl.col("row").min(), x_list=x, x_first=x.first(), x_last=x.last(), x_count=x.count(),
            x_nunique=x.n_unique(), x_sum=x.sum(), x_mean=x.mean(), x_std=x.std(), x_var=x.var(),
            x_median=x.median(), x_min=x.min(), x_max=x.max(),
        )
        .sort("row")
        .drop("row")
    )  # fmt: skip
    assert got.columns == want.columns
    assert got["x_list"].to_list() == want["x_list"].to_list()
    np.testing.assert_allclose(got.drop("x_list").to_numpy(), want.drop("x_list").to_numpy(), rtol=1e-12)


@pytest.mark.parametrize(
    ("values", "dtype", "total", "var"),
    [
        ([16777216.0, 1.0], pl.Float32, 16777217.0, 16777215.0**2 / 2),
        ([16777216, 1], pl.Int32, 16777217, 16777215.0**2 / 2),
        ([100] * 4, pl.Int8, 400, 0.0),
        ([60000, 60001, 60002, 60003], pl.Int32, 240006, 5 / 3),
        ([1.6e9, 1.6e9 + 1, 1.6e9 + 2, 1.6e9 + 3], pl.Float64, 6.4e9 + 6, 5 / 3),
        ([2**53 + 1, -(2**53)], pl.Int64, 1, (2**54 + 1) ** 2 / 2),
    ],
)
def test_sums_are_exact(values: list[float], dtype: pl.DataType, total: float, var: float) -> None:
    frame = pl.DataFrame({"k": ["a"] * len(values), "x": pl.Series(values, dtype=dtype)})
    got = grouped(frame, ops.Groupby(groupby_cols="k", aggs=["sum", "var", "std"]))
    assert got.row(0) == ("a", total, var, math.sqrt(var))


@pytest.mark.parametrize("parts", [1, 2, 7, 50])
def test_a_key_is_whole_however_the_data_is_cut(parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("falconet.etl.stages.BUCKET_ROWS", 100)
    random = np.random.default_rng(0)
    x = random.permutation(np.concatenate([random.exponential(size=900), random.normal(1000, 1, 100)]))
    frame = pl.DataFrame({"k": random.integers(0, 5, 1000), "x": x})
    data = write_parts(frame, tuple(range(0, 1000, 1000 // parts))[1:], tmp_path)
    op = ops.Groupby(groupby_cols="k", aggs={"x": ["median", "q10", "q99.5", "sum"]})
    got = fl.Workflow(["k", "x"] >> op).fit(data).transform(data).collect()
    assert got["k"].to_list() == frame["k"].unique(maintain_order=True).to_list()
    for key, median, low, high, total in got.rows():
        own = frame.filter(pl.col("k") == key)["x"].to_numpy()
        assert median == np.median(own)
        assert [low, high] == np.quantile(own, [0.1, 0.995]).tolist()
        assert total == math.fsum(own)


def test_order_and_ties() -> None:
    frame = pl.DataFrame({"k": [1] * 5, "t": [2, 1, 2, None, 1], "x": ["a", "b", "c", "d", "e"]})
    up = ops.Groupby(groupby_cols="k", sort_cols="t", aggs={"x": ["list", "first", "last"]})
    down = ops.Groupby(groupby_cols="k", sort_cols="t", aggs={"x": ["list", "first", "last"]}, ascending=False)
    assert grouped(frame, up).row(0) == (1, ["d", "b", "e", "a", "c"], "d", "c")
    assert grouped(frame, down).row(0) == (1, ["a", "c", "b", "e", "d"], "a", "d")
    unsorted = ops.Groupby(groupby_cols="k", aggs={"x": ["list"]})
    assert grouped(frame, unsorted)["x_list"].to_list() == [["a", "b", "c", "d", "e"]]


def test_null_and_nan_are_keys_and_keys_come_in_order_of_appearance() -> None:
    nan = float("nan")
    frame = pl.DataFrame({"k": [7.0, None, nan, 1.0, None, nan, 7.0], "x": [1, 2, 3, 4, 5, 6, 7]})
    got = grouped(frame, ops.Groupby(groupby_cols="k", aggs="sum"))
    assert str(got.rows()) == str([(7.0, 8), (None, 7), (nan, 9), (1.0, 4)])


def test_key_and_order_need_not_be_selected() -> None:
    frame = pl.DataFrame({"user": ["a", "b", "a"], "time": [2, 1, 1], "item": [1, 2, 3]})
    op = ops.Groupby(groupby_cols="user", sort_cols="time")
    fitted = fl.Workflow((["item"] >> ops.AddTags(["item", "id"])) >> op).fit(fl.Dataset(frame))
    assert fitted.transform(frame).rows() == [("a", [3, 1]), ("b", [2])]
    assert fitted.schema["item_list"] == Column(
        name="item_list",
        dtype="int64",
        list="ragged",
        nullable=False,
        tags=frozenset({"item", "sequence"}),
        source=("item",),
    )


def test_lists_of_codes_keep_their_domain() -> None:
    frame = pl.DataFrame({"user": [1, 1], "item": ["a", "b"]})
    op = ops.Groupby(groupby_cols="user", aggs=["list", "count"])
    fitted = fl.Workflow((["item"] >> ops.Categorify()) >> op).fit(fl.Dataset(frame))
    assert (fitted.schema["item_list"].domain, fitted.schema["item_list"].cardinality) == ("item", 5)
    assert fitted.schema["item_count"].cardinality is None


def test_missing_values_are_no_values() -> None:
    frame = pl.DataFrame({"k": [1, 1, 2, 2], "x": [float("nan"), 3.0, None, float("nan")]})
    got = grouped(frame, ops.Groupby(groupby_cols="k", aggs=[agg for agg in ALL if agg != "list"]))
    first, second = got.drop("x_first", "x_last").rows()
    assert first == (1, 1, 1, 3.0, 3.0, None, None, 3.0, 3.0, 3.0)
    assert second == (2, 0, 0, None, None, None, None, None, None, None)
    assert str(got["x_last"].to_list()) == "[3.0, nan]"


def test_no_rows_have_the_right_types() -> None:
    frame = pl.DataFrame({"k": [1], "x": pl.Series([1], dtype=pl.UInt16)})
    fitted = fl.Workflow(["k", "x"] >> ops.Groupby(groupby_cols="k", aggs=ALL)).fit(fl.Dataset(frame))
    got = fitted.transform(frame.head(0))
    assert list(got.schema.values()) == [
        pl.Int64, pl.List(pl.UInt16), pl.UInt16, pl.UInt16, pl.Int64, pl.Int64, pl.Int64,
        pl.Float64, pl.Float64, pl.Float64, pl.Float64, pl.UInt16, pl.UInt16,
    ]  # fmt: skip


def test_after_a_filter_only_the_rows_that_are_left_count() -> None:
    frame = pl.DataFrame({"k": ["a", "b", "a", "b"], "x": [1, 2, 3, 4]})
    kept = ["k", "x"] >> ops.Filter(lambda row: row["x"] != 3)
    fitted = fl.Workflow(kept >> ops.Groupby(groupby_cols="k", aggs={"x": ["list"]})).fit(fl.Dataset(frame))
    assert fitted.transform(frame).rows() == [("a", [1]), ("b", [2, 4])]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", None]),
            st.none() | st.floats(-1e12, 1e12) | st.sampled_from([math.nan, math.inf]),
        ),
        min_size=1,
        max_size=20,
    )
)
@settings(max_examples=25, deadline=None)
def test_every_key_has_what_numpy_says(rows: list[tuple[str | None, float | None]]) -> None:
    frame = pl.DataFrame(rows, schema={"k": pl.String, "x": pl.Float64}, orient="row")
    got = grouped(frame, ops.Groupby(groupby_cols="k", aggs=["count", "nunique", "sum", "median", "max"]))
    for key, count, nunique, total, median, largest in got.rows():
        x = [x for k, x in rows if k == key and x is not None and x == x]
        assert (count, nunique) == (len(x), len(set(x)))
        assert total == (None if not x else math.inf if math.inf in x else math.fsum(x))
        assert median == (np.median(x) if x else None)
        assert largest == max(x, default=None)


def test_a_sum_that_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="a sum of `x` does not fit 64 bits"):
        grouped(pl.DataFrame({"k": [1, 1], "x": [2**63 - 1, 1]}), ops.Groupby(groupby_cols="k", aggs="sum"))


def test_a_mean_does_not_need_the_sum_to_fit() -> None:
    frame = pl.DataFrame({"k": [1, 1], "x": [2**63 - 1, 2**63 - 1]})
    got = grouped(frame, ops.Groupby(groupby_cols="k", aggs=["mean", "std"]))
    assert got.row(0) == (1, 2.0**63, 0.0)


def test_what_does_not_fit_says_so() -> None:
    with pytest.raises(ConfigError, match="did you mean `nunique`"):
        ops.Groupby(groupby_cols="k", aggs="nuniqe")
    with pytest.raises(ConfigError, match="name the columns of the key"):
        ops.Groupby(groupby_cols=[])
    with pytest.raises(ConfigError, match="each aggregation of a column once"):
        ops.Groupby(groupby_cols="k", aggs={"x": ["sum", "sum"]})
    frame = pl.DataFrame({"k": [1], "x": ["a"], "l": [[1]]})
    with pytest.raises(ColumnNotFoundError, match="did you mean `x`"):
        grouped(frame, ops.Groupby(groupby_cols="k", aggs={"xx": "sum"}))
    with pytest.raises(SchemaError, match="the sum of `x`, which is String"):
        grouped(frame, ops.Groupby(groupby_cols="k", aggs="sum"), ["k", "x"])
    with pytest.raises(SchemaError, match="first and last can"):
        grouped(frame, ops.Groupby(groupby_cols="k", aggs="list"), ["k", "l"])
    with pytest.raises(SchemaError, match="Groupby needs one value per row, `l` is"):
        grouped(frame, ops.Groupby(groupby_cols="l"), ["k", "l"])
    with pytest.raises(ConfigError, match="makes two columns `a_b_list`"):
        ["a", "a_b_list"] >> ops.Groupby(groupby_cols="a_b_list", aggs={"a": "list"}, name_sep="_b_")
