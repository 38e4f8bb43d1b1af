"""A bundle is whole, says what it holds, answers as it did where it was built, or is refused in one clear sentence."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from falconet.errors import ArtifactError, ConfigError
from falconet.etl.workflow import FittedWorkflow
from falconet.io.artifact import MANIFEST
from falconet.io.footer import read_schema
from falconet.retrieval.exact import ExactIndex
from falconet.serve.bundle import ServingConfig, build_bundle, load_bundle
from serving_world import World, build_world_bundle, make_world


@pytest.fixture
def copy(world: World, tmp_path: Path) -> Path:
    """A bundle to damage."""
    return Path(shutil.copytree(world.bundle, tmp_path / "bundle"))


def change_manifest(bundle: Path, **values: Any) -> None:
    """Change the manifest by hand, the hashes of all files renewed."""
    content = json.loads((bundle / MANIFEST).read_text()) | values
    for name in content["files"]:
        data = (bundle / name).read_bytes()
        content["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    (bundle / MANIFEST).write_text(json.dumps(content))


def test_a_bundle_that_is_not_there_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"(?s)no bundle at `.*nowhere`.*`falconet run RECIPE --out work` makes"):
        load_bundle(tmp_path / "nowhere")


def test_the_folder_above_a_bundle_stands_for_it(world: World) -> None:
    found = load_bundle(world.bundle.parent)
    assert (found.path, found.source) == (world.bundle, world.bundle.parent)


def test_the_manifest_says_what_is_inside(world: World) -> None:
    extra = load_bundle(world.bundle).manifest.extra
    assert extra["models"] == {"retrievers": {"retriever": "TwoTower"}, "ranker": "MLP"}
    assert (extra["dim"], extra["items"], extra["ann_recall"], extra["step"]) == (64, 40, None, "a step")
    assert extra["data"] == {"rows": 230, "from": 0, "to": 99}
    asked = [set(probe["request"]) - {"k"} for probe in extra["probes"]]
    assert asked == [set(), {"user_id"}, {"user_id"}, {"history"}]
    assert [len(probe["items"]) for probe in extra["probes"]] == [10, 3, 10, 10]


def test_a_bundle_that_was_moved_answers_the_same(world: World, copy: Path) -> None:
    assert load_bundle(copy).name == load_bundle(world.bundle).name


def test_neither_targets_nor_the_test_are_in_a_bundle(world: World) -> None:
    assert "relevant" not in read_schema(world.bundle / "users.parquet").names
    assert "relevant_unknown" not in pq.read_schema(world.bundle / "users.parquet").names
    assert "rating" in FittedWorkflow.load(world.folder / "workflow").schema
    assert FittedWorkflow.load(world.bundle / "workflow").schema.names == ("user", "item")


def test_the_popular_items_are_in_order_of_their_count(world: World) -> None:
    table = pq.read_table(world.bundle / "popular.parquet")
    assert table.column("count").to_pylist()[:3] == [11, 10, 10]
    assert table.column("item").to_pylist() == sorted(world.item_codes.values())


def test_the_vectors_end_in_a_bias_that_is_no_direction(world: World) -> None:
    bundle = load_bundle(world.bundle)
    assert bundle.config.bias
    index = bundle.engine.sources.first.index
    assert isinstance(index, ExactIndex)
    assert index.vectors.shape == (40, 64)
    near = bundle.engine.nearness.between([0, 1])
    lengths = index.vectors[:, :-1].norm(dim=1)
    assert near[0, 1] == pytest.approx(float(index.vectors[0, :-1] @ index.vectors[1, :-1] / lengths[0] / lengths[1]))


def test_ids_of_strings_and_a_bundle_without_ranker_load(world_of_strings: World) -> None:
    bundle = load_bundle(world_of_strings.bundle)
    assert bundle.manifest.extra["models"]["ranker"] is None
    assert bundle.manifest.extra["probes"][0]["items"][0].startswith("item-")


def test_no_folder_and_another_folder_are_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no bundle at"):
        load_bundle(tmp_path / "nowhere")
    with pytest.raises(ArtifactError, match="is a workflow, not a bundle"):
        load_bundle(world.folder / "workflow")


@pytest.mark.parametrize(
    "name", ["indexes/retriever.safetensors", "items.parquet", "retrievers/retriever/model.safetensors"]
)
def test_a_truncated_file_is_named(copy: Path, name: str) -> None:
    data = (copy / name).read_bytes()
    (copy / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(ArtifactError, match=f"{name}` has {len(data) // 2} bytes, its manifest says {len(data)}"):
        load_bundle(copy)


def test_a_changed_byte_and_a_missing_file_are_named(copy: Path) -> None:
    data = bytearray((copy / "users.parquet").read_bytes())
    data[50] ^= 1
    (copy / "users.parquet").write_bytes(data)
    with pytest.raises(ArtifactError, match=r"users\.parquet` is not what its manifest says"):
        load_bundle(copy)
    (copy / "users.parquet").unlink()
    with pytest.raises(ArtifactError, match=r"users\.parquet` is missing"):
        load_bundle(copy)


def test_other_formats_are_refused(copy: Path) -> None:
    serving = json.loads((copy / "serving.json").read_text())
    for other in (2, 4):
        (copy / "serving.json").write_text(json.dumps({**serving, "format": other}))
        change_manifest(copy)
        message = rf"(?s)serving\.json` has format {other}, this version reads 3.*`falconet run RECIPE` builds"
        with pytest.raises(ArtifactError, match=message):
            load_bundle(copy)
    change_manifest(copy, format=7)
    with pytest.raises(ArtifactError, match="has format 7, this version reads 1"):
        load_bundle(copy)


def test_a_bundle_that_answers_a_probe_differently_is_refused(world: World, copy: Path) -> None:
    probes = load_bundle(world.bundle).manifest.extra["probes"]
    last = probes[-1]
    near = {**last, "scores": [score + 1e-6 for score in last["scores"]]}
    change_manifest(copy, probes=[*probes[:-1], near])
    load_bundle(copy)
    far = {**last, "scores": [score + 1e-3 for score in last["scores"]]}
    change_manifest(copy, probes=[*probes[:-1], far])
    with pytest.raises(ArtifactError, match=r'answers the probe \{"history": .*\} differently than when it was built'):
        load_bundle(copy)
    turned = {**last, "items": last["items"][::-1]}
    change_manifest(copy, probes=[*probes[:-1], turned])
    with pytest.raises(ArtifactError, match="differently than when it was built"):
        load_bundle(copy)


def test_a_bundle_is_not_written_over_unless_told_and_a_failure_leaves_the_old_one(world: World, copy: Path) -> None:
    with pytest.raises(ArtifactError, match="exists already"):
        build_world_bundle(world, copy)
    assert load_bundle(copy).name == load_bundle(world.bundle).name
    assert [path.name for path in copy.parent.iterdir()] == ["bundle"]


def test_a_ranker_in_the_place_of_the_retriever_is_refused(tmp_path: Path) -> None:
    world = make_world(tmp_path / "w", bundle=False)
    shutil.rmtree(world.folder / "retriever")
    shutil.copytree(world.folder / "ranker", world.folder / "retriever")
    with pytest.raises(ArtifactError, match="is a MLP, which has no vectors to search"):
        build_world_bundle(world, world.bundle)
    assert not world.bundle.exists()


@pytest.mark.parametrize(
    ("names", "weights", "message"),
    [
        (["first"], {"frist": 2.0}, r"`weights` names no retriever `frist`(?s:.*)`first`"),
        (["../first"], None, r"a retriever is called '\.\./first'"),
        ([".."], None, r"a retriever is called '\.\.'"),
    ],
)
def test_retrievers_have_names_of_folders_and_weights_those_of_retrievers(
    world: World, tmp_path: Path, names: list[str], weights: dict[str, float] | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_bundle(
            tmp_path / "out",
            workflow=world.folder / "workflow",
            retriever=dict.fromkeys(names, world.folder / "retriever"),
            ranker=None,
            items=world.folder / "items",
            users=world.folder / "users",
            config=ServingConfig(user="user", item="item"),
            data={},
            weights=weights,
        )
    assert not list(tmp_path.iterdir())
