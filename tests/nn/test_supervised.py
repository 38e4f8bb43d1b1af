"""Any network of (X, y) as a model for the trainer, and layers that rest."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from falconet.batch import Batch
from falconet.errors import ColumnNotFoundError, ConfigError
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


@pytest.mark.parametrize(
    ("outputs", "loss", "y", "shapes"),
    [
        (1, nn.BCEWithLogitsLoss, torch.ones(3, 1, dtype=torch.int64), r"\(3, 1\) of float32 (.*)\(3, 1\) of int64"),
        (1, nn.BCEWithLogitsLoss, torch.ones(3), r"\(3, 1\) of float32 (.*)\(3,\) of float32"),
        (4, nn.CrossEntropyLoss, torch.ones(3), r"\(3, 4\) of float32 (.*)\(3,\) of float32"),
    ],
    ids=["whole numbers", "another shape", "classes as floats"],
)
def test_targets_that_do_not_suit_the_loss_are_explained(
    outputs: int, loss: type[nn.Module], y: torch.Tensor, shapes: str
) -> None:
    model = Supervised(nn.Linear(2, outputs), loss(reduction="none"))
    with pytest.raises(ConfigError, match=rf"{loss.__name__} cannot compare predictions {shapes}(?s:.*)y\.float\(\)"):
        model.loss(batch(torch.zeros(3, 2), y))


def test_an_error_of_the_loss_itself_is_not_reworded() -> None:
    def broken(prediction: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        raise ValueError("broken")

    with pytest.raises(ValueError, match=r"^broken$"):
        Supervised(nn.Identity(), broken).loss(batch(torch.zeros(3), torch.zeros(3)))


def test_a_column_that_is_not_there_is_named() -> None:
    model = Supervised(nn.Identity(), nn.MSELoss(reduction="none"), x="pixels", y="digit")
    with pytest.raises(ColumnNotFoundError, match="the batch has no column `pixels`"):
        model(batch(torch.zeros(1), torch.zeros(1)))
    with pytest.raises(ColumnNotFoundError, match="the batch's targets has no column `digit`"):
        model.loss(Batch.of({"pixels": torch.zeros(1)}, {"y": torch.zeros(1)}))


def test_a_name_cannot_be_frozen() -> None:
    with pytest.raises(ConfigError, match=r"freeze was given 'item'(?s:.*)fl\.nn\.freeze_tables\(model, name\)"):
        freeze("item")  # type: ignore[type-var]
