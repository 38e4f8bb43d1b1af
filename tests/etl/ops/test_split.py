"""Split inside a graph: its user and time are read wherever they are."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import falconet as fl
from falconet import ops
from falconet.errors import ColumnNotFoundError, ConfigError, SchemaError
from falconet.testing.contracts import OpContract, same, write_parts

FRAME = pl.DataFrame({"user": [1, 2, 1, None, 1, 2], "time": [5, 5, None, 1, 9, 5], "item": list("abcdef")})


class TestSplit(OpContract):
    op = ops.Split(user="user", ratio=0.5, valid_ratio=0.2, seed=3)
    frame = pl.DataFrame({"user": [1, 2, 1, 2, 1, 1, 3, None, 1], "item": list(range(9))})


class TestSplitLast(OpContract):
    op = ops.Split(kind="leave_last", user="user", time="time")
    frame = pl.DataFrame({"user": [1, 2, 1, 2, 1, 3], "time": [5, 5, 9, 5, 9, None]})


class TestSplitTime(OpContract):
    op = ops.Split(kind="time", time="time", ratio=0.5)
    frame = pl.DataFrame({"time": [5, 1, 9, 5, 7, None]})


class TestSplitOfColumnsThatAreNotSelected(OpContract):
    op = ops.Split(kind="leave_last", user="user", time="time", valid_ratio=0.1)
    frame = FRAME
    columns = ("item",)


def test_user_and_time_need_not_be_selected(tmp_path: Path) -> None:
    op = ops.Split(kind="leave_last", user="user", time="time", valid_ratio=0.1)
    fitted = fl.Workflow(["item"] >> op).fit(fl.Dataset(FRAME))
    got = fitted.transform(FRAME)
    assert got.columns == ["item", "split"]
    assert got["split"].to_list() == ["valid", "train", "train", "train", "test", "test"]
    same(fitted.transform(write_parts(FRAME, (2, 2, 5), tmp_path)).collect(), got)
    assert fitted.input_columns == ("item", "user", "time")
    assert fitted.schema["split"].source == ("item", "user", "time")


def test_a_random_split_without_users_reads_no_other_column() -> None:
    fitted = fl.Workflow(["item"] >> ops.Split(seed=1)).fit(fl.Dataset(FRAME))
    assert fitted.input_columns == ("item",)
    assert sorted(fitted.transform(FRAME)["split"]) == ["test", *["train"] * 5]


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(ColumnNotFoundError, match="did you mean `user`"):
        fl.Workflow(["item"] >> ops.Split(user="users")).fit(fl.Dataset(FRAME))
    with pytest.raises(ConfigError, match="would add a second column `split`"):
        fl.Workflow(["item"] >> ops.Split(user="split")).fit(fl.Dataset(FRAME.with_columns(split=1)))


@pytest.mark.parametrize("op", [ops.Split(kind="time", time="x"), ops.Split(user="x")], ids=str)
def test_a_list_is_no_user_and_no_time(op: ops.Split) -> None:
    with pytest.raises(SchemaError, match=r"needs one value per row, `x` is List"):
        fl.Workflow(["x", "i"] >> op).fit(fl.Dataset(pl.DataFrame({"x": [[1], [2]], "i": [1, 2]})))
