"""A settled network gives what it gave, but for the last bits, with no BatchNorm left to run."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from falconet.batch import Batch, Ragged, TakenRows
from falconet.nn.batchnorm import BatchNorm
from falconet.nn.embedding import Tables
from falconet.nn.mlp import MLP
from falconet.nn.settled import read_each, settle
from falconet.schema import Column, Tag


def test_ids_looked_up_one_by_one_give_the_same_bits() -> None:
    column = Column(name="x", dtype="int32", list="ragged", cardinality=5000, tags=frozenset({Tag.CATEGORICAL}))
    tables = Tables([column], 16).eval()
    lists = Ragged.of([[], [7], [4999, 3, 3, 0, 12], list(range(1, 900))])
    with torch.inference_mode():
        before = tables(Batch.of({"x": lists}))["x"]
        read_each(tables)
        after = tables(Batch.of({"x": lists}))["x"]
    assert torch.equal(before, after)
    with pytest.raises((IndexError, RuntimeError), match=r"Expected idx|out of range"):
        tables(Batch.of({"x": Ragged.of([[5000]])}))


def test_what_is_said_of_a_catalogues_lists_is_kept_and_has_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    tags = frozenset({Tag.CATEGORICAL})
    columns = [
        Column(name=name, dtype="int32", list="ragged", cardinality=99, domain="of all", tags=tags) for name in "xyz"
    ] + [Column(name="one", dtype="int32", cardinality=7, tags=tags)]
    plain = Tables(columns, 16, {"y": "sum"}, list_weights={"z": "weights"}).eval()
    holder = nn.ModuleDict({"tables": copy.deepcopy(plain)})
    settle(holder)
    settled = holder["tables"]
    rows = torch.tensor([3, 0, 1, 2, 3])
    for catalogue in (Ragged.of([[], [7], [98, 3, 3, 0, 12], list(range(1, 90))]), Ragged.of([[1], [2], [3], []])):
        late, now = TakenRows(catalogue, rows), catalogue.take(rows)
        weights = Ragged(now.values.float(), now.offsets)
        more = {"weights": weights, "one": torch.arange(5)}
        for most in (2**22, 60):  # of fewer numbers they are not kept
            monkeypatch.setattr("falconet.nn.answering._MOST", most)
            with torch.inference_mode():
                said = settled(Batch.of({"x": late, "y": late, "z": late, **more}))
                want = plain(Batch.of({"x": now, "y": now, "z": now, **more}))
                once_more = settled(Batch.of({"x": late}), ["x"])
            assert list(said) == list(want) == ["x", "y", "z", "one"]
            assert all(torch.equal(said[name], want[name]) for name in want)
            assert torch.equal(once_more["x"], want["x"])


def lived(model: nn.Module) -> nn.Module:
    """The model with statistics and weights as after a training, not as made."""
    torch.manual_seed(3)
    for module in model.modules():
        if isinstance(module, BatchNorm) and module.running_mean is not None and module.running_var is not None:
            module.running_mean.normal_()
            module.running_var.uniform_(0.1, 4.0)
            if module.affine:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
    return model.eval()


@pytest.mark.parametrize(
    "model",
    [
        MLP(5, (8, 6), 1, dropout=0.2),
        MLP(5, (8, 6)),  # ends in a BatchNorm
        MLP(5, (8,), 2, batch_norm=False, activation="gelu"),
        nn.Sequential(BatchNorm(5, affine=False), MLP(5, (4,), 1)),
    ],
    ids=["to one number", "to a layer", "without", "behind another"],
)
def test_values_stay_and_no_batch_norm_is_left(model: nn.Module) -> None:
    rows = torch.randn(50, 5) * 3
    settled = copy.deepcopy(lived(model))
    settle(settled)
    assert not [module for module in settled.modules() if isinstance(module, (BatchNorm, nn.Dropout))]
    torch.testing.assert_close(settled(rows), model(rows), rtol=2e-6, atol=2e-6)
    assert not any(weight.requires_grad for weight in settled.parameters())


def test_one_without_running_statistics_stays() -> None:
    model = nn.Sequential(BatchNorm(5, track_running_stats=False))
    settle(model)
    assert isinstance(model[0], BatchNorm)
