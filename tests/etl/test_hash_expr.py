"""The hash as an expression is the stable hash, for every width of integers."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from falconet.etl.hash_expr import hash_expr
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
