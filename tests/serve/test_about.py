"""What is told of data and of runs: figures by hand, nothing of single people, nasty values, no paths."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from falconet.errors import ArtifactError
from falconet.etl.workflow import FittedWorkflow
from falconet.schema import FOOTER_KEY, Column, Schema, Tag
from falconet.serve.about import read_about
from falconet.serve.about_data import data_summary, same_features
from falconet.serve.about_runs import flat, run_times, runs_summary
from serving_world import World


def write(folder: Path, frame: pl.DataFrame, *columns: Column) -> None:
    folder.mkdir(parents=True)
    footer = {FOOTER_KEY: Schema(columns).to_json().encode()}
    pq.write_table(frame.to_arrow().replace_schema_metadata(footer), folder / "part.parquet")


@pytest.fixture
def workflow(world: World) -> FittedWorkflow:
    return FittedWorkflow.load(world.folder / "workflow")


@pytest.fixture
def features(tmp_path: Path) -> Path:
    tag = lambda *tags: frozenset(tags)  # noqa: E731
    write(
        tmp_path / "items",
        pl.DataFrame({
            "count": [1, 6, 3, 0],
            "show_note": ["<b>", "<b>", None, "once"],
            "show_score": [1.0, float("nan"), None, 5.0],
            "show_when": [datetime(2020, 1, 1)] * 4,
            "show_tags": [["a", "b"], [], None, ["a"]],
            "show_only": ["w", "x", "y", "z"],
        }),
        Column(name="count", dtype="int64"), Column(name="show_note", dtype="string"),
        Column(name="show_score", dtype="float64"), Column(name="show_when", dtype="timestamp"),
        Column(name="show_tags", dtype="string", list="ragged"), Column(name="show_only", dtype="string"),
    )  # fmt: skip
    write(
        tmp_path / "users",
        pl.DataFrame({"seen": [[3, 4], [4], [], [4, 4, 4, 4, 4, 4, 4]]}, schema={"seen": pl.List(pl.Int32)}),
        Column(name="seen", dtype="int32", list="ragged"),
    )
    write(
        tmp_path / "train",
        pl.DataFrame(
            {
                "age": [19.0, 97.0, 30.0, 31.0],
                "zip": [3, 4, 1, 2],
                "price": [2.0, 2.0, float("inf"), None],
                "kinds": [[1], [3, 1], [], [4]],
            },
            schema_overrides={"zip": pl.Int32, "kinds": pl.List(pl.Int32)},
        ),
        Column(name="age", dtype="float64", tags=tag(Tag.USER, Tag.CONTINUOUS)),
        Column(name="zip", dtype="int32", tags=tag(Tag.USER, Tag.CATEGORICAL), cardinality=5, oov=1),
        Column(name="price", dtype="float64", tags=tag(Tag.ITEM, Tag.CONTINUOUS)),
        Column(name="kinds", dtype="int32", list="ragged", tags=tag(Tag.ITEM, Tag.CATEGORICAL), cardinality=5, oov=1),
    )  # fmt: skip
    return tmp_path


def test_figures_are_those_of_the_tables(features: Path, workflow: FittedWorkflow) -> None:
    told = data_summary(features, workflow)
    assert (told["users"], told["items"], told["interactions"]) == (4, 4, 10)
    assert told["popularity"] == {"curve": [[1, 6], [2, 3], [3, 1], [4, 0]], "half": 1, "top_percent": 0.6, "once": 2}
    assert (told["activity"]["low"], told["activity"]["high"], sum(told["activity"]["counts"])) == (1, 7, 3)
    columns = {one["name"]: one for one in told["tables"][1]["columns"]}
    assert columns["note"]["top"] == [["<b>", 0.5], ["once", 0.25]]
    assert (columns["note"]["missing"], columns["score"]["missing"], columns["tags"]["missing"]) == (0.25, 0.5, 0.25)
    assert columns["score"]["histogram"]["counts"] == [1, 0, 0, 0, 1]
    assert columns["score"]["histogram"]["mean"] == 3
    assert columns["tags"]["lengths"]["counts"] == [1, 1, 1]
    assert columns["tags"]["top"] == [["a", 0.666667], ["b", 0.333333]]
    assert columns["only"]["top"] == [], "titles and the like are no distribution"
    json.dumps(told, allow_nan=False)


def test_of_people_no_value_is_told(features: Path, workflow: FittedWorkflow) -> None:
    columns = {one["name"]: one for one in data_summary(features, workflow)["tables"][0]["columns"]}
    assert (columns["age"]["histogram"], columns["age"]["top"]) == (None, None)
    assert (columns["zip"]["histogram"], columns["zip"]["top"]) == (None, None)
    assert (columns["zip"]["missing"], columns["zip"]["unknown"]) == (0.25, 0.25)
    assert (columns["price"]["missing"], columns["price"]["histogram"]["counts"]) == (0.25, [2])
    assert columns["kinds"]["missing"] == 0.25  # an empty list says that there are none


def test_nothing_at_all_is_no_error(features: Path, workflow: FittedWorkflow) -> None:
    for name in ("items", "users", "train"):
        file = features / name / "part.parquet"
        pq.write_table(pq.read_table(file).slice(0, 0), file)
    told = data_summary(features, workflow)
    assert told["popularity"] == {"curve": [], "half": 0, "top_percent": 0.0, "once": 0}
    assert told["activity"] is None
    assert all(one["missing"] == 0 and not one["top"] for table in told["tables"] for one in table["columns"])


def test_the_two_ways_to_features_are_compared_row_by_row(
    world: World, workflow: FittedWorkflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pl.read_parquet(world.folder / "raw.parquet").head(20)
    assert same_features(workflow, rows) == {"rows": 20, "columns": {"user": 0, "item": 0}}
    changed = FittedWorkflow.transform

    def wrong(self: FittedWorkflow, data: pl.DataFrame, *, out_of_fold: bool = True) -> pl.DataFrame:
        frame = changed(self, data, out_of_fold=out_of_fold)
        return frame.with_columns(item=pl.when(pl.int_range(pl.len()) < 3).then(0).otherwise("item"))

    monkeypatch.setattr(FittedWorkflow, "transform", wrong)
    assert same_features(workflow, rows) == {"rows": 20, "columns": {"user": 0, "item": 3}}


def make_run(folder: Path) -> Path:
    (folder / "model").mkdir(parents=True)
    (folder / "model/config.json").write_text(
        json.dumps({"model": "DIN", "config": {"a": {"b": 1}, "vectors": "/x/y.npy"}})
    )
    (folder / "config.json").write_text(json.dumps({"data": {"batch_size": 8, "data": "hash"}, "train": {"epochs": 2}}))
    (folder / "metrics.jsonl").write_text('{"epoch": 1, "loss": 2.0}\n{"epoch": 2, "loss": 1.0}\n')
    (folder / "best.json").write_text('{"epoch": 1, "snapshot": "00000009"}')
    events = [
        {"event": "start", "device": "cpu", "precision": "float32", "world": 2},
        {"event": "epoch", "epoch": 1, "seconds": 9.0, "rows_per_s": 10.0},
        {"event": "start", "device": "cpu", "precision": "float32", "world": 2},
        {"event": "epoch", "epoch": 1, "seconds": 2.0, "rows_per_s": 50.0},
        {"event": "epoch", "epoch": 2, "seconds": 1.5, "rows_per_s": 70.0},
    ]
    (folder / "run.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def test_a_run_is_told_with_its_settings_epochs_and_best(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    [told] = runs_summary({"ranker": folder})["runs"]
    assert told == {
        "name": "ranker", "model": "DIN", "best": 1,
        "settings": {"model.a.b": 1, "model.vectors": "y.npy", "train.epochs": 2, "data.batch_size": 8},
        "epochs": [{"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.0}],
    }  # fmt: skip
    times = run_times({"ranker": folder})["ranker"]
    assert times["rows_per_s"] == {"1": 50.0, "2": 70.0}, "an epoch that was begun again counts once"
    assert (times["seconds"], times["world"]) == (3.5, 2)


def test_a_model_in_closed_form_has_no_epochs(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    for name in ("config.json", "metrics.jsonl", "run.jsonl", "best.json"):
        (folder / name).unlink()
    [told] = runs_summary({"ease": folder})["runs"]
    assert (told["epochs"], told["best"]) == ([], None)
    assert run_times({"ease": folder})["ease"]["seconds"] == 0


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no finished run at `.*nowhere"):
        runs_summary({"x": tmp_path / "nowhere"})


@pytest.mark.parametrize("path", ["/home/me/vectors.npy", "C:\\data\\vectors.npy", "vectors.npy"])
def test_a_path_is_its_last_part(path: str) -> None:
    assert flat({"file": path, "deep": {"n": None, "list": [1]}}) == {
        "file": "vectors.npy",
        "deep.n": None,
        "deep.list": [1],
    }


@pytest.mark.parametrize("content", [b"[" * 100_000, b"{", b"[]", b'{"format": 2}'], ids=["deep", "{", "[]", "format"])
def test_a_file_that_cannot_be_read_is_left_out(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "about").mkdir()
    (tmp_path / "about/times.json").write_bytes(content)
    assert read_about(tmp_path).times is None


def test_numbers_that_json_does_not_know_are_missing(tmp_path: Path) -> None:
    (tmp_path / "about").mkdir()
    (tmp_path / "about/times.json").write_text('{"format": 1, "seconds": NaN}')
    assert read_about(tmp_path).times == {"format": 1, "seconds": None}
