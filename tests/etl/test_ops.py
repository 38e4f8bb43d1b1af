"""Every operator against its contract, and what is its own."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import polars as pl
import pytest

import falconet as fl
from falconet import ops
from falconet.errors import ConfigError, SchemaError
from falconet.testing.contracts import OpContract, StatOpContract, same

MOVIES = pl.DataFrame({"movie": [10, 20, 30], "genres": [["a", "b"], [], ["a"]], "year": [1990, None, 2001]})


def apply(node: object, frame: pl.DataFrame, train: pl.DataFrame | None = None) -> pl.DataFrame:
    """A graph fitted on `train` (or the frame itself) and applied to the frame."""
    return fl.Workflow(node).fit(fl.Dataset(frame if train is None else train)).transform(frame)


class TestHistory(StatOpContract):
    op = ops.History(key="user", item="item", time="time", length=2)
    frame = pl.DataFrame(
        {
            "user": ["a", "a", "b", "a", "a", None, "b"],
            "item": [1, 2, 3, 4, 5, 6, None],
            "time": [1, 2, 2, 2, 3, 4, None],
        }
    )


class TestHistoryOfOthers(StatOpContract):
    op = ops.History(key="user", item="item", length=2)
    frame = pl.DataFrame({"user": [1, 1, 2, 1, 1], "item": ["x", "y", "x", "z", "x"]})


class TestHistoryWithTies(StatOpContract):
    op = ops.History(key="user", item="item", time="time", row="row")
    frame = pl.DataFrame({"user": [1, 1, 1, 1], "item": [7, 8, 9, 7], "time": [5, 5, 5, 4], "row": [3, 1, 2, 0]})


class TestSplit(OpContract):
    op = ops.Split(user="user", ratio=0.5, valid_ratio=0.2, seed=3)
    frame = pl.DataFrame({"user": [1, 2, 1, 2, 1, 1, 3, None, 1], "item": list(range(9))})


class TestSplitLast(OpContract):
    op = ops.Split(kind="leave_last", user="user", time="time")
    frame = pl.DataFrame({"user": [1, 2, 1, 2, 1, 3], "time": [5, 5, 9, 5, 9, None]})


class TestSplitTime(OpContract):
    op = ops.Split(kind="time", time="time", ratio=0.5)
    frame = pl.DataFrame({"time": [5, 1, 9, 5, 7, None]})


# JoinExternal


# the others


def test_a_history_has_no_future_and_no_tied_event() -> None:
    frame = TestHistory.frame
    got = apply(["user", "item", "time"] >> TestHistory.op, frame)
    assert got["history"].to_list() == [[], [1], [], [1], [2, 4], [], [3]]


def test_a_history_of_codes_has_the_item_s_domain() -> None:
    item = ["item"] >> ops.Categorify() >> ops.AddTags(["item", "id"])
    node = ["user", "time", item] >> ops.History(key="user", item="item", time="time")
    column = fl.Workflow(node).fit(fl.Dataset(TestHistory.frame)).schema["history"]
    assert (column.domain, column.cardinality, column.list) == ("item", 9, "ragged")
    assert column.tags == {"user", "sequence", "categorical"}


def test_later_data_does_not_change_the_history_of_the_fit() -> None:
    train = pl.DataFrame({"user": [1, 1], "item": [7, 8], "time": [1, 2]})
    fitted = fl.Workflow(
        (["user", "item", "time"] >> ops.History(key="user", item="item", time="time"))["history"]
    ).fit(fl.Dataset(train))
    new = pl.DataFrame({"user": [1, 1, 2, 1], "item": [9, 9, 9, 9], "time": [2, 3, 3, None]})
    assert fitted.transform(new)["history"].to_list() == [[7], [7, 8], [], [7, 8]]


def test_histories_by_datetime() -> None:
    times = [dt.datetime(2020, 1, day) for day in (1, 2, 3)]
    frame = pl.DataFrame({"user": [1, 1, 1], "item": [7, 8, 9], "time": times})
    fitted = fl.Workflow(
        (["user", "item", "time"] >> ops.History(key="user", item="item", time="time"))["history"]
    ).fit(fl.Dataset(frame))
    assert fitted.transform(frame)["history"].to_list() == [[], [7], [7, 8]]
    assert fitted.online()(frame.row(2, named=True)) == {"history": [7, 8]}


def test_categories_that_appear_inside_a_graph_are_strings(tmp_path: Path) -> None:
    table = pl.DataFrame({"kind": pl.Series(["a", "b"], dtype=pl.Categorical), "size": [[1], [2]]})
    table = table.with_columns(colour=pl.Series(["x", "y"], dtype=pl.Enum(["x", "y"])))
    frame = pl.DataFrame({"kind": pl.Series(["b", "c"], dtype=pl.Categorical), "n": [1, 9]})
    joined = ["kind"] >> ops.JoinExternal(table, on="kind")
    binned = ["n"] >> ops.LambdaOp(
        lambda col: pl.when(col > 5).then(pl.lit("high")).otherwise(pl.lit("low")).cast(pl.Enum(["low", "high"]))
    )
    got = apply([joined, binned], frame)
    assert got.to_dicts() == [
        {"kind": "b", "size": [2], "colour": "y", "n": "low"},
        {"kind": "c", "size": None, "colour": None, "n": "high"},
    ]
    assert set(got.dtypes) == {pl.String, pl.List(pl.Int64)}
    assert apply(binned >> ops.Categorify(), frame)["n"].to_list() == [4, 3]


@pytest.mark.parametrize(
    "node",
    [
        ["x", "i"] >> ops.History(key="x", item="i"),
        ["x", "i"] >> ops.History(key="i", item="x"),
        ["x", "i"] >> ops.Split(kind="time", time="x"),
        ["x", "i"] >> ops.Split(user="x"),
    ],
    ids=str,
)
def test_a_list_is_no_key_and_no_time(node: object) -> None:
    with pytest.raises(SchemaError, match=r"needs one value per row, `x` is List"):
        fl.Workflow(node).fit(fl.Dataset(pl.DataFrame({"x": [[1], [2]], "i": [1, 2]})))


@pytest.mark.parametrize("name", ["start", "end", "count", "key", "item", "times", "0/a", "a/b"])
def test_histories_of_columns_with_the_names_used_inside(name: str, tmp_path: Path) -> None:
    frame = pl.DataFrame({name: [1, 1, 2, 1], "t": [1, 2, 3, 4], "i": ["a", "b", "c", "d"], "a": [0, 0, 0, 0]})
    timed = ops.History(key=name, item="i", time="t")
    fitted = fl.Workflow([name, "t", "i", "a"] >> timed).fit(fl.Dataset(frame))
    got = fl.Workflow.load(fitted.save(tmp_path / "w")).transform(frame)
    assert got["history"].to_list() == [[], ["a"], [], ["a", "b"]]
    assert got["a"].to_list() == [0, 0, 0, 0]
    others = apply([name, "i"] >> ops.History(key=name, item="i"), frame)
    assert others["history"].to_list() == [["b", "d"], ["a", "d"], [], ["a", "b"]]


def test_a_history_has_a_column_for_each_of_its_roles() -> None:
    with pytest.raises(ConfigError, match="three different columns"):
        ops.History(key="user", item="time", time="time")


def test_histories_are_put_together_slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pl.DataFrame({"user": [1, 2, 1, 1, 2, 1], "item": list("abcdef"), "time": [1, 1, 2, 3, 3, 4]})
    for op in (ops.History(key="user", item="item", time="time"), ops.History(key="user", item="item")):
        whole = apply(["user", "item", "time"] >> op, frame)
        with monkeypatch.context() as patch:
            patch.setattr("falconet.etl.ops.history.SLICE_ROWS", 2)
            same(apply(["user", "item", "time"] >> op, frame), whole)
