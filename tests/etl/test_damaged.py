"""A saved workflow that was damaged or made up: refused by name, never run, never read as something else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import falconet as fl
from falconet import ops
from falconet.errors import ArtifactError, FalconetError
from falconet.io.artifact import MANIFEST, seal

FRAME = pl.DataFrame(
    {
        "user": ["a", "b", "a", "c", None],
        "item": [10, 20, 20, 10, 30],
        "time": [1, 2, 3, 4, 5],
        "price": [1.5, None, 2.5, float("nan"), 8.0],
        "bought": [1, 0, 1, 1, 0],
    }
)
MOVIES = pl.DataFrame({"item": [10, 20], "tags": [["x", "y"], []]})


def everything() -> fl.Workflow:
    """A graph with every kind of state, table, setting and expression."""
    tags = ["item"] >> ops.JoinExternal(MOVIES, on="item")
    codes = ["user", tags] >> ops.Categorify(num_buckets=2)
    price = ["price"] >> ops.FillMedian() >> ops.LogOp() >> ops.Normalize()
    rate = ["user"] >> ops.TargetEncoding(target="bought", kfold=2)
    label = ["bought"] >> ops.LambdaOp(lambda x: (x > 0).cast(pl.Int8)) >> ops.AddTags(["target"])
    history = (["user", "item", "time"] >> ops.History(key="user", item="item", time="time"))["history"]
    lag = ["time"] >> ops.DifferenceLag(partition_cols="user", sort_cols="time")
    return fl.Workflow(codes + price + rate + label + history + lag)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return everything().fit(fl.Dataset(FRAME)).save(tmp_path / "workflow")


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def damage(data: bytes, draw: random.Random) -> bytes:
    """One byte other than before, or an end that is missing."""
    if draw.random() < 0.25:
        return data[: draw.randrange(len(data))]
    place = draw.randrange(len(data))
    return data[:place] + bytes([data[place] ^ draw.randrange(1, 256)]) + data[place + 1 :]


def reseal(folder: Path) -> None:
    """Make the manifest fit again, as somebody would who made the folder up."""
    (folder / MANIFEST).unlink()
    seal(folder, "workflow", parents={}, extra={})


def test_a_thousand_damages_are_all_refused(saved: Path) -> None:
    draw = random.Random(7)
    files = files_of(saved)
    want = fl.Workflow.load(saved).transform(FRAME)
    for _ in range(1000):
        path = draw.choice(files)
        whole = path.read_bytes()
        path.write_bytes(damage(whole, draw))
        try:
            got = fl.Workflow.load(saved).transform(FRAME)
        except ArtifactError:
            pass
        else:  # such as a blank in the manifest: what it says is still true
            assert path.name == "manifest.json"
            assert got.equals(want, null_equal=True)
        path.write_bytes(whole)


def test_a_made_up_folder_is_refused_or_read_never_a_crash(saved: Path) -> None:
    draw = random.Random(8)
    files = [path for path in files_of(saved) if path.name != "manifest.json"]
    sealed = (saved / "manifest.json").read_bytes()
    refused = 0
    for _ in range(150):
        path = draw.choice(files)
        whole = path.read_bytes()
        path.write_bytes(damage(whole, draw))
        reseal(saved)
        try:
            fl.Workflow.load(saved).transform(FRAME)
        except FalconetError:
            refused += 1
        path.write_bytes(whole)
        (saved / "manifest.json").write_bytes(sealed)
    assert refused > 50


FUNCTION = {"AnonymousFunction": {"input": [], "function": [0] * 8, "options": {}, "fmt_str": "map"}}
PLUGIN = {
    "Function": {
        "input": [{"Column": "__column__"}],
        "function": {"FfiPlugin": {"flags": 0, "lib": "evil.so", "symbol": "run", "kwargs": []}},
    }
}


@pytest.mark.parametrize("tree", [FUNCTION, PLUGIN], ids=["Python function", "native plugin"])
@pytest.mark.parametrize("where", ["lambda", "rename", "state name"])
def test_code_is_refused_wherever_it_stands(saved: Path, tree: Any, where: str) -> None:
    graph = json.loads((saved / "graph.json").read_text())
    places: dict[str, Callable[[], None]] = {
        "lambda": lambda: _step(graph, "LambdaOp")["fields"].update(f={"$expression": tree}),
        "rename": lambda: _step(graph, "LogOp")["fields"].update(f={"$expression": tree}),
        "state name": lambda: _step(graph, "Categorify")["fields"].update(vocabs={"user": {"$expression": tree}}),
    }
    places[where]()
    (saved / "graph.json").write_text(json.dumps(graph))
    reseal(saved)
    with pytest.raises(ArtifactError, match="not allowed"):
        fl.Workflow.load(saved)


def _step(graph: Any, op: str) -> Any:
    return next(step for step in graph["steps"] if step["op"] == op)
