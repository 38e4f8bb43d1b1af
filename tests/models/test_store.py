"""A model's folder: what is in it, and what happens when it is not what it should be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from falconet.errors import ArtifactError, ConfigError
from falconet.io.artifact import read_manifest, seal
from falconet.models import MLP, TwoTower, load_model, save_model
from falconet.testing.models import EXAMPLE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    save_model(TwoTower.from_schema(EXAMPLE, TwoTower.Config(dim=4)), tmp_path / "model")
    return tmp_path / "model"


def rewrite(folder: Path, **changes: Any) -> None:
    """Change config.json and make the manifest fit it."""
    content = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(content))
    reseal(folder)


def reseal(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    seal(folder, "model", parents={}, extra={})


def test_a_folder_says_what_it_is(folder: Path) -> None:
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "manifest.json", "model.safetensors"]
    content = json.loads((folder / "config.json").read_text())
    assert (content["format"], content["model"], content["config"]["dim"]) == (1, "TwoTower", 4)
    assert content["schema"] == json.loads(EXAMPLE.to_json())
    assert "popularity" in load_file(folder / "model.safetensors")


def test_equal_models_give_equal_bytes(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_model(TwoTower.from_schema(EXAMPLE, TwoTower.Config(dim=4)), tmp_path / "again")
    assert read_manifest(tmp_path / "again").sha256 == read_manifest(folder).sha256


def test_saving_again_replaces_the_model(folder: Path) -> None:
    save_model(MLP.from_schema(EXAMPLE, MLP.Config(hidden=(2,))), folder)
    assert isinstance(load_model(folder), MLP)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no model at"):
        load_model(tmp_path / "nothing")


def test_a_truncated_file_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(ArtifactError, match=r"model\.safetensors.* bytes, its manifest says"):
        load_model(folder)


def test_another_format_is_refused(folder: Path) -> None:
    rewrite(folder, format=2)
    with pytest.raises(ArtifactError, match="has model format 2, this version reads 1"):
        load_model(folder)


def test_an_unknown_model_suggests_the_close_name(folder: Path) -> None:
    rewrite(folder, model="TwoTowers")
    with pytest.raises(ConfigError, match="unknown model `TwoTowers`\n\nhint: did you mean `TwoTower`"):
        load_model(folder)


def test_an_unknown_setting_names_file_and_key(folder: Path) -> None:
    rewrite(folder, config={"dims": 4})
    with pytest.raises(
        ConfigError, match=r"config\.json: config` has an unknown key `dims`\n\nhint: did you mean `dim`"
    ):
        load_model(folder)


def test_weights_of_another_width_are_refused(folder: Path) -> None:
    rewrite(folder, config={"dim": 8})
    with pytest.raises(ArtifactError, match=r"tensor `.*` is torch.float32 \(.*4\), the schema asks for"):
        load_model(folder)


def test_a_missing_tensor_is_named(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["popularity"]
    save_file(weights, folder / "model.safetensors")
    reseal(folder)
    with pytest.raises(ArtifactError, match="lacks the tensor `popularity`"):
        load_model(folder)


def test_a_tensor_too_many_is_named(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors") | {"more": torch.zeros(1)}
    save_file(weights, folder / "model.safetensors")
    reseal(folder)
    with pytest.raises(ArtifactError, match="has a tensor `more` the model does not know"):
        load_model(folder)


def test_a_file_that_holds_no_tensors_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x80\x04nothing")
    reseal(folder)
    with pytest.raises(ArtifactError, match="is not a whole safetensors file"):
        load_model(folder)


@pytest.mark.parametrize(
    ("given", "what", "hint"),
    [
        (nn.Linear(2, 2), "a Linear, which is no falconet.models.base.Model,", "fl.import_weights reads"),
        (MLP, "the class MLP", "an object of it"),
        ("folder", "a str", r"save_model\(model, folder\)"),
    ],
    ids=["torch's own", "a class", "the other way round"],
)
def test_what_is_no_model_is_not_saved(given: Any, what: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"save_model was given {what} as a model(?s:.*){hint}"):
        save_model(given, tmp_path / "model")
    assert not list(tmp_path.iterdir())
