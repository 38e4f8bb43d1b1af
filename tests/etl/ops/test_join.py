"""JoinExternal: columns of a table, looked up by a key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import falconet as fl
from falconet import ops
from falconet.errors import ColumnNotFoundError, ConfigError, DataError, SchemaError
from falconet.testing.contracts import OpContract, same, write_parts

MOVIES = pl.DataFrame({"movie": [10, 20, 30], "genres": [["a", "b"], [], ["a"]], "year": [1990, None, 2001]})
TWICE = pl.DataFrame({"movie": [1, 2, 1, None], "title": ["a", "b", "c", "d"], "words": [["x"], [], None, []]})


def apply(node: object, frame: pl.DataFrame) -> pl.DataFrame:
    return fl.Workflow(node).fit(fl.Dataset(frame)).transform(frame)


class TestJoinExternal(OpContract):
    op = ops.JoinExternal(MOVIES, on="movie")
    frame = pl.DataFrame({"movie": [20, 99, 10, None, 30, 10], "user": [1, 2, 3, 4, 5, 6]})


class TestJoinExternalInner(OpContract):
    op = ops.JoinExternal(MOVIES, on="id", on_ext="movie", how="inner", columns_ext=["year"])
    frame = pl.DataFrame({"id": [20, 99, 10, None, 30, 10]})


def test_unmatched_integers_stay_integers_and_rows_keep_their_order() -> None:
    frame = pl.DataFrame({"movie": [30, 99, 10, None]})
    got = apply(["movie"] >> ops.JoinExternal(MOVIES, on="movie"), frame)
    assert got["year"].to_list() == [2001, None, 1990, None]
    assert got.schema["year"] == pl.Int64
    assert got["movie"].to_list() == [30, 99, 10, None]


@pytest.mark.parametrize("dtype", [pl.Int8, pl.UInt8, pl.Int16])
def test_keys_further_apart_than_their_type_counts_are_told_apart(dtype: pl.DataType) -> None:
    known = pl.Series("key", [100, 0, 45] if dtype == pl.UInt8 else [-100, 100, 45], dtype=dtype)
    frame = pl.DataFrame({"key": pl.Series([*known, 35, 10, -10 if dtype != pl.UInt8 else 9], dtype=dtype)})
    got = apply(["key"] >> ops.JoinExternal(pl.DataFrame([known, pl.Series("place", [1, 2, 3])]), on="key"), frame)
    assert got["place"].to_list() == [1, 2, 3, None, None, None]


def test_a_key_that_the_table_has_twice_is_refused() -> None:
    twice = pl.DataFrame({"movie": [1, 2, 1], "title": ["a", "b", "c"]})
    with pytest.raises(DataError, match="drop_duplicates_ext=True keeps the first"):
        ops.JoinExternal(twice, on="movie")
    node = ["movie"] >> ops.JoinExternal(twice, on="movie", drop_duplicates_ext=True)
    assert apply(node, pl.DataFrame({"movie": [1, 2]}))["title"].to_list() == ["a", "b"]


def test_the_table_may_be_of_any_make(tmp_path: Path) -> None:
    MOVIES.write_parquet(tmp_path / "movies.parquet")
    frame = pl.DataFrame({"movie": [20, 10]})
    want = apply(["movie"] >> ops.JoinExternal(MOVIES, on="movie"), frame)
    tables = [MOVIES.to_arrow(), MOVIES.lazy(), tmp_path / "movies.parquet", fl.Dataset(tmp_path / "movies.parquet")]
    for table in tables:
        assert apply(["movie"] >> ops.JoinExternal(table, on="movie"), frame).equals(want)
    flat = MOVIES.select("movie", "year").to_pandas()
    got = apply(["movie"] >> ops.JoinExternal(flat, on="movie"), frame)
    assert got["year"].to_list() == [None, 1990.0]


def test_several_keys_join_together() -> None:
    table = pl.DataFrame({"a": [1, 1], "b": ["x", "y"], "c": [10, 20]})
    node = ["a", "b"] >> ops.JoinExternal(table, on=["a", "b"])
    assert apply(node, pl.DataFrame({"a": [1, 1, 2], "b": ["y", "z", "x"]}))["c"].to_list() == [20, None, None]


def test_a_key_that_the_table_lacks_suggests_the_close_name() -> None:
    with pytest.raises(ColumnNotFoundError, match="did you mean `movie`"):
        ops.JoinExternal(MOVIES, on="movies")


def test_a_list_is_no_key_of_a_join() -> None:
    with pytest.raises(SchemaError, match=r"a key of JoinExternal needs one value per row, `x` is List"):
        ops.JoinExternal(pl.DataFrame({"x": [[1], [2]], "v": [1, 2]}), on="x")


def test_the_key_of_a_joined_table_may_be_added_under_its_own_name() -> None:
    table = pl.DataFrame({"id": [1], "v": [2]})
    got = apply(
        ["a"] >> ops.JoinExternal(table, on="a", on_ext="id", columns_ext=["id", "v"]), pl.DataFrame({"a": [1, 5]})
    )
    assert got.rows() == [(1, 1, 2), (5, None, None)]


class TestJoinExternalMultiplied(OpContract):
    op = ops.JoinExternal(TWICE, on="movie", multiply_rows=True)
    frame = pl.DataFrame({"movie": [2, 9, 1, None, 1, 2], "user": [1, 2, 3, 4, 5, 6]})


class TestJoinExternalMultipliedInner(OpContract):
    op = ops.JoinExternal(TWICE, on=["movie", "title"], how="inner", columns_ext=["words"], multiply_rows=True)
    frame = pl.DataFrame({"movie": [2, 9, 1, None, 1, 2], "title": ["b", "b", "a", "d", "c", None]})


def test_rows_are_multiplied_where_that_is_asked_for() -> None:
    frame = pl.DataFrame({"movie": [1, 9, None, 2], "user": [1, 2, 3, 4]})
    left = apply(["movie", "user"] >> ops.JoinExternal(TWICE, on="movie", multiply_rows=True), frame)
    assert left.select("movie", "user", "title").rows() == [
        (1, 1, "a"), (1, 1, "c"), (9, 2, None), (None, 3, None), (2, 4, "b"),
    ]  # fmt: skip
    inner = ops.JoinExternal(TWICE, on="movie", how="inner", columns_ext=["title"], multiply_rows=True)
    assert apply(["movie", "user"] >> inner, frame).rows() == [(1, 1, "a"), (1, 1, "c"), (2, 4, "b")]


def test_multiplied_rows_have_numbers_of_their_own(tmp_path: Path) -> None:
    frame = pl.DataFrame({"movie": [1, 9, 2, 1]})
    joined = ["movie"] >> ops.JoinExternal(TWICE, on="movie", columns_ext=["title"], multiply_rows=True)
    op = joined.op  # type: ignore[attr-defined]
    numbered = frame.lazy().with_row_index("__row__").cast({"__row__": pl.UInt64})
    assert op.apply(numbered, ("movie",)).collect()["__row__"].to_list() == [0, 1, 2, 4, 6, 7]
    node = joined >> ops.Filter(lambda row: row["title"].is_not_null()) >> ops.Categorify()
    data = write_parts(frame, (1, 3), tmp_path)
    same(fl.Workflow(node).fit(data).transform(data).collect(), apply(node, frame))


def test_multiplied_rows_do_not_stand_beside_others() -> None:
    with pytest.raises(ConfigError, match="may have different rows"):
        fl.Workflow([["movie"] >> ops.JoinExternal(TWICE, on="movie", multiply_rows=True), "user"])


def test_one_row_online() -> None:
    frame = pl.DataFrame({"movie": [20, 10]})
    inner = fl.Workflow(["movie"] >> ops.JoinExternal(MOVIES, on="movie", how="inner")).fit(fl.Dataset(frame)).online()
    assert inner({"movie": 10}) == {"movie": 10, "genres": ["a", "b"], "year": 1990}
    with pytest.raises(DataError, match="`JoinExternal` drops the row"):
        inner({"movie": 99})
    many = (
        fl.Workflow(["movie"] >> ops.JoinExternal(TWICE, on="movie", multiply_rows=True))
        .fit(fl.Dataset(frame))
        .online()
    )
    assert many({"movie": 2}) == {"movie": 2, "title": "b", "words": []}
    with pytest.raises(DataError, match="`JoinExternal` makes several rows of"):
        many({"movie": 1})


def test_first_or_all_but_not_both() -> None:
    with pytest.raises(ConfigError, match="the first of equal keys and all of them"):
        ops.JoinExternal(TWICE, on="movie", drop_duplicates_ext=True, multiply_rows=True)


keys = st.none() | st.integers(-3, 3)


@given(st.lists(keys, max_size=8), st.lists(keys, max_size=6), st.sampled_from(["left", "inner"]))
@settings(max_examples=30, deadline=None)
def test_it_is_the_join_of_pandas(left: list[int | None], right: list[int | None], how: Any) -> None:
    frame = pl.DataFrame({"k": left}, schema={"k": pl.Int64}).with_row_index("n")
    table = pl.DataFrame({"k": right}, schema={"k": pl.Int64}).with_row_index("m")
    known = table.drop_nulls("k").to_pandas()
    want = pd.merge(frame.to_pandas(), known, on="k", how=how).sort_values(["n", "m"])[["n", "k", "m"]]
    op = ops.JoinExternal(table, on="k", how=how, multiply_rows=True)
    got = op.apply(frame.lazy().with_row_index("__row__").cast({"__row__": pl.UInt64}), ("k", "n")).collect()
    as_rows = [tuple(None if pd.isna(x) else int(x) for x in row) for row in want.itertuples(index=False)]
    assert got.select("n", "k", "m").rows() == as_rows
    assert got["__row__"].is_unique().all()
