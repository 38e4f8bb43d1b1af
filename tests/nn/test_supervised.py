"""Any network of (X, y) as a model for the trainer, and layers that rest."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from falconet.batch import Batch
from falconet.errors import ConfigError
from falconet.nn import Supervised, freeze
from falconet.train.parallel import share_batchnorm, trainable


def batch(x: torch.Tensor, y: torch.Tensor) -> Batch:
    return Batch.of({"x": x}, {"y": y})


def test_a_loss_per_row_is_torchs() -> None:
    torch.manual_seed(0)
    network, x, y = nn.Linear(3, 4), torch.randn(5, 3), torch.tensor([0, 3, 1, 1, 2])
    losses = Supervised(network, nn.CrossEntropyLoss(reduction="none")).loss(batch(x, y))
    assert losses.shape == (5,)
    assert losses.mean().item() == pytest.approx(nn.CrossEntropyLoss()(network(x), y).item())


def test_several_numbers_of_a_row_count_by_their_mean() -> None:
    model = Supervised(nn.Identity(), nn.MSELoss(reduction="none"))
    assert model.loss(batch(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.zeros(2, 2))).tolist() == [2.5, 0.0]


def test_a_reduced_loss_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"MSELoss has reduction='mean', which is over the rows of one process alone"):
        Supervised(nn.Identity(), nn.MSELoss())


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_between_all_pairs_of_rows_is_refused() -> None:
    model = Supervised(nn.Linear(2, 1), nn.MSELoss(reduction="none"))
    with pytest.raises(
        ConfigError, match=r"predictions \(3, 1\) and targets \(3,\) gave losses \(3, 3\): each row was compared"
    ):
        model.loss(batch(torch.zeros(3, 2), torch.zeros(3)))


def test_a_frozen_layer_neither_learns_nor_counts() -> None:
    network = nn.Sequential(freeze(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))), nn.Linear(3, 1))
    share_batchnorm(network)
    for one in (network, copy.deepcopy(network)):
        one.train()(torch.randn(8, 2))
        assert [module.training for module in one] == [False, True]  # type: ignore[union-attr]
        assert one[0][1].running_mean.tolist() == [0.0, 0.0, 0.0]  # type: ignore[index, union-attr]
        assert trainable(one) == (4, 19)


def test_a_frozen_batchnorm_alone_rests_too() -> None:
    network = nn.Sequential(freeze(nn.BatchNorm1d(2)), nn.Linear(2, 1))
    share_batchnorm(network)
    network.train()(torch.randn(4, 2))
    assert network[0].running_mean.tolist() == [0.0, 0.0]  # type: ignore[union-attr, operator]
