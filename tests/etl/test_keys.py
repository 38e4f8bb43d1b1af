"""Statistics of keys whose states do not fit memory are those of memory, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import falconet as fl
from falconet import ops
from falconet.compute.local import LocalExecutor
from falconet.etl.op import StatOp
from falconet.testing.contracts import same, write_parts

RANDOM = np.random.default_rng(0)
FRAME = pl.DataFrame(
    {
        "user": RANDOM.integers(0, 50, 200),
        "shop": [None if i % 7 == 0 else f"é{i % 30}" for i in range(200)],
        "x": RANDOM.lognormal(0, 9, 200),
        "y": RANDOM.integers(0, 2, 200),
    }
)


@pytest.mark.parametrize(
    ("op", "memory"),
    [
        (ops.JoinGroupby(cont_cols=["x", "y"], stats=["count", "sum", "std", "median", "nunique"]), 200_000),
        (ops.TargetEncoding(target=["y", "x"]), 40_000),
    ],
    ids=["JoinGroupby", "TargetEncoding"],
)
def test_states_that_go_through_files_are_those_of_memory(
    op: StatOp, memory: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("falconet.etl.spill.BATCH", 1)
    data = write_parts(FRAME, (60, 120), tmp_path)
    workflow = fl.Workflow([["user", "shop"]] >> op)
    want = workflow.fit(data)
    assert "go through files" not in capsys.readouterr().err
    got = workflow.fit(data, executor=LocalExecutor(memory=memory))
    assert "go through files" in capsys.readouterr().err
    for key, state in want.states.items():
        same(got.states[key], state)
