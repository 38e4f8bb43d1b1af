"""JoinGroupby."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import falconet as fl
from falconet import ops
from falconet.errors import ColumnNotFoundError, ConfigError, DataError, SchemaError
from falconet.schema import Column, Schema
from falconet.testing.contracts import StatOpContract, cut, same

ALL = ["count", "nunique", "sum", "mean", "std", "var", "min", "max", "median"]


def apply(node: object, frame: pl.DataFrame, train: pl.DataFrame | None = None) -> pl.DataFrame:
    """A graph fitted on `train` (or the frame itself) and applied to the frame."""
    return fl.Workflow(node).fit(fl.Dataset(frame if train is None else train)).transform(frame)


class TestJoinGroupby(StatOpContract):
    op = ops.JoinGroupby(cont_cols=["price", "size"], stats=ALL)
    frame = pl.DataFrame(
        {
            "user": ["a", "b", "a", None, "c", "a", "b"],
            "price": [1.0, 2.5, float("nan"), 7.0, None, -0.0, 0.1],
            "size": pl.Series([100, 100, 100, 1, 2, None, -128], dtype=pl.Int8),
        }
    )
    columns = ("user",)


class TestJoinGroupbyOfTwo(StatOpContract):
    op = ops.JoinGroupby(cont_cols="price", stats=["count", "mean"], name_sep="-")
    frame = pl.DataFrame(
        {
            "user": [1, 1, 2, 2, None, 1],
            "shop": [0.0, float("nan"), -0.0, 0.0, 1.0, 0.0],
            "city": ["x", "y", "x", None, "x", "y"],
            "price": [1, 2, 3, 4, 5, 6],
        }
    )
    columns = (["user", "shop"], "city")


class TestJoinGroupbyOfText(StatOpContract):
    op = ops.JoinGroupby(cont_cols="word", stats=["nunique", "min", "max"])
    frame = pl.DataFrame({"user": [True, False, True, True], "word": ["b", None, "a", "b"]})
    columns = ("user",)


def test_the_statistics_are_those_of_polars() -> None:
    random = np.random.default_rng(0)
    frame = pl.DataFrame({"k": random.integers(0, 9, 500), "x": random.normal(3, 2, 500).round(1)})
    got = apply(["k"] >> ops.JoinGroupby(cont_cols="x", stats=ALL), frame)
    x = pl.col("x")
    want = frame.select(
        k_count=pl.len().over("k"),
        k_x_nunique=x.n_unique().over("k"),
        k_x_sum=x.sum().over("k"),
        k_x_mean=x.mean().over("k"),
        k_x_std=x.std().over("k"),
        k_x_var=x.var().over("k"),
        k_x_min=x.min().over("k"),
        k_x_max=x.max().over("k"),
        k_x_median=x.median().over("k"),
    )
    assert got.columns == want.columns
    np.testing.assert_allclose(got.to_numpy(), want.to_numpy(), rtol=1e-6)


def test_types_are_those_of_the_statistic() -> None:
    frame = pl.DataFrame({"k": [1, 1], "i": pl.Series([1, 2], dtype=pl.Int16), "f": [0.5, 1.5]})
    got = apply(["k"] >> ops.JoinGroupby(cont_cols=["i", "f"], stats=ALL), frame)
    assert dict(got.schema) == {
        "k_count": pl.Int64,
        **{f"k_{c}_nunique": pl.Int64 for c in "i"},
        "k_i_sum": pl.Int64,
        "k_i_mean": pl.Float32,
        "k_i_std": pl.Float32,
        "k_i_var": pl.Float32,
        "k_i_min": pl.Int16,
        "k_i_max": pl.Int16,
        "k_i_median": pl.Float32,
        "k_f_nunique": pl.Int64,
        "k_f_sum": pl.Float64,
        "k_f_mean": pl.Float32,
        "k_f_std": pl.Float32,
        "k_f_var": pl.Float32,
        "k_f_min": pl.Float64,
        "k_f_max": pl.Float64,
        "k_f_median": pl.Float32,
    }


@pytest.mark.parametrize(
    ("values", "dtype", "total", "mean", "var"),
    [
        ([16777216.0, 1.0], pl.Float32, 16777217.0, 8388608.0, pytest.approx(16777215.0**2 / 2)),
        ([100] * 4, pl.Int8, 400, 100.0, 0.0),
        ([60000, 60001, 60002, 60003], pl.Int32, 240006, 60001.5, pytest.approx(5 / 3)),
        ([1.6e9, 1.6e9 + 1, 1.6e9 + 2, 1.6e9 + 3], pl.Float64, 6.4e9 + 6, 1.6e9, pytest.approx(1.2909944**2)),
        ([2**53 + 1, -(2**53), 0], pl.Int64, 1, pytest.approx(1 / 3), pytest.approx(2.0**106)),
    ],
)
def test_sums_are_exact(values: list[float], dtype: pl.DataType, total: float, mean: float, var: float) -> None:
    frame = pl.DataFrame({"k": ["a"] * len(values), "x": pl.Series(values, dtype=dtype)})
    got = apply(["k"] >> ops.JoinGroupby(cont_cols="x", stats=["sum", "mean", "var"]), frame)
    assert got.row(0) == (total, mean, var)


@pytest.mark.parametrize("name", ["q101", "q-1", "q", "q1e1", "quantile"])
def test_what_is_no_quantile_is_told_what_is(name: str) -> None:
    with pytest.raises(ConfigError, match=r"(?s)no statistic `.*(q25, q99\.5|did you mean)"):
        ops.JoinGroupby(cont_cols="x", stats=name)


@pytest.mark.parametrize("parts", [1, 2, 7, 50])
def test_medians_are_those_of_numpy_for_any_cut(parts: int) -> None:
    random = np.random.default_rng(0)
    x = random.permutation(np.concatenate([random.exponential(size=900), random.normal(1000, 1, 100)]))
    frame = pl.DataFrame({"k": ["a"] * 1000, "x": x})
    op = ops.JoinGroupby(cont_cols="x", stats="median")
    pieces = [op.partial(part.lazy(), ("k",)).collect() for part in cut(frame, range(0, 1000, 1000 // parts))]
    fitted = op.finish(op.merge(pieces))
    assert fitted.apply(frame.head(1).lazy(), ("k",)).collect()["k_x_median"].item() == np.float32(np.median(x))


def test_quantiles_are_those_of_numpy_for_every_key() -> None:
    random = np.random.default_rng(0)
    frame = pl.DataFrame({"k": random.integers(0, 20, 600), "x": random.lognormal(0, 4, 600)})
    shares = {"q0": 0, "q2": 0.02, "q33.3": 0.333, "q50": 0.5, "q99.5": 0.995, "q100": 1}
    fitted = fl.Workflow(["k"] >> ops.JoinGroupby(cont_cols="x", stats=[*shares, "median"])).fit(fl.Dataset(frame))
    for (key,), own in frame.group_by("k"):
        want = [*np.quantile(own["x"], list(shares.values())), np.median(own["x"])]
        found = fitted.transform(pl.DataFrame({"k": [key]})).row(0)
        assert list(found) == np.float32(want).tolist()
        assert tuple(fitted.online()({"k": key}).values()) == found


def test_unseen_and_null_keys_count_zero_and_have_no_statistics() -> None:
    train = pl.DataFrame({"k": [1, 1, 2, None], "x": [1.0, 2.0, None, 5.0]})
    new = pl.DataFrame({"k": [1, 2, 3, None]})
    fitted = fl.Workflow(["k"] >> ops.JoinGroupby(cont_cols="x", stats=["count", "nunique", "sum", "std"])).fit(
        fl.Dataset(train)
    )
    got = fitted.transform(new)
    assert got["k_count"].to_list() == [2, 1, 0, 0]
    assert got["k_x_nunique"].to_list() == [2, 0, 0, 0]
    assert got["k_x_sum"].to_list() == [3.0, None, None, None]
    assert got["k_x_std"].to_list() == [pytest.approx(math.sqrt(0.5)), None, None, None]
    assert fitted.online()(new.to_dicts()) == got.to_dicts()
    assert [column.nullable for column in fitted.schema] == [False, False, True, True]


def test_a_transform_needs_the_key_alone_in_any_width() -> None:
    train = pl.DataFrame({"k": pl.Series([1, 1, 7], dtype=pl.Int8), "x": [1, 2, 3]})
    fitted = fl.Workflow(["k"] >> ops.JoinGroupby(cont_cols="x", stats="sum")).fit(fl.Dataset(train))
    assert fitted.input_columns == ("k",)
    assert fitted.transform(pl.DataFrame({"k": [7.0, 1.0, 1.5, 300.0]}))["k_x_sum"].to_list() == [3, 3, None, None]


def test_the_columns_may_be_made_by_other_operators() -> None:
    frame = pl.DataFrame({"k": ["a", "b", "a"], "x": [1.0, None, 3.0]})
    filled = ["x"] >> ops.FillMissing(fill_val=10)
    got = apply((["k"] >> ops.Categorify()) >> ops.JoinGroupby(cont_cols=filled, stats=["sum"]), frame)
    assert got.to_dict(as_series=False) == {"k_x_sum": [4.0, 10.0, 4.0]}


def test_a_statistic_of_users_is_a_feature_of_users() -> None:
    data = pl.DataFrame({"k": [1, 2], "x": [1.0, 2.0]})
    tagged = ["k"] >> ops.AddTags(["user", "id"])
    schema: Schema = fl.Workflow(tagged >> ops.JoinGroupby(cont_cols="x", stats="mean")).fit(fl.Dataset(data)).schema
    assert schema["k_x_mean"] == Column(
        name="k_x_mean", dtype="float32", tags=frozenset({"user", "continuous"}), source=("k",)
    )


def test_columns_with_the_names_used_inside() -> None:
    frame = pl.DataFrame({"key0": [1, 1, 2], "count": ["a", "b", "a"], "value0": [1.0, 2.0, 3.0], "part": [1, 2, 3]})
    op = ops.JoinGroupby(cont_cols=["value0", "part"], stats=["count", "median", "nunique"])
    got = apply(["key0", "count"] >> op, frame)
    assert got["key0_count"].to_list() == [2, 2, 1]
    assert got["count_value0_median"].to_list() == [2.0, 2.0, 2.0]
    assert got["key0_part_nunique"].to_list() == [2, 2, 1]


def test_a_sum_that_does_not_fit_is_refused_by_name() -> None:
    frame = pl.DataFrame({"k": [1, 1], "x": [2**63 - 1, 1]})
    with pytest.raises(DataError, match="the sum of `x` does not fit 64 bits"):
        apply(["k"] >> ops.JoinGroupby(cont_cols="x", stats="sum"), frame)
    assert apply(["k"] >> ops.JoinGroupby(cont_cols="x", stats="mean"), frame)["k_x_mean"].to_list() == [2.0**62] * 2


def test_what_does_not_fit_says_so() -> None:
    with pytest.raises(ConfigError, match="did you mean `nunique`"):
        ops.JoinGroupby(cont_cols="x", stats=["nuniqe"])
    with pytest.raises(ConfigError, match="no `cont_cols` for mean"):
        ops.JoinGroupby(stats=["mean"])
    with pytest.raises(ConfigError, match="counts rows only"):
        ops.JoinGroupby(cont_cols="x")
    with pytest.raises(ConfigError, match="name each statistic once"):
        ops.JoinGroupby(stats=["count", "count"])
    frame = pl.DataFrame({"k": [1], "x": ["a"], "l": [[1]]})
    with pytest.raises(SchemaError, match="the mean of `x`, which is String"):
        apply(["k"] >> ops.JoinGroupby(cont_cols="x", stats="mean"), frame)
    with pytest.raises(SchemaError, match="JoinGroupby needs one value per row, `l` is"):
        apply(["l"] >> ops.JoinGroupby(), frame)
    with pytest.raises(ColumnNotFoundError, match="no column `price`"):
        apply(["k"] >> ops.JoinGroupby(cont_cols="price", stats="mean"), frame)


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", None]), st.none() | st.floats(-1e9, 1e9) | st.sampled_from([math.inf, math.nan])
    ),
    min_size=1,
    max_size=25,
)


@given(ROWS, st.lists(st.integers(0, 25), max_size=3))
@settings(max_examples=25, deadline=None)
def test_any_cut_gives_the_same_bits(rows: list[tuple[str | None, float | None]], edges: list[int]) -> None:
    frame = pl.DataFrame(rows, schema={"k": pl.String, "x": pl.Float64}, orient="row")
    op = ops.JoinGroupby(cont_cols="x", stats=ALL)
    states = [op.partial(part.lazy(), ("k",)).collect() for part in cut(frame, sorted(edges))]
    whole = op.merge([op.partial(frame.lazy(), ("k",)).collect()])
    same(op.merge(states), whole)
    table = op.finish(whole).table
    for key in {k for k, _ in rows if k is not None}:
        x = [x for k, x in rows if k == key and x is not None and x == x]
        row = table.filter(pl.col("key0") == key).to_dicts()[0]
        assert row["count"] == sum(k == key for k, _ in rows)
        assert row["nunique_0"] == len(set(x))
        if x:
            assert row["sum_0"] == (math.inf if math.inf in x else math.fsum(x))
            assert (row["min_0"], row["max_0"]) == (min(x), max(x))
            assert row["median_0"] == np.float32(np.median(x))
