"""Gradients of rows: in parts, through a layer, and added up."""

from __future__ import annotations

import pytest
import torch

from falconet.train import gradients
from falconet.train.gradients import RowGradient, RowSum, add_up

ROWS, WIDTH, HIDDEN = 50, 6, 2


def through(ids: list[int], layer: torch.Tensor, seed: int) -> RowGradient:
    values = torch.randn(len(ids), HIDDEN, generator=torch.Generator().manual_seed(seed))
    return RowGradient(ROWS, torch.tensor(ids), values, layer)


@pytest.mark.parametrize("rows_at_once", [1, 3, 4, 100])
def test_a_gradient_through_a_layer_is_the_product_whatever_is_formed_at_once(
    monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    monkeypatch.setattr(gradients, "_BLOCK", rows_at_once * WIDTH)
    made = through([1, 4, 7, 9, 30, 31, 44], torch.randn(HIDDEN, WIDTH), 0)
    wanted = made.values @ made.layer
    assert made.width == WIDTH
    assert torch.allclose(made.formed().values, wanted, atol=1e-6)
    assert torch.allclose(made.squares, wanted.square().sum(1), atol=1e-5)
    parts = list(made.blocks())
    assert [len(some) for _, some, _ in parts] == [len(made.ids[rows]) for rows, _, _ in parts]
    assert sum(len(some) for _, some, _ in parts) == 7


@pytest.mark.parametrize("same", [True, False], ids=["through one layer", "through two"])
def test_sums_of_gradients_through_layers(same: bool) -> None:
    layer = torch.randn(HIDDEN, WIDTH)
    a, b = through([1, 4, 7], layer, 0), through([4, 9], layer.clone() if same else torch.randn(HIDDEN, WIDTH), 1)
    total = add_up([a, b])
    wanted = torch.zeros(ROWS, WIDTH)
    for part in (a, b):
        wanted[part.ids] += part.values @ part.layer
    assert (total.layer is not None) == same
    assert total.ids.tolist() == [1, 4, 7, 9]
    assert torch.allclose(total.formed().values, wanted[total.ids], atol=1e-6)
    assert torch.allclose(total.squares, wanted[total.ids].square().sum(1), atol=1e-5)


def test_a_gradient_through_a_layer_and_a_plain_one_are_added_up() -> None:
    a = through([1, 4], torch.randn(HIDDEN, WIDTH), 0)
    b = RowGradient(ROWS, torch.tensor([4, 5]), torch.ones(2, WIDTH))
    total = add_up([a, b])
    assert total.layer is None
    product = a.values @ a.layer
    assert torch.allclose(total.values, torch.stack([product[0], product[1] + 1, torch.ones(WIDTH)]), atol=1e-6)


@pytest.mark.parametrize("rows_at_once", [1, 3, 100])
@pytest.mark.parametrize("sparse", [0, 64], ids=["sorted", "marked"])
def test_a_sum_is_made_a_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch, rows_at_once: int, sparse: int) -> None:
    monkeypatch.setattr(gradients, "_SPARSE", sparse)
    monkeypatch.setattr(gradients, "_SUMS", rows_at_once * WIDTH)
    some = [[1, 4, 7, 9], [], [4, 9, 30, 31, 44]]
    parts = [RowGradient(ROWS, torch.tensor(ids).long(), torch.randn(len(ids), WIDTH)) for ids in some]
    wanted = torch.zeros(ROWS, WIDTH)
    for part in parts:
        wanted[part.ids] += part.values
    total = RowSum.of(parts)
    assert total.ids.tolist() == [1, 4, 7, 9, 30, 31, 44]
    found = torch.zeros(ROWS, WIDTH)
    for rows, sum_UD, squares_U in total.blocks():
        assert len(sum_UD) <= rows_at_once
        assert torch.allclose(squares_U, sum_UD.square().sum(1))
        found[total.ids[rows]] = sum_UD
        sum_UD.fill_(float("nan"))  # whoever uses a part may use it up
    assert torch.equal(found, wanted)
    assert torch.equal(total.formed().values, wanted[total.ids])
    assert torch.equal(total.squares, total.formed().squares)


def test_a_sum_of_nothing_has_no_rows() -> None:
    total = RowSum.of([RowGradient(ROWS, torch.empty(0).long(), torch.empty(0, WIDTH))] * 2)
    assert list(total.blocks()) == []
    assert total.formed().values.shape == (0, WIDTH)
