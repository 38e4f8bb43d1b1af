"""The names of weights, of models wrapped and plain, and layers that are exchanged for ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from falconet.errors import ArtifactError
from falconet.nn.batchnorm import BatchNorm
from falconet.train.parallel import load_weights, plain_keys, share_batchnorm, unwrap
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


class Own(nn.BatchNorm1d):
    """Somebody's BatchNorm, which may do anything."""


@pytest.mark.parametrize(
    "shape", [(6, 3), (6, 3, 4), (6, 3, 4, 2), (6, 3, 4, 2, 2)], ids=lambda shape: f"{len(shape)}d"
)
@pytest.mark.parametrize("sync", [False, True])
def test_batchnorm_of_every_kind_is_exchanged_and_comes_to_the_same(shape: tuple[int, ...], sync: bool) -> None:
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)]
    theirs, ours = kind(3, momentum=0.3), kind(3, momentum=0.3)
    for norm in (theirs, ours):
        nn.init.constant_(norm.weight, 2.0)
    module = nn.Sequential(nn.SyncBatchNorm.convert_sync_batchnorm(ours) if sync else ours, Own(3))
    share_batchnorm(module)
    assert type(module[0]) is BatchNorm
    assert type(module[1]) is Own
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    for training in (True, False):
        module.train(training)
        theirs.train(training)
        assert torch.allclose(module[0](x), theirs(x), atol=1e-6)
    for name, value in theirs.state_dict().items():
        assert torch.allclose(module[0].state_dict()[name], value), name
