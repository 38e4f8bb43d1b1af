"""Operators behind operators, on odd frames: the same bits for any cut, for one row, and after a save."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import falconet as fl
from falconet import ops
from falconet.etl.selector import Node, as_node
from falconet.testing.contracts import same, write_parts
from odd_frames import SCHEMA, frame_of, frames
from plain_rows import bits

ELEMENT = pl.element()
TABLE = pl.DataFrame({"word": ["a", "日本"], "extra": [0.1, None]})
EVENTS = {"partition_cols": "flag", "time": "time"}


def on(*names: str) -> Callable[[Callable[[], Any]], Callable[[Node], Node]]:
    """A step that puts an operator on some columns and leaves the others."""
    return lambda op: lambda node: as_node([node - list(names), node[list(names)] >> op()])


def beside(key: str, op: Callable[[Node], Any]) -> Callable[[Node], Node]:
    """A step that adds what an operator makes of a key."""
    return lambda node: as_node([node, node[[key]] >> op(node)])


KEEP_ROWS: dict[str, Callable[[Node], Node]] = {
    "constants": on("real")(lambda: ops.LambdaOp(lambda x: x / pl.when(x > 9).then(x).otherwise(7.3))),
    "a quotient": on("small", "whole")(lambda: ops.LambdaOp(lambda x: (x // 0.3 + 0.0).fill_nan(None))),
    "parts of lists": on("reals")(lambda: ops.LambdaOp(lambda x: x.list.eval(ELEMENT / ELEMENT.sum()))),
    "sums of lists": lambda node: as_node(
        [node, node["reals"] >> ops.LambdaOp(lambda x: x.list.sum() / 49) >> ops.Rename(name="total")]
    ),
    "a scale": on("small", "real")(lambda: ops.Normalize()),
    "a range": on("reals", "time")(lambda: ops.NormalizeMinMax()),
    "a median": on("real")(lambda: ops.FillMedian()),
    "a limit": on("real", "reals")(lambda: ops.Clip(min_value=-1, max_value=5)),
    "logarithms": on("real", "reals")(lambda: ops.LogOp()),
    "slices": on("words", "reals")(lambda: ops.ListSlice(-2, 3)),
    "folds": beside("flag", lambda node: ops.TargetEncoding(target=node["small"], kfold=3)),
    "keys": beside("time", lambda node: ops.JoinGroupby(cont_cols=node["real"], stats=["std", "median", "nunique"])),
    "a table": lambda node: node >> ops.JoinExternal(TABLE, on="word"),
}
MORE: dict[str, Callable[[Node], Node]] = {
    "a condition": lambda node: node >> ops.Filter(lambda row: row["small"] / 7 > 0.1),
    "no nulls": lambda node: node >> ops.Dropna(),
    "a place": lambda node: node >> ops.Position(partition_cols="flag"),
    "time since": lambda node: node >> ops.TimeSince(**EVENTS),
}
LAST: dict[str, Callable[[Node], Any]] = {
    "codes": lambda node: node >> ops.Categorify(num_buckets=2),
    "hashes": on("word", "words", "small")(lambda: ops.HashBucket(5)),
    "buckets": on("real", "reals", "small")(lambda: ops.Bucketize(3)),
    "as it is": lambda node: node,
}


def chain(names: list[str], last: str) -> fl.Workflow:
    node = as_node(list(SCHEMA))
    for name in names:
        node = (KEEP_ROWS | MORE)[name](node)
    return fl.Workflow(LAST[last](node))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(st.sampled_from([*KEEP_ROWS, *MORE]), min_size=2, max_size=2, unique=True),
    last=st.sampled_from(sorted(LAST)),
    train=frames.filter(bool),
    edges=st.lists(st.integers(0, 8), max_size=3),
)
def test_no_cut_changes_what_a_chain_makes(
    names: list[str], last: str, train: list[Any], edges: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    frame, workflow = frame_of(train), chain(names, last)
    parts = write_parts(frame, sorted(edges), tmp_path_factory.mktemp("parts"))
    whole, cut = workflow.fit(fl.Dataset(frame)), workflow.fit(parts)
    for key, state in whole.states.items():
        same(cut.states[key], state)
    same(cut.transform(parts).collect(), whole.transform(fl.Dataset(frame)).collect())


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(st.sampled_from(list(KEEP_ROWS)), min_size=2, max_size=2, unique=True),
    last=st.sampled_from(sorted(LAST)),
    train=frames.filter(bool),
    test=frames,
)
def test_rows_alone_are_those_of_the_batch_after_a_save(
    names: list[str], last: str, train: list[Any], test: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    fitted, frame = chain(names, last).fit(fl.Dataset(frame_of(train))), frame_of(test)
    loaded = fl.Workflow.load(fitted.save(tmp_path_factory.mktemp("saved") / "workflow"))
    want = fitted.transform(frame)
    same(loaded.transform(frame), want)
    online = [loaded.online()(row) for row in frame.to_dicts()]
    assert [bits(list(row.values())) for row in online] == [bits(list(row)) for row in want.rows()]
    for number, row in enumerate(frame.iter_slices(1)):
        same(loaded.transform(row), want[number : number + 1])
