"""The names of weights, of models wrapped and plain."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from falconet.errors import ArtifactError
from falconet.train.parallel import load_weights, plain_keys, unwrap
from falconet.train.trainer import Trainer
from train.workers import config, loader, net, same


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
def test_weights_of_a_wrapped_model_load_into_a_plain_one(prefix: str) -> None:
    source, target = net(), net(seed=2)
    load_weights(target, {prefix + name: x for name, x in source.state_dict().items()})
    assert same(source, target)


def test_weights_load_into_a_wrapped_model_and_are_saved_plain(data: Path, tmp_path: Path) -> None:
    class Compiled(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self._orig_mod = model

    wrapped = Compiled(net())
    load_weights(wrapped, net(seed=2).state_dict())
    assert same(unwrap(wrapped), net(seed=2))
    assert list(plain_keys({"rest._orig_mod.0.weight": torch.zeros(1)})) == ["rest.0.weight"]
    Trainer(config(), tmp_path / "run").fit(wrapped, loader(data))
    assert same(unwrap(wrapped), unwrap(wrapped))
    assert set(load_file(tmp_path / "run/model/model.safetensors")) == set(net().state_dict())


def test_weights_of_another_model_are_refused() -> None:
    with pytest.raises(ArtifactError, match=r"missing .*unknown other"):
        load_weights(net(), {"other": torch.zeros(1)})
    wrong = {**net().state_dict(), "first.bias": torch.zeros(3)}
    with pytest.raises(ArtifactError, match=r"`first\.bias` is \(3,\) there, \(16,\) in the model"):
        load_weights(net(), wrong)
