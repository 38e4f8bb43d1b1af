"""Operators that drop rows."""

from __future__ import annotations

import polars as pl
import pytest

import falconet as fl
from falconet import ops
from falconet.errors import ColumnNotFoundError, ConfigError, DataError
from falconet.testing.contracts import OpContract


class TestFilter(OpContract):
    op = ops.Filter(lambda row: (row["x"] > 1) & row["y"].is_not_null())
    frame = pl.DataFrame({"x": [1, 2, None, 4], "y": ["a", "b", "c", None]})


class TestFilterOfNothing(OpContract):
    op = ops.Filter(lambda row: row["x"] > 10)
    frame = pl.DataFrame({"x": [1, 2, None, 4]})


class TestDropna(OpContract):
    op = ops.Dropna()
    frame = pl.DataFrame({"x": [1.0, None, float("nan"), 4.0, 5.0], "y": [["a"], ["b"], ["c"], [None], None]})


def online(op: ops.Op, frame: pl.DataFrame) -> list[dict[str, object] | None]:
    """Each row by itself; None for one that is dropped."""
    ask = fl.Workflow(frame.columns >> op).fit(fl.Dataset(frame)).online()
    answers: list[dict[str, object] | None] = []
    for row in frame.to_dicts():
        try:
            answers.append(ask(row))
        except DataError as error:
            assert f"`{type(op).__name__}` drops the row" in str(error)
            answers.append(None)
    return answers


@pytest.mark.parametrize(
    "op",
    [
        ops.Filter(lambda row: (row["x"] > 1) | (row["y"] == "a")),
        ops.Filter(lambda row: row["y"].str.to_uppercase() != "B"),
        ops.Dropna(),
    ],
    ids=["plain", "on a frame", "missing"],
)
def test_one_row_is_kept_or_dropped_as_in_the_batch(op: ops.Op) -> None:
    frame = pl.DataFrame({"x": [1, 2, None, 4], "y": ["a", "b", "c", None], "f": [0.5, float("nan"), 1.0, 2.0]})
    kept = fl.Workflow(frame.columns >> op).fit(fl.Dataset(frame)).transform(frame)
    assert str([row for row in online(op, frame) if row is not None]) == str(kept.to_dicts())


def test_an_empty_list_is_a_value() -> None:
    frame = pl.DataFrame({"l": [[1], [], None, [None]]})
    got = fl.Workflow(["l"] >> ops.Dropna()).fit(fl.Dataset(frame)).transform(frame)
    assert got["l"].to_list() == [[1], [], [None]]


def test_only_the_selected_columns_count() -> None:
    frame = pl.DataFrame({"x": [1, None], "y": [None, 2]})
    got = fl.Workflow(["x"] >> ops.Dropna()).fit(fl.Dataset(frame)).transform(frame)
    assert got.to_dict(as_series=False) == {"x": [1]}


def test_a_condition_is_about_columns_that_are_there() -> None:
    with pytest.raises(ColumnNotFoundError, match="did you mean `rating`"):
        ["rating"] >> ops.Filter(lambda row: row["ratings"] > 3)
    with pytest.raises(ConfigError, match=r'a column is `row\["rating"\]`'):
        ops.Filter(lambda row: row.rating > 3)
    with pytest.raises(ConfigError, match="cannot be used in a workflow"):
        ops.Filter(lambda row: row["x"] > row["x"].mean())


def test_a_value_that_a_condition_cannot_use_is_an_error() -> None:
    op, frame = ops.Filter(lambda row: row["x"].cast(pl.Int8) > 3), pl.DataFrame({"x": [4]})
    with pytest.raises(DataError, match="`Filter` cannot use"):
        fl.Workflow(["x"] >> op).fit(fl.Dataset(frame)).online()({"x": 300})
