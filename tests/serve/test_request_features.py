"""The features of a request equal those of training, to the bit."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from falconet import ops
from falconet.batch import Feature, Ragged
from falconet.columns import read_columns
from falconet.errors import DataError
from falconet.etl.dataset import Dataset
from falconet.etl.workflow import FittedWorkflow, Workflow
from falconet.io.footer import read_schema
from falconet.loader.loader import Loader
from falconet.schema import FOOTER_KEY, Column, Schema
from falconet.serve.bundle import load_bundle
from falconet.serve.features import RequestFeatures
from falconet.serve.tables import read_table
from serving_world import HISTORY, World


@pytest.fixture(scope="module")
def features(world: World) -> RequestFeatures:
    return load_bundle(world.bundle).engine.features


def equal(a: Feature, b: Feature) -> bool:
    if isinstance(a, Ragged) or isinstance(b, Ragged):
        assert isinstance(a, Ragged)
        assert isinstance(b, Ragged)
        return equal(a.values, b.values) and equal(a.offsets, b.offsets)
    return a.dtype == b.dtype and torch.equal(a, b)


def test_every_known_person_has_the_features_of_training(world: World, features: RequestFeatures) -> None:
    loader = Loader(world.folder / "users", batch_size=1, columns=["user", "history"])
    rows = list(loader.batches())
    assert len(rows) == 24
    for person, trained in enumerate(rows):
        served = features.batch(person, world.users[0], features.history(person), {"no such": 1})
        assert list(served.features) == ["user", "history"]
        assert served.rows == served.global_rows == 1
        assert all(equal(served.features[name], trained.features[name]) for name in served.features)


def test_new_events_are_appended_and_the_last_n_are_kept(features: RequestFeatures) -> None:
    before = features.history(4)
    history = features.batch(4, None, [*before, 9, 8], {}).features["history"]
    assert isinstance(history, Ragged)
    assert history.to_lists() == [[*before, 9, 8][-HISTORY:]]
    assert history.values.dtype == torch.int32


@pytest.mark.parametrize("user_id", [17, "a name", None, -5])
def test_a_stranger_has_the_code_of_what_is_out_of_vocabulary(
    features: RequestFeatures, user_id: int | str | None
) -> None:
    batch = features.batch(None, user_id, [5, 6], {})
    assert equal(batch.features["user"], torch.tensor([2], dtype=torch.int32))
    assert equal(batch.features["history"], Ragged.of([[5, 6]], dtype=torch.int32))


def test_strings_are_known_and_unknown_alike(world_of_strings: World) -> None:
    engine = load_bundle(world_of_strings.bundle).engine
    row = engine.people.row("user-05")
    assert row is not None
    known = engine.features.batch(row, "user-05", [], {}).features["user"]
    assert isinstance(known, torch.Tensor)
    assert int(known) == 3 + row  # ascending codes from the first of the vocabulary
    for user_id in ("nobody", 5, None):
        assert equal(
            engine.features.batch(None, user_id, [], {}).features["user"], torch.tensor([2], dtype=torch.int32)
        )


def test_the_moment_is_a_feature_and_what_a_request_does_not_say_is_missing(world: World, tmp_path: Path) -> None:
    users = world.users[:2]
    pq.write_table(pa.table({"user": [*users, users[0]], "device": ["tv", "phone", "tv"]}), tmp_path / "raw.parquet")
    device = ["device"] >> ops.Categorify() >> ops.AddTags(tags=("context",))
    user = ["user"] >> ops.Categorify() >> ops.AddTags(tags=("user", "id"))
    fitted = Workflow(user + device).fit(Dataset(tmp_path / "raw.parquet"))
    people = load_bundle(world.bundle).engine.people
    item = Column(name="item", dtype="int32")
    features = RequestFeatures(
        schema=fitted.schema, people=people, workflow=fitted, user="user", item=item, length=HISTORY
    )
    for context, code in (
        ({"device": "phone", "more": 3}, 4),
        ({"device": "tv"}, 3),
        ({"device": "fridge"}, 2),
        ({}, 1),
    ):
        batch = features.batch(0, None, [], context)
        assert equal(batch.features["device"], torch.tensor([code], dtype=torch.int32))
    assert list(batch.features) == ["user", "device"]


def test_a_moment_of_another_type_is_an_error_that_shows_it(world: World, tmp_path: Path) -> None:
    pq.write_table(pa.table({"user": world.users[:2], "hour": [1.0, 2.0]}), tmp_path / "raw.parquet")
    hour = ["hour"] >> ops.Normalize() >> ops.AddTags(tags=("context",))
    fitted = Workflow((["user"] >> ops.Categorify() >> ops.AddTags(tags=("user", "id"))) + hour).fit(
        Dataset(tmp_path / "raw.parquet")
    )
    people = load_bundle(world.bundle).engine.people
    item = Column(name="item", dtype="int32")
    features = RequestFeatures(
        schema=fitted.schema, people=people, workflow=fitted, user="user", item=item, length=HISTORY
    )
    assert equal(features.batch(0, None, [], {"hour": 1.5}).features["hour"], torch.tensor([0.0]))
    with pytest.raises(DataError, match=r"`context` \{'hour': 'late'\} cannot be used"):
        features.batch(0, None, [], {"hour": "late"})
    assert equal(features.batch(0, None, [], {}).features["hour"], torch.tensor([0.0]))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        *(("int64", value) for value in (10**30, -(2**63) - 1, 1e308, math.inf, math.nan, "late")),
        *(("float32", value) for value in (1e308, math.inf, math.nan, "late")),
        ("bool", "late"),
    ],
)
def test_a_moment_that_no_column_can_hold_is_an_error(
    world: World, tmp_path: Path, dtype: str, value: float | str
) -> None:
    hours = pa.array([1, 0], pa.int8()).cast(dtype)
    pq.write_table(pa.table({"hour": hours}), tmp_path / "raw.parquet")
    fitted = Workflow(["hour"] >> ops.AddTags(tags=("context",))).fit(Dataset(tmp_path / "raw.parquet"))
    people = load_bundle(world.bundle).engine.people
    item = Column(name="item", dtype="int32")
    features = RequestFeatures(
        schema=fitted.schema, people=people, workflow=fitted, user="user", item=item, length=HISTORY
    )
    with pytest.raises(DataError, match=r"`context` \{'hour': .*\} (cannot be used|makes `hour` infinite)"):
        features.batch(0, None, [], {"hour": value})


def test_a_request_needs_no_label_and_extra_or_turned_columns_change_nothing(world: World) -> None:
    fitted = FittedWorkflow.load(world.bundle / "workflow")
    raw = pq.read_table(world.folder / "raw.parquet")
    trained = fitted.transform(raw).to_dicts()
    online = fitted.online()
    for given, expected in zip(raw.to_pylist(), trained, strict=True):
        assert online({"more": None, "item": given["item"], "user": given["user"]}) == expected


def test_tables_become_the_tensors_the_loader_makes(tmp_path: Path) -> None:
    kinds = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float32", "float64", "bool")
    arrays = {
        kind: pa.array([0, 1, 1], pa.int64()).cast(getattr(pa, "bool_" if kind == "bool" else kind)()) for kind in kinds
    }
    columns = [Column(name=kind, dtype=kind, tags=frozenset({"x"})) for kind in kinds]
    arrays["ragged"] = pa.array([[1], [], [2, 3]], pa.list_(pa.int32()))
    arrays["large"] = pa.array([[1], None, [2, 3]], pa.large_list(pa.int64()))
    arrays["fixed"] = pa.array([[1.5, 2], [3, 4], [5, 6]], pa.list_(pa.float32(), 2))
    columns += [
        Column(name="ragged", dtype="int32", list="ragged", tags=frozenset({"x"})),
        Column(name="large", dtype="int64", list="ragged", tags=frozenset({"x"})),
        Column(name="fixed", dtype="float32", list=2, tags=frozenset({"x"})),
    ]
    footer = {FOOTER_KEY: Schema(tuple(columns)).to_json().encode()}
    pq.write_table(pa.table(arrays).replace_schema_metadata(footer), tmp_path / "a.parquet")
    table, schema = read_table(tmp_path)
    assert schema == read_schema(tmp_path)
    served = read_columns(table, schema, where="a.parquet")
    (loaded,) = Loader(tmp_path, batch_size=3).batches()
    assert served.keys() == loaded.features.keys()
    assert all(equal(served[name], loaded.features[name]) for name in loaded.features)
