"""Interactions against plain loops and the formulas of the papers."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from torch import Tensor

from falconet.errors import ConfigError
from falconet.nn.interaction import Cross, CrossNetwork, PairProducts, sum_of_pairs
from falconet.nn.numbers import NumberVectors, SoftEmbeddings


@pytest.fixture
def fields() -> Tensor:
    """Three rows of four fields, five wide."""
    return torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))


def test_pair_products_are_those_of_two_loops(fields: Tensor) -> None:
    found = PairProducts(4)(fields)
    want = [[float(row[i] @ row[j]) for i in range(4) for j in range(i)] for row in fields]
    torch.testing.assert_close(found, torch.tensor(want))
    assert PairProducts(1)(fields[:, :1]).shape == (3, 0)


def test_the_second_order_of_a_factorisation_machine_is_the_sum_over_pairs(fields: Tensor) -> None:
    want = [sum(float(a @ b) for a, b in combinations(row, 2)) for row in fields]
    torch.testing.assert_close(sum_of_pairs(fields), torch.tensor(want))


def test_a_cross_layer_is_equation_1_of_dcn_v2() -> None:
    torch.manual_seed(0)
    layer, start, x = Cross(6), torch.randn(3, 6), torch.randn(3, 6)
    torch.nn.init.normal_(layer.bias)
    weight = layer.product.weight
    want = start * (torch.einsum("oi,bi->bo", weight, x) + layer.bias) + x
    torch.testing.assert_close(layer(start, x), want)


def test_a_low_rank_cross_layer_is_equation_3() -> None:
    torch.manual_seed(0)
    layer, start, x = Cross(6, rank=2), torch.randn(3, 6), torch.randn(3, 6)
    torch.nn.init.normal_(layer.bias)
    down, up = (linear.weight for linear in layer.product)
    assert (down.shape, up.shape) == ((2, 6), (6, 2))
    want = start * (torch.einsum("or,ri,bi->bo", up, down, x) + layer.bias) + x
    torch.testing.assert_close(layer(start, x), want)


def test_a_mixture_is_equations_4_and_5() -> None:
    """Σ over experts of G(x) (x0 ⊙ (U tanh(C tanh(V x)) + b)) + x, the bias being common to the experts."""
    torch.manual_seed(0)
    layer, start, x = Cross(6, rank=2, experts=3), torch.randn(4, 6), torch.randn(4, 6)
    torch.nn.init.normal_(layer.bias)
    mixture = layer.product
    gates = torch.softmax(mixture.gate(x), dim=1)
    want = x.clone()
    for i in range(3):
        inner = torch.tanh(torch.tanh(x @ mixture.down[i]) @ mixture.middle[i])
        want = want + gates[:, i : i + 1] * (start * (inner @ mixture.up[i] + layer.bias))
    torch.testing.assert_close(layer(start, x), want)


def test_a_network_crosses_with_its_own_start_at_every_layer() -> None:
    """Two layers with W = 1 and b = 0 in one dimension: x0 · x + x twice, so x0³ + 2 x0² + x0."""
    network = CrossNetwork(1, layers=2)
    for layer in network.layers:
        torch.nn.init.ones_(layer.product.weight)
    assert network(torch.tensor([[3.0], [-2.0]])).tolist() == [[48.0], [-2.0]]


def test_experts_need_a_rank() -> None:
    with pytest.raises(ConfigError, match="2 experts of a cross layer need a rank"):
        Cross(4, experts=2)


class TestSoftEmbeddings:
    def test_shares_sum_to_one_and_start_as_bells_around_evenly_spaced_points(self) -> None:
        soft = SoftEmbeddings(2, 5, 3)
        numbers = torch.tensor([[-2.0, 0.3], [7.0, -9.0]])
        shares = soft.shares(numbers)
        torch.testing.assert_close(shares.sum(2), torch.ones(2, 2))
        bells = torch.exp(-((numbers.unsqueeze(2) - torch.linspace(-2, 2, 5)) ** 2) / 2)
        torch.testing.assert_close(shares, bells / bells.sum(2, keepdim=True))

    @torch.no_grad()
    def test_a_vector_is_the_mean_of_the_choices_by_their_shares(self) -> None:
        torch.manual_seed(0)
        soft = SoftEmbeddings(2, 4, 3)
        numbers = torch.randn(5, 2)
        found = soft(numbers)
        for row in range(5):
            for column in range(2):
                shares = soft.shares(numbers)[row, column].tolist()
                want = [sum(s * float(c) for s, c in zip(shares, line, strict=True)) for line in soft.choices[column].T]
                assert found[row, column].tolist() == pytest.approx(want, abs=1e-6)

    def test_one_choice_is_none(self) -> None:
        with pytest.raises(ConfigError, match="soft embeddings with 1 choices have nothing to choose"):
            SoftEmbeddings(2, 1, 3)


def test_a_number_scales_the_vector_of_its_column() -> None:
    vectors = NumberVectors(2, 3)
    assert torch.equal(vectors(torch.tensor([[2.0, 0.0]])), torch.stack([2 * vectors.vectors[0], torch.zeros(3)])[None])
