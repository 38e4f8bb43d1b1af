"""New names for columns."""

from __future__ import annotations

import polars as pl
import pytest

import falconet as fl
from falconet import ops
from falconet.errors import ConfigError
from falconet.testing.contracts import OpContract


class TestRename(OpContract):
    op = ops.Rename(names={"a": "b", "b": "a"})
    frame = pl.DataFrame({"a": [1, 2], "b": ["x", None]})


def test_names_may_change_places() -> None:
    frame = pl.DataFrame({"a": [1], "b": ["x"]})
    got = fl.Workflow(["a", "b"] >> ops.Rename(names={"a": "b", "b": "a"})).fit(fl.Dataset(frame)).transform(frame)
    assert got.to_dict(as_series=False) == {"b": [1], "a": ["x"]}


def test_rename_needs_one_way() -> None:
    with pytest.raises(ConfigError, match="Rename needs one way"):
        ops.Rename()
    with pytest.raises(ConfigError, match="Rename needs one way"):
        ops.Rename(name="a", postfix="_b")


def test_one_name_is_for_one_column() -> None:
    with pytest.raises(ConfigError, match="is for one column, not a, b"):
        ["a", "b"] >> ops.Rename(name="c")


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="gives two of a, b the same name"):
        ["a", "b"] >> ops.Rename(names={"a": "b"})
