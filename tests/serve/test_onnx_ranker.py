"""A bundle whose ranker is an ONNX model: the same answers, measured when it is built and when it is loaded."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from falconet.errors import ArtifactError, ConfigError
from falconet.models import programs
from falconet.serve.bundle import build_bundle, load_bundle
from falconet.serve.onnx_ranker import OnnxRanker
from falconet.serve.recommender import Recommender
from serving_world import World, build_world_bundle

pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def bundle(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("onnx") / "bundle"
    build_world_bundle(world, folder, runs="onnx")
    return folder


def test_answers_are_those_of_the_ranker(bundle: Path, world: World) -> None:
    torch, onnx = Recommender.load(world.bundle), Recommender.load(bundle)
    assert isinstance(onnx.bundle.engine.ranker, OnnxRanker)
    for user in world.users:
        want, got = torch.recommend(user, k=12).items, onnx.recommend(user, k=12).items
        assert [item.score for item in got] == pytest.approx([item.score for item in want], abs=1e-6)
        assert {item.item_id for item in got} == {item.item_id for item in want}
    assert onnx.recommend(history=[], k=3).items  # a stranger needs no ranker


def test_how_far_it_lies_from_the_ranker_stands_in_the_manifest(bundle: Path, world: World) -> None:
    said = load_bundle(bundle).manifest.extra["onnx_ranker"]
    assert 0 <= said["largest_difference"] <= said["bound"] == pytest.approx(1e-5, rel=10)
    assert said["rows"] > 30
    assert load_bundle(world.bundle).manifest.extra["onnx_ranker"] is None


def test_one_that_scores_otherwise_here_is_refused(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = programs.OnnxProgram.__call__
    monkeypatch.setattr(programs.OnnxProgram, "__call__", lambda *a: right(*a) + 0.01)
    with pytest.raises(
        ArtifactError, match=r"ranker\.onnx` scores 0\.01 away from the ranker[\s\S]*ranker = \"torch\""
    ):
        load_bundle(bundle)


def test_without_onnxruntime_such_a_bundle_says_what_it_needs(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"ONNX models need onnxruntime, [\s\S]*falconet\[onnx\]") as caught:
        load_bundle(bundle)
    assert "\n" not in str(caught.value.args[0])


def test_a_damaged_model_is_refused(bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    with (copy / "ranker.onnx").open("r+b") as file:
        file.seek(100)
        file.write(b"\0\0\0\0")
    with pytest.raises(ArtifactError, match=r"ranker\.onnx` is not what its manifest says"):
        load_bundle(copy)


def test_a_model_of_something_else_is_refused(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs.OnnxProgram, "__call__", lambda _, columns: columns["pixels"])
    with pytest.raises(ArtifactError, match=r"ranker\.onnx` is another model, .*'pixels'[\s\S]*ranker = \"torch\""):
        load_bundle(bundle)


def test_there_must_be_a_ranker(bundle: Path, world: World, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="but the bundle has no ranker"):
        build_bundle(
            tmp_path / "bundle",
            workflow=world.folder / "workflow",
            retriever=world.folder / "retriever",
            ranker=None,
            items=world.folder / "items",
            users=world.folder / "users",
            config=load_bundle(bundle).config,
            data={},
        )
    assert not (tmp_path / "bundle").exists()
