"""New names for columns."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import falconet as fl
from falconet import ops
from falconet.errors import ColumnNotFoundError, ConfigError
from falconet.testing.contracts import OpContract, same

FRAME = pl.DataFrame({"a": [1, 2], "b": ["x", None]})


class TestRename(OpContract):
    op = ops.Rename(names={"a": "b", "b": "a"})
    frame = FRAME


class TestRenameByAFunction(OpContract):
    op = ops.Rename(str.upper)
    frame = FRAME


def apply(node: object) -> dict[str, list[object]]:
    return fl.Workflow(node).fit(fl.Dataset(FRAME)).transform(FRAME).to_dict(as_series=False)


def test_names_may_change_places() -> None:
    assert apply(["a", "b"] >> ops.Rename(names={"a": "b", "b": "a"})) == {"b": [1, 2], "a": ["x", None]}


@pytest.mark.parametrize(
    ("op", "names"),
    [
        (ops.Rename(postfix="_raw"), ["a_raw", "b_raw"]),
        (ops.Rename(prefix="the_", postfix="_"), ["the_a_", "the_b_"]),
        (ops.Rename(lambda name: name + name), ["aa", "bb"]),
        (ops.Rename(names={"a": "c"}), ["c", "b"]),
        (ops.Rename(names={}), ["a", "b"]),
    ],
    ids=["postfix", "both ends", "function", "names", "no names"],
)
def test_names_are_new_and_values_old(op: ops.Op, names: list[str]) -> None:
    assert apply("*" >> op) == dict(zip(names, ([1, 2], ["x", None]), strict=True))


def test_what_a_function_says_is_what_is_saved(tmp_path: Path) -> None:
    fitted = fl.Workflow("*" >> ops.Rename(lambda name: f"{name}2")).fit(fl.Dataset(FRAME))
    loaded = fl.Workflow.load(fitted.save(tmp_path / "w"))
    same(loaded.transform(FRAME), FRAME.rename({"a": "a2", "b": "b2"}))
    assert loaded.prune(["b2"]).online()({"b": "y"}) == {"b2": "y"}


def test_a_name_that_is_not_there_suggests_the_close_one() -> None:
    with pytest.raises(
        ColumnNotFoundError, match=r"(?s)Rename \(`names`\) has no column `movei`.*did you mean `movie`"
    ):
        ["movie", "b"] >> ops.Rename(names={"movei": "item"})
    with pytest.raises(ColumnNotFoundError, match="has no column `c`"):
        fl.Workflow("*" >> ops.Rename(names={"c": "d"})).fit(fl.Dataset(FRAME))


def test_a_pruned_workflow_keeps_the_other_names() -> None:
    fitted = fl.Workflow(["a", "b"] >> ops.Rename(names={"a": "c", "b": "d"})).fit(fl.Dataset(FRAME))
    assert fitted.prune(["c"]).transform(FRAME).to_dict(as_series=False) == {"c": [1, 2]}


def test_rename_needs_one_way() -> None:
    with pytest.raises(ConfigError, match="Rename needs one way"):
        ops.Rename()
    with pytest.raises(ConfigError, match="Rename needs one way"):
        ops.Rename(name="a", postfix="_b")
    with pytest.raises(ConfigError, match="a function of a name, not 'b'"):
        ops.Rename("b")
    with pytest.raises(ConfigError, match="gives None for `a`, which is no name"):
        ["a"] >> ops.Rename({"b": "c"}.get)


def test_one_name_is_for_one_column() -> None:
    with pytest.raises(ConfigError, match="is for one column, not a, b"):
        ["a", "b"] >> ops.Rename(name="c")


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="gives two of a, b the same name"):
        ["a", "b"] >> ops.Rename(names={"a": "b"})
