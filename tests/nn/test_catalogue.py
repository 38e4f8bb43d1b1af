"""The softmax over all items, made in blocks: the values and the gradients of the one that holds all scores."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from falconet.nn import catalogue
from falconet.nn.catalogue import whole_softmax
from falconet.nn.item_loss import ItemLoss, ItemLossConfig


def vectors(rows: int, dim: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@pytest.mark.parametrize("scores", [1, 26, 2**20], ids=["row by row", "two rows", "at once"])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_values_and_gradients_are_those_of_cross_entropy(
    rows: int, scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "_CPU_SCORES", scores)
    user, item = vectors(rows), vectors(13, seed=1)
    place = torch.arange(rows) * 5 % 13
    weights = torch.arange(1.0, rows + 1)
    found = whole_softmax(user, item, (user * item[place]).sum(1), place)
    wanted = F.cross_entropy(user @ item.T, place, reduction="none")
    torch.testing.assert_close(found, wanted)
    ours = torch.autograd.grad((found * weights).sum(), (user, item))
    theirs = torch.autograd.grad((wanted * weights).sum(), (user, item))
    torch.testing.assert_close(ours, theirs)


def test_an_own_item_that_is_not_among_them_counts_as_one_more() -> None:
    user, item, own = vectors(2), vectors(4, seed=1), torch.tensor([0.5, -2.0], requires_grad=True)
    found = whole_softmax(user, item, own, torch.tensor([-1, -3]))
    wanted = F.cross_entropy(torch.cat([own[:, None], user @ item.T], 1), torch.tensor([0, 0]), reduction="none")
    torch.testing.assert_close(found, wanted)
    ours = torch.autograd.grad(found.sum(), (user, item, own))
    torch.testing.assert_close(ours, torch.autograd.grad(wanted.sum(), (user, item, own)))


def test_scores_in_the_thousands_give_numbers() -> None:
    user, item = torch.tensor([[1000.0], [-1000.0]], requires_grad=True), torch.tensor([[3.0], [0.0], [-3.0]])
    own, place = torch.tensor([3000.0, 3000.0]), torch.tensor([0, 2])
    found = whole_softmax(user, item, own, place)
    assert found.tolist() == [0.0, 0.0]
    (gradient,) = torch.autograd.grad(found.sum(), user)
    assert bool(gradient.isfinite().all())


def test_the_loss_of_a_model_is_that_of_its_negatives_in_general() -> None:
    """With `hard` as large as the catalogue the general way is taken, which holds all scores."""
    table, user, codes = vectors(9, 4), vectors(6, 4, seed=1), torch.tensor([2, 8, 5, 0, 3, 3])  # 0 is reserved
    counts = torch.ones(9)
    losses = [
        ItemLoss(ItemLossConfig(hard=hard, temperature=0.5), 2, 4)(user, codes, lambda c: table[c], counts)
        for hard in (None, 9)
    ]
    torch.testing.assert_close(losses[0], losses[1])
    ours, theirs = (torch.autograd.grad(loss.sum(), (user, table)) for loss in losses)
    torch.testing.assert_close(ours, theirs)
