"""Attention of a candidate over a history, against loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from falconet.batch import Ragged
from falconet.nn.attention import CandidateAttention, flatten, softmax_by_row, sum_by_row

LISTS = [[3, 0, 5], [], [2], [0]]


def attend(attention: CandidateAttention, lists: Ragged | Tensor, vectors: Tensor, candidates: Tensor) -> Tensor:
    ids, rows = flatten(lists)
    return attention(vectors[ids], candidates, rows, ids != 0)


@pytest.fixture
def vectors() -> Tensor:
    return torch.randn(6, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("softmax", [False, True])
@torch.no_grad()
def test_a_history_is_the_weighted_sum_of_what_is_in_it(vectors: Tensor, softmax: bool) -> None:
    torch.manual_seed(0)
    attention, candidates = CandidateAttention(3, (4,), softmax=softmax), torch.randn(4, 3)
    found = attend(attention, Ragged.of(LISTS), vectors, candidates)
    for row, ids in enumerate(LISTS):
        want, there = torch.zeros(3), [vectors[i] for i in ids if i]
        if there:
            pairs = [torch.cat([x, candidates[row], x - candidates[row], x * candidates[row]]) for x in there]
            weights = attention.unit(torch.stack(pairs)).squeeze(1)
            weights = torch.softmax(weights, 0) if softmax else weights
            want = sum((w * x for w, x in zip(weights, there, strict=True)), want)
        torch.testing.assert_close(found[row], want)
    assert found[1].tolist() == found[3].tolist() == [0, 0, 0]


@pytest.mark.parametrize("softmax", [False, True])
def test_padded_lists_are_as_ragged_ones(vectors: Tensor, softmax: bool) -> None:
    torch.manual_seed(0)
    attention, candidates = CandidateAttention(3, (4,), softmax=softmax), torch.randn(2, 3)
    padded = torch.tensor([[3, 5, 0, 0], [0, 0, 0, 0]], dtype=torch.int32)
    ragged = attend(attention, Ragged.of([[3, 5], []]), vectors, candidates)
    torch.testing.assert_close(attend(attention, padded, vectors, candidates), ragged)


@pytest.mark.parametrize("softmax", [False, True])
def test_nothing_but_empty_histories_give_zeros_and_finite_gradients(vectors: Tensor, softmax: bool) -> None:
    attention, candidates = CandidateAttention(3, (4,), softmax=softmax), torch.randn(2, 3, requires_grad=True)
    for lists in (Ragged.of([[], []]), Ragged.of([[0], [0, 0]])):
        found = attend(attention, lists, vectors, candidates)
        found.sum().backward()
        assert found.tolist() == [[0] * 3] * 2
        for tensor in (candidates, *attention.parameters()):
            assert tensor.grad is not None
            assert bool((tensor.grad == 0).all())


def test_softmax_by_row_is_torchs_on_every_row_and_bears_large_scores() -> None:
    scores, row = torch.tensor([1e4, 1e4 - 1, -1e4, 3.0, 5.0]), torch.tensor([0, 0, 2, 2, 0])
    there = torch.tensor([True, True, True, False, False])
    found = softmax_by_row(scores, row, there, 3)
    want = [*torch.softmax(scores[:2], 0).tolist(), 1.0, 0.0, 0.0]
    assert found.tolist() == pytest.approx(want)


def test_rows_without_values_sum_to_zero() -> None:
    values, row = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([2, 0, 2])
    assert sum_by_row(values, row, 4).tolist() == [[2], [0], [5], [0]]
