"""The hash as an expression is the stable hash, for every type and every width of integers."""

from __future__ import annotations

import datetime as dt

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falconet.errors import SchemaError
from falconet.etl.hash_expr import hash_expr, with_hash
from falconet.hashing import stable_hash


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.none()), st.integers(-(2**70), 2**70))
def test_it_is_the_stable_hash(values: list[int | None], seed: int) -> None:
    frame = pl.DataFrame({"x": pl.Series(values, dtype=pl.Int64)})
    got = frame.lazy().select(hash_expr(pl.col("x"), seed)).collect()["x"]
    assert got.dtype == pl.UInt64
    assert got.to_list() == [stable_hash(x, seed) for x in values]


@pytest.mark.parametrize("dtype", [pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt64], ids=str)
def test_the_width_of_the_column_does_not_matter(dtype: type[pl.DataType]) -> None:
    frame = pl.DataFrame({"x": pl.Series([0, 1, 100], dtype=dtype)})
    assert frame.select(hash_expr(pl.col("x"), 5))["x"].to_list() == [stable_hash(x, 5) for x in (0, 1, 100)]


def test_negative_and_huge_values_keep_their_bits() -> None:
    small = pl.DataFrame({"x": pl.Series([-1, -128], dtype=pl.Int8)})
    assert small.select(hash_expr(pl.col("x")))["x"].to_list() == [stable_hash(-1), stable_hash(-128)]
    huge = pl.DataFrame({"x": pl.Series([2**64 - 1, 2**63], dtype=pl.UInt64)})
    assert huge.select(hash_expr(pl.col("x")))["x"].to_list() == [stable_hash(-1), stable_hash(-(2**63))]


def test_neighbours_are_spread_evenly() -> None:
    buckets = pl.DataFrame({"x": range(64_000)}).select(b=hash_expr(pl.col("x")) % 64).group_by("b").len()["len"]
    assert len(buckets) == 64
    assert 880 < buckets.min() < buckets.max() < 1120


MIXED = pl.DataFrame(
    {
        "text": ["a", "é", None, "", "xyz" * 50],
        "float": [0.5, None, float("nan"), -2.0, 1e300],
        "narrow": pl.Series([0.1, -0.0, float("inf"), 2.0**63, 2.0**62], dtype=pl.Float32),
        "flag": [True, False, None, True, True],
        "number": [1, -1, None, 2**62, 0],
        "date": [dt.date(1960, 1, 2), None, dt.date(2020, 1, 1), dt.date(1, 1, 1), dt.date(9999, 1, 1)],
        "time": [dt.datetime(1960, 1, 2, 3, 4, 5, 6), None, *[dt.datetime(2020, 1, 1)] * 3],
        "zoned": [
            dt.datetime(1960, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC),
            None,
            *[dt.datetime(2020, 1, 1, tzinfo=dt.UTC)] * 3,
        ],
    }
)


@pytest.mark.parametrize("name", MIXED.columns)
def test_values_of_every_type_hash_as_in_plain_python(name: str) -> None:
    got = MIXED.lazy().select(hash_expr(pl.col(name), 7, MIXED.schema[name])).collect()[name]
    assert got.to_list() == [stable_hash(x, 7) for x in MIXED[name].to_list()]
    assert MIXED.head(0).select(hash_expr(pl.col(name), 7, MIXED.schema[name]))[name].dtype == pl.UInt64


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_an_instant_has_one_hash_in_every_unit_and_zone(unit: pl.datatypes.TimeUnit) -> None:
    times = MIXED.select(pl.col("time").dt.replace_time_zone("UTC").dt.convert_time_zone("Asia/Tokyo"))
    cast = times.cast(pl.Datetime(unit, "Asia/Tokyo"))[2:]
    got = cast.select(hash_expr(pl.col("time"), 0, cast.schema["time"]))["time"]
    assert got.unique().to_list() == [stable_hash(dt.datetime(2020, 1, 1))]


def test_several_columns_hash_as_a_tuple_does() -> None:
    names = ["text", "float", "number"]
    hashes = [hash_expr(pl.col(name), 3, MIXED.schema[name]) for name in names]
    got = with_hash(MIXED.lazy(), hashes, "hash").collect()["hash"]
    assert got.to_list() == [stable_hash(row, 3) for row in MIXED.select(names).rows()]


@given(st.lists(st.text(max_size=6) | st.none(), max_size=20), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_strings_hash_in_slices_and_inside_lists(values: list[str | None], rows: int) -> None:
    want = [stable_hash(x) for x in values]
    frame = pl.DataFrame({"x": pl.Series(values, dtype=pl.String)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("falconet.etl.hash_expr._ROWS", rows)
        assert frame.select(hash_expr(pl.col("x"), 0, pl.String()))["x"].to_list() == want
        assert frame[1:].select(hash_expr(pl.col("x"), 0, pl.String()))["x"].to_list() == want[1:]
    lists = pl.DataFrame({"x": pl.Series([values, None, []], dtype=pl.List(pl.String))})
    got = lists.select(pl.col("x").list.eval(hash_expr(pl.element(), 0, pl.String())))["x"]
    assert got.to_list() == [want, None, []]


def test_what_has_no_stable_hash_is_refused_by_its_type() -> None:
    with pytest.raises(SchemaError, match=r"values of type Duration.* have no stable hash"):
        hash_expr(pl.col("x"), 0, pl.Duration("us"))
