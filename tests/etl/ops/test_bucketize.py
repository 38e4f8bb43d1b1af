"""Bucketize: which interval a number is in, from given boundaries or from quantiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import KBinsDiscretizer

import falconet as fl
from falconet import ops
from falconet.errors import ColumnNotFoundError, ConfigError, DataError, SchemaError
from falconet.schema import Column
from falconet.testing.contracts import StatOpContract

NAN, INF = float("nan"), float("inf")


def apply(node: object, frame: pl.DataFrame) -> pl.DataFrame:
    return fl.Workflow(node).fit(fl.Dataset(frame)).transform(frame)


class TestBucketize(StatOpContract):
    op = ops.Bucketize([-1, 0.5, 2, 1e18])
    frame = pl.DataFrame(
        {
            "real": [-INF, -1.0, 0.4, None, NAN, INF],
            "whole": [-5, -1, 0, 2, None, 2**62],
            "small": pl.Series([0, 1, 2, 3, None, 255], dtype=pl.UInt8),
            "lists": [[0.5, None], [], None, [NAN], [-3.0], [2.0]],
        }
    )


class TestBucketizeByQuantiles(StatOpContract):
    op = ops.Bucketize({"real": 3, "lists": 2, "fixed": [1.5]})
    frame = pl.DataFrame(
        {
            "real": [3.5, -1.0, 0.4, None, NAN, 8.0, 9.0],
            "lists": [[5, None], [], None, [7], [-3], [2], [1, 1]],
            "fixed": [1, 2, None, 4, 5, 6, 7],
        }
    )


def test_a_code_is_two_and_the_boundaries_that_are_at_most_x() -> None:
    frame = pl.DataFrame({"x": [9.9, 10.0, 19.9, 20.0, 1e9, -INF, INF, None, NAN]})
    got = apply(["x"] >> ops.Bucketize([10, 20]), frame)["x"]
    assert got.to_list() == [2, 3, 3, 4, 4, 2, 4, 1, 1]
    assert got.dtype == pl.Int32


def test_the_schema_has_a_table_large_enough() -> None:
    fitted = fl.Workflow(["x"] >> ops.Bucketize([10, 20])).fit(fl.Dataset(pl.DataFrame({"x": [1.0]})))
    assert (fitted.schema["x"].cardinality, fitted.schema["x"].tags) == (5, {"categorical"})
    assert fl.get_embedding_sizes(fitted) == {"x": (5, 16)}


@given(
    st.lists(st.none() | st.floats(allow_nan=True) | st.integers(-3, 3).map(float), max_size=20),
    st.lists(st.integers(-(2**60), 2**60) | st.floats(-1e6, 1e6), min_size=1, max_size=5, unique=True),
)
@settings(max_examples=20, deadline=None)
def test_floats_are_where_numpy_says(values: list[float | None], boundaries: list[float]) -> None:
    edges = sorted({float(b) for b in boundaries})
    op = ops.Bucketize(edges)
    frame = pl.DataFrame({"x": values}, schema={"x": pl.Float64})
    fitted = op.finish(op.partial(frame.lazy(), ("x",)).collect())
    got = frame.select(fitted.expr(pl.col("x"), Column(name="x", dtype="float64"))).to_series().to_list()
    digitized = np.digitize(np.array([0.0 if x is None else x for x in values]), edges) + 2
    assert got == [1 if x is None or x != x else code for x, code in zip(values, digitized.tolist(), strict=True)]


def test_whole_numbers_beyond_the_digits_of_a_float_are_compared_exactly() -> None:
    frame = pl.DataFrame({"x": [2**53, 2**53 + 1, 2**53 + 2, -(2**63), 2**63 - 1]})
    assert apply(["x"] >> ops.Bucketize([2**53 + 1]), frame)["x"].to_list() == [2, 3, 3, 2, 3]
    assert apply(["x"] >> ops.Bucketize([-1e30, 0.5, 1e30]), frame)["x"].to_list() == [4, 4, 4, 3, 4]
    large = pl.DataFrame({"x": pl.Series([0, 2**63, 2**64 - 1], dtype=pl.UInt64)})
    assert apply(["x"] >> ops.Bucketize([-1, 2**63, 2**64 - 1]), large)["x"].to_list() == [3, 4, 5]


@pytest.mark.parametrize("buckets", [2, 4, 7])
def test_quantiles_are_those_of_sklearn(buckets: int) -> None:
    x = np.random.default_rng(0).exponential(size=900)
    bins = KBinsDiscretizer(buckets, encode="ordinal", strategy="quantile", quantile_method="linear", subsample=None)
    want = bins.fit_transform(x[:, None])[:, 0] + 2
    assert apply(["x"] >> ops.Bucketize(buckets), pl.DataFrame({"x": x}))["x"].to_list() == want.tolist()


def test_equal_quantiles_count_once_and_no_values_have_one_bucket() -> None:
    frame = pl.DataFrame({"x": [1, 1, 1, 1, 5], "nothing": pl.Series([None] * 5, dtype=pl.Float64)})
    fitted = fl.Workflow(["x", "nothing"] >> ops.Bucketize(4)).fit(fl.Dataset(frame))
    assert fitted.transform(frame)["x"].to_list() == [3, 3, 3, 3, 3]
    assert [column.cardinality for column in fitted.schema] == [4, 3]
    assert fitted.transform(pl.DataFrame({"x": [0], "nothing": [7.0]})).row(0) == (2, 2)


def test_given_boundaries_need_no_rows() -> None:
    frame = pl.DataFrame({"x": [0.5, 7.0, None], "l": [[1], [], None]})
    node = ["x", "l"] >> ops.Bucketize({"x": [1.0], "l": [0]})
    fitted = fl.Workflow(node).fit(fl.Dataset(frame.head(0)))
    assert fitted.transform(frame).to_dict(as_series=False) == {"x": [2, 3, 1], "l": [[3], [], [1]]}
    with pytest.raises(DataError, match="cannot fit on no rows: `Bucketize` on `x`, `l` learns from them"):
        fl.Workflow(["x", "l"] >> ops.Bucketize({"x": [1.0], "l": 2})).fit(fl.Dataset(frame.head(0)))


def test_a_grown_fit_has_the_quantiles_of_all_data() -> None:
    halves = [pl.DataFrame({"x": [1.0, 2.0, 3.0]}), pl.DataFrame({"x": [100.0, 200.0, 300.0, 400.0]})]
    node = ["x"] >> ops.Bucketize(2)
    grown = fl.Workflow(node).fit(fl.Dataset(halves[0])).partial_fit(fl.Dataset(halves[1]))
    assert grown.transform(pl.DataFrame({"x": [99.0, 100.0]}))["x"].to_list() == [2, 3]


@pytest.mark.parametrize(
    "wrong", [1, 0, True, [], [1, 1], [2, 1], [1, NAN], [INF], ["a"], "ab", {"x": [3, 2]}, None], ids=str
)
def test_boundaries_that_cannot_be_are_refused_when_the_operator_is_made(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="Bucketize boundaries="):
        ops.Bucketize(wrong)


def test_names_and_types_that_do_not_fit_say_so() -> None:
    with pytest.raises(ColumnNotFoundError, match=r"(?s)Bucketize \(`boundaries`\) has no.*did you mean `price`"):
        ["price"] >> ops.Bucketize({"price": 3, "prise": 3})  # type: ignore[operator]
    with pytest.raises(ConfigError, match="Bucketize has no boundaries for `size`"):
        ["price", "size"] >> ops.Bucketize({"price": 3})  # type: ignore[operator]
    with pytest.raises(SchemaError, match="Bucketize needs numbers, `x` is String"):
        apply(["x"] >> ops.Bucketize([1]), pl.DataFrame({"x": ["a"]}))
