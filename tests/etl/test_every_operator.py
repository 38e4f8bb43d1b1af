"""Every operator on odd frames: no crash, the same bits for any cut and executor, what the schema says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import falconet as fl
from falconet import ops
from falconet.compute.executor import Executor
from falconet.errors import DataError, FalconetError
from falconet.etl.types import polars_type
from falconet.testing.contracts import same, write_parts
from odd_frames import REAL, SCHEMA, WHOLE, WORDS, frame_of, frames

TABLE = pl.DataFrame({"word": ["a", "日本", "b"], "extra": [["x", "y"], [], None], "year": [1990, None, 2001]})
VECTORS = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0]])

SCALARS = ["word", "whole", "small", "real"]
NUMBERS = ["whole", "small", "real", "reals"]
EVENTS = {"partition_cols": ["word"], "sort_cols": ["time"]}

NODES: dict[str, Callable[[], Any]] = {
    "AddMetadata": lambda: SCALARS >> ops.AddMetadata(tags=["user"]),
    "AddProperties": lambda: ["small"] >> ops.AddProperties(properties={"max": 127}),
    "AddTags": lambda: SCALARS >> ops.AddTags(["user"]),
    "Age": lambda: ["time"] >> ops.Age(reference=10),
    "Bucketize": lambda: NUMBERS >> ops.Bucketize(boundaries=[-1.0, 0.0, 2.0]),
    "Categorify": lambda: [*SCALARS, "words", "reals"] >> ops.Categorify(freq_threshold=2, num_buckets=3),
    "Clip": lambda: ["small", "real", "reals"] >> ops.Clip(min_value=-1, max_value=5),
    "ColumnSimilarity": lambda: [["time", "flag"]] >> ops.ColumnSimilarity(left_features=VECTORS),
    "CyclicTime": lambda: ["time"] >> ops.CyclicTime(parts=["hour"], unit="s"),
    "DataStats": lambda: [*SCALARS, "words"] >> ops.DataStats(),
    "DifferenceLag": lambda: ["small", "real"] >> ops.DifferenceLag(shift=[1, -1], **EVENTS),
    "DropLowCardinality": lambda: (SCALARS >> ops.Categorify() >> ops.DropLowCardinality(min_cardinality=1)) + ["time"],
    "Dropna": lambda: SCALARS >> ops.Dropna(),
    "FillMedian": lambda: ["small", "real", "whole"] >> ops.FillMedian(add_binary_cols=True),
    "FillMissing": lambda: ["small", "real"] >> ops.FillMissing(fill_val=3, add_binary_cols=True),
    "Filter": lambda: SCALARS >> ops.Filter(lambda row: row["small"] > 0),
    "Groupby": lambda: (
        ["word", "time", "small", "real"]
        >> ops.Groupby(
            groupby_cols=["word"], sort_cols=["time"], aggs={"small": ["list", "sum", "mean"], "real": "last"}
        )
    ),
    "HashBucket": lambda: [*SCALARS, "words"] >> ops.HashBucket(num_buckets=5),
    "HashedCross": lambda: [["word", "small"]] >> ops.HashedCross(num_buckets=7),
    "History": lambda: ["word", "small", "time"] >> ops.History(key="word", item="small", time="time", length=2),
    "JoinExternal": lambda: ["word", "small"] >> ops.JoinExternal(TABLE, on="word"),
    "JoinGroupby": lambda: (
        ["word", ["word", "flag"]]
        >> ops.JoinGroupby(cont_cols=["small", "real"], stats=["count", "sum", "mean", "std", "min", "max"])
    ),
    "LambdaOp": lambda: ["small", "real"] >> ops.LambdaOp(lambda x: x > 0),
    "ListSlice": lambda: ["reals"] >> ops.ListSlice(2, pad=True),
    "LogOp": lambda: ["small", "real", "reals"] >> ops.LogOp(),
    "NegativeSamples": lambda: (
        ["word", "small", "time"] >> ops.NegativeSamples(user="word", item="small", time="time", n=2)
    ),
    "Normalize": lambda: NUMBERS >> ops.Normalize(),
    "NormalizeMinMax": lambda: NUMBERS >> ops.NormalizeMinMax(),
    "Position": lambda: ["small"] >> ops.Position(**EVENTS),
    "ReduceDtypeSize": lambda: ["small", "whole", "real"] >> ops.ReduceDtypeSize(),
    "Rename": lambda: SCALARS >> ops.Rename(postfix="_new"),
    "Session": lambda: ["small"] >> ops.Session(partition_cols="word", time="time", gap=1),
    "Split": lambda: ["word", "time"] >> ops.Split(kind="leave_last", user="word", time="time"),
    "TagAsItemFeatures": lambda: SCALARS >> ops.TagAsItemFeatures(),
    "TagAsItemID": lambda: ["small"] >> ops.TagAsItemID(),
    "TagAsUserFeatures": lambda: SCALARS >> ops.TagAsUserFeatures(),
    "TagAsUserID": lambda: ["small"] >> ops.TagAsUserID(),
    "TargetEncoding": lambda: ["word", ["word", "small"]] >> ops.TargetEncoding(target="flag", kfold=3),
    "TimeParts": lambda: ["time"] >> ops.TimeParts(parts=["hour", "weekday"], unit="s"),
    "TimeSince": lambda: ["small"] >> ops.TimeSince(partition_cols="word", time="time", item="small"),
    "ValueCount": lambda: ["words", "reals"] >> ops.ValueCount(),
}
STATISTICS = sorted(name for name in NODES if issubclass(ops.OPS[name], ops.StatOp))
ROWS_CHANGE = {"Dropna", "Filter", "Groupby", "NegativeSamples"}


ROWS: list[dict[str, Any]] = [
    {
        "word": WORDS[i % 5],
        "whole": WHOLE[i],
        "small": i - 4,
        "real": REAL[i],
        "words": WORDS[: i % 3],
        "reals": REAL[i:],
        "time": i % 4,
        "flag": i % 2,
    }
    for i in range(9)
]


def test_every_operator_is_here() -> None:
    ours = {name for name, op in ops.OPS.items() if op.__module__.startswith("falconet.")}
    assert ours == set(NODES)


@pytest.mark.parametrize("name", sorted(NODES))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(train=frames, test=frames, edges=st.lists(st.integers(0, 8), max_size=3))
def test_no_frame_breaks_it_and_no_cut_changes_it(
    name: str,
    train: list[dict[str, Any]],
    test: list[dict[str, Any]],
    edges: list[int],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    frame, other = frame_of(train), frame_of(test)
    workflow = fl.Workflow(NODES[name]())
    folder = tmp_path_factory.mktemp("parts")
    try:
        whole = workflow.fit(fl.Dataset(frame))
    except FalconetError as error:
        assert frame.is_empty(), error  # only a fit on no rows may be refused
        return
    parts = write_parts(frame, sorted(edges), folder)
    cut = workflow.fit(parts)
    for key, state in whole.states.items():
        same(cut.states[key], state)
    same(cut.transform(parts).collect(), whole.transform(fl.Dataset(frame)).collect())
    try:
        made = whole.transform(other)
    except DataError as error:
        assert name in {"ReduceDtypeSize", "ValueCount"}, error  # a value beyond the type or the length of the fit
        return
    assert {column.name: polars_type(column) for column in whole.schema} == dict(made.schema)
    if name not in ROWS_CHANGE:
        assert made.height == other.height


@pytest.mark.parametrize("name", STATISTICS)
def test_a_statistic_is_the_same_on_every_executor(name: str, executor: Executor, tmp_path: Path) -> None:
    frame = frame_of([*ROWS, dict.fromkeys(SCHEMA)])
    workflow = fl.Workflow(NODES[name]())
    parts = write_parts(frame, (0, 1, 4, 4, 9), tmp_path)
    whole, cut = workflow.fit(fl.Dataset(frame)), workflow.fit(parts, executor=executor)
    for key, state in whole.states.items():
        same(cut.states[key], state)
    same(cut.transform(parts).collect(), whole.transform(fl.Dataset(frame)).collect())
