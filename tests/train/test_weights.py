"""Foreign files of weights: tensors load, anything else is refused, and nothing in them is run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from falconet.errors import ArtifactError, ConfigError
from falconet.models import EASE, TwoTower
from falconet.models.store import save_model
from falconet.schema import Column, Schema, Tag
from falconet.train.weights import grow_weights, import_weights, read_weights


class Harmful:
    """Writes a file when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path(self.mark),)

    def __init__(self, mark: Path) -> None:
        self.mark = mark


class Compiled(nn.Module):
    """A model as torch.compile wraps it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._orig_mod = model


def weights(prefix: str = "") -> dict[str, Tensor]:
    return {f"{prefix}weight": torch.tensor([[1.0, 2.0]]), f"{prefix}bias": torch.tensor([3.0])}


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
def test_a_file_of_torch_save_loads_into_plain_and_wrapped_models(prefix: str, tmp_path: Path) -> None:
    torch.save(weights(prefix), tmp_path / "plain.pt")
    torch.save({"epoch": 3, "model_state_dict": weights(prefix), "loss": 0.1}, tmp_path / "checkpoint.pt")
    save_file(weights(prefix), tmp_path / "plain.safetensors")
    for name in ("plain.pt", "checkpoint.pt", "plain.safetensors"):
        for model in (nn.Linear(2, 1), Compiled(nn.Linear(2, 1))):
            import_weights(model, tmp_path / name)
            assert [x.tolist() for x in model.state_dict().values()] == [[[1.0, 2.0]], [3.0]]


def test_a_pickled_object_is_refused_and_not_run(tmp_path: Path) -> None:
    torch.save({"model": Harmful(tmp_path / "run")}, tmp_path / "bad.pt")
    with pytest.raises(ArtifactError, match=r"holds more than tensors(?s:.*)hint: loading it whole could run code"):
        read_weights(tmp_path / "bad.pt")
    assert not (tmp_path / "run").exists()


def test_a_model_grows_from_a_former_one(tmp_path: Path) -> None:
    def schema(items: int, width: str = "user") -> Schema:
        tags = {Tag.CATEGORICAL, Tag.ID}
        item = Column(name="item", dtype="int32", tags=frozenset(tags | {Tag.ITEM}), cardinality=items, domain="item")
        past = frozenset({Tag.USER, Tag.SEQUENCE, Tag.CATEGORICAL})
        history = Column(name="history", dtype="int32", list="ragged", tags=past, cardinality=items, domain="item")
        return Schema((item, history, Column(name=width, dtype="float32", tags=frozenset({Tag.USER, Tag.CONTINUOUS}))))

    config = TwoTower.Config(dim=8)
    old = TwoTower.from_schema(schema(20), config)
    save_model(old, tmp_path / "model")
    new = TwoTower.from_schema(schema(25), config)
    before = {name: x.clone() for name, x in new.state_dict().items()}
    assert grow_weights(new, tmp_path / "model") == []
    grown = 0
    for name, x in old.state_dict().items():
        found = new.state_dict()[name]
        assert torch.equal(found[: len(x)] if x.ndim else found, x)
        grown += x.ndim > 0 and len(found) > len(x)
        assert x.ndim == 0 or torch.equal(found[len(x) :], before[name][len(x) :])
    assert grown >= 3  # the tables and the counts
    wider = TwoTower.from_schema(schema(25), TwoTower.Config(dim=4))
    assert any("tables" in name for name in grow_weights(wider, tmp_path / "model"))
    with pytest.raises(ArtifactError, match="holds a TwoTower, EASE is needed"):
        grow_weights(EASE.from_schema(schema(20)), tmp_path / "model")


def test_what_is_no_file_of_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no weights at"):
        read_weights(tmp_path / "nowhere.pt")
    (tmp_path / "text.pt").write_text("hello there")
    with pytest.raises(ArtifactError, match="holds more than tensors, or is damaged"):
        read_weights(tmp_path / "text.pt")
    (tmp_path / "text.safetensors").write_text("hello there")
    with pytest.raises(ArtifactError, match="is not a whole safetensors file"):
        read_weights(tmp_path / "text.safetensors")
    torch.save({"epoch": 3}, tmp_path / "numbers.pt")
    with pytest.raises(ArtifactError, match="is not a model's weights: epoch in it is no tensor"):
        read_weights(tmp_path / "numbers.pt")
    torch.save(torch.zeros(2), tmp_path / "one.pt")
    with pytest.raises(ArtifactError, match="holds a Tensor, not weights by name"):
        read_weights(tmp_path / "one.pt")
    torch.save({"weight": torch.zeros(1, 3), "bias": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(ArtifactError, match=r"the weights of .* do not fit the model: `weight` is \(1, 3\) there"):
        import_weights(nn.Linear(2, 1), tmp_path / "other.pt")


def test_arguments_of_another_kind_are_refused(tmp_path: Path) -> None:
    path, model = tmp_path / "weights.safetensors", nn.Linear(2, 1)
    save_file(weights(), path)
    with pytest.raises(ConfigError, match=r"Path was given as a model(?s:.*)import_weights\(model, path\)"):
        import_weights(path, model)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"a dict was given where the path(?s:.*)model\.load_state_dict\(weights\)"):
        import_weights(model, weights())  # type: ignore[arg-type]
