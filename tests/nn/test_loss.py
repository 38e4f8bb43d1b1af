"""Losses against references in plain Python, on small numbers that anybody can check, and on absurdly large ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from falconet.errors import ConfigError
from falconet.nn import bce, contrast, full_softmax, listwise_softmax, log_q, mse, sampled_softmax

OWN = [0.3, -1.2, 2.0, 0.7]
OTHERS = [[0.5, -0.4, 1.1], [2.0, 0.1, -0.3], [-1.0, 3.0, 0.2], [0.9, 0.8, 0.7]]
ABSENT = [[False, False, False], [False, True, False], [True, True, False], [True, True, True]]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def softmax(xs: Sequence[float]) -> list[float]:
    total = sum(math.exp(x) for x in xs)
    return [math.exp(x) / total for x in xs]


def mean(xs: list[float]) -> float:
    return sum(xs) / len(xs)


Reference = Callable[[float, list[float]], float]
"""The loss of an own item against the negatives that count, of which there is at least one."""


def softmax_loss(p: float, ns: list[float]) -> float:
    return -math.log(softmax([p, *ns])[0])


def smoothed(p: float, ns: list[float]) -> float:
    logs = [math.log(x) for x in softmax([p, *ns])]
    return -0.8 * logs[0] - 0.2 * mean(logs)


def bpr_max(p: float, ns: list[float]) -> float:
    wins = sum(w * sigmoid(p - n) for w, n in zip(softmax(ns), ns, strict=True))
    return -math.log(wins) + 0.5 * sum(w * n * n for w, n in zip(softmax(ns), ns, strict=True))


def top1_of(p: float, n: float) -> float:
    return sigmoid(n - p) + sigmoid(n * n)


def binary(p: float, ns: list[float], beta: float = 1.0) -> float:
    total = -beta * math.log(sigmoid(p)) - sum(math.log(1 - sigmoid(n)) for n in ns)
    return total / (1 + len(ns))


LOSSES: dict[str, tuple[Callable[..., Tensor], dict[str, float], Reference]] = {
    "softmax": (contrast.softmax, {}, softmax_loss),
    "smoothed softmax": (contrast.softmax, {"label_smoothing": 0.2}, smoothed),
    "bpr": (contrast.bpr, {}, lambda p, ns: mean([-math.log(sigmoid(p - n)) for n in ns])),
    "bpr_max": (contrast.bpr_max, {"regularisation": 0.5}, bpr_max),
    "top1": (contrast.top1, {}, lambda p, ns: mean([top1_of(p, n) for n in ns])),
    "top1_max": (
        contrast.top1_max, {}, lambda p, ns: sum(w * top1_of(p, n) for w, n in zip(softmax(ns), ns, strict=True)),
    ),
    "hinge": (contrast.hinge, {"margin": 0.6}, lambda p, ns: mean([max(0.0, 0.6 - p + n) for n in ns])),
    "bce": (contrast.binary, {}, binary),
    "gbce": (contrast.binary, {"beta": 0.3}, lambda p, ns: binary(p, ns, beta=0.3)),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_what_its_formula_says(name: str) -> None:
    loss, settings, reference = LOSSES[name]
    found = loss(torch.tensor(OWN), torch.tensor(OTHERS), torch.tensor(ABSENT), **settings)
    for own, others, absent, value in zip(OWN, OTHERS, ABSENT, found.tolist(), strict=True):
        negatives = [n for n, gone in zip(others, absent, strict=True) if not gone]
        nothing = reference(own, []) if loss is contrast.binary else 0.0
        assert value == pytest.approx(reference(own, negatives) if negatives else nothing, rel=1e-5)
    all_count = loss(torch.tensor(OWN), torch.tensor(OTHERS), **settings)
    assert all_count.tolist() == pytest.approx([reference(p, ns) for p, ns in zip(OWN, OTHERS, strict=True)], rel=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_what_does_not_count_has_no_gradient_and_learning_lifts_the_own_item(name: str) -> None:
    loss, settings, _ = LOSSES[name]
    own, others = torch.tensor(OWN, requires_grad=True), torch.tensor(OTHERS, requires_grad=True)
    loss(own, others, torch.tensor(ABSENT), **settings).sum().backward()
    assert own.grad is not None and others.grad is not None
    assert bool((others.grad[torch.tensor(ABSENT)] == 0).all())
    assert bool((own.grad[:2] < 0).all())


@pytest.mark.parametrize("scale", [1e4, 1e15])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_of_extreme_scores_are_numbers(name: str, scale: float) -> None:
    loss, settings, _ = LOSSES[name]
    signs = torch.tensor([[a, b, c] for a in (-1.0, 0.0, 1.0) for b in (-1.0, 0.0, 1.0) for c in (-1.0, 0.0, 1.0)])
    own = (signs[:, 0] * scale).requires_grad_()
    others = (signs[:, 1:] * scale).requires_grad_()
    found = loss(own, others, torch.arange(54).view(27, 2) % 5 == 0, **settings)
    found.sum().backward()
    assert own.grad is not None and others.grad is not None
    assert all(bool(x.isfinite().all()) for x in (found, own.grad, others.grad))


def test_losses_are_made_in_float32() -> None:
    own, others = torch.tensor(OWN, dtype=torch.bfloat16), torch.tensor(OTHERS, dtype=torch.bfloat16)
    for loss, settings, _ in LOSSES.values():
        assert loss(own, others, **settings).dtype == torch.float32
        assert loss(own[:0], others[:0], **settings).shape == (0,)


def test_gbce_is_bce_without_calibration_and_weighs_the_own_item_by_the_share_drawn_with_all_of_it() -> None:
    assert contrast.gbce_beta(10, 101, 0.0) == pytest.approx(1.0)
    assert contrast.gbce_beta(10, 101, 1.0) == pytest.approx(0.1)
    assert contrast.gbce_beta(10, 101, 0.75) == pytest.approx(0.1 * (0.75 * (1 - 10) + 10))
    assert contrast.gbce_beta(500, 101, 0.5) == 1.0  # more than there are: all are drawn
    with pytest.raises(ConfigError, match=r"gBCE of 10 negatives with calibration 1\.5"):
        contrast.gbce_beta(10, 101, 1.5)


def test_pointwise_losses_are_torchs() -> None:
    logits, labels = torch.tensor([0.0, 1.0, -80.0, 80.0]), torch.tensor([1, 1, 1, 0])
    assert bce(logits, labels).tolist() == pytest.approx([0.6931472, 0.3132617, 80.0, 80.0])
    want = [-0.9 * math.log(sigmoid(x)) - 0.1 * math.log(sigmoid(-x)) for x in (0.0, 1.0)]
    assert bce(logits, labels, label_smoothing=0.2)[:2].tolist() == pytest.approx(want)
    assert mse(torch.tensor([1.0, 3.0]), torch.tensor([0, 1])).tolist() == [1.0, 4.0]


def test_full_softmax_is_torchs_over_what_is_not_reserved() -> None:
    torch.manual_seed(0)
    logits, codes = torch.randn(5, 8), torch.tensor([3, 7, 4, 3, 5])
    plain = torch.nn.functional.cross_entropy(logits, codes, reduction="none")
    torch.testing.assert_close(full_softmax(logits, codes), plain)
    smooth = torch.nn.functional.cross_entropy(logits[:, 3:] / 0.5, codes - 3, reduction="none", label_smoothing=0.1)
    torch.testing.assert_close(full_softmax(logits, codes, first=3, temperature=0.5, label_smoothing=0.1), smooth)
    reserved = full_softmax(logits, torch.ones(5, dtype=torch.int64), first=3)
    seen = torch.cat([logits[:, 1:2], logits[:, 3:]], dim=1)
    torch.testing.assert_close(reserved, -seen.log_softmax(1)[:, 0])
    assert bool(full_softmax(logits * 1e15, codes).isfinite().all())


def test_listwise_softmax_adds_up_to_the_cross_entropy_of_each_list() -> None:
    scores = torch.tensor([0.5, 2.0, -1.0, 0.3, 1.0, 1e15, 4.0], requires_grad=True)
    labels = torch.tensor([1.0, 0.0, 3.0, 0.0, 0.0, 2.0, 0.0])
    lists = torch.tensor([7, 9, 7, 9, 7, 4, 4])  # list 9 has no label above 0
    found = listwise_softmax(scores, labels, lists)
    shares = softmax([0.5, -1.0, 1.0])
    assert found[[0, 2, 4]].sum().item() == pytest.approx(-0.25 * math.log(shares[0]) - 0.75 * math.log(shares[1]))
    assert found[[1, 3, 5, 6]].tolist() == [0.0, 0.0, 0.0, 0.0]
    found.sum().backward()
    assert scores.grad is not None
    assert scores.grad[[0, 2, 4]].tolist() == pytest.approx([shares[0] - 0.25, shares[1] - 0.75, shares[2]], rel=1e-5)
    assert bool(scores.grad.isfinite().all())
    assert listwise_softmax(scores[:0], labels[:0], lists[:0]).shape == (0,)
    warm = listwise_softmax(scores[:2], labels[:2], torch.zeros(2), temperature=2.0)
    assert warm.sum().item() == pytest.approx(-math.log(softmax([0.25, 1.0])[0]))


def test_log_q_is_the_logarithm_of_the_share() -> None:
    found = log_q(torch.tensor([0, 3, 6]), torch.tensor([1, 2, 0]))
    assert found.exp().tolist() == pytest.approx([0.3, 0.6, 0.1])


def test_sampled_softmax_leaves_out_hits_and_corrects_popularity() -> None:
    user, item = torch.ones(3, 1), torch.tensor([[1.0], [2.0], [1.0]])
    codes = torch.tensor([4, 5, 4])
    plain = sampled_softmax(user, item, codes)
    # Rows 0 and 2 have the same item, so each sees only the other item; row 1 sees both.
    assert plain.tolist() == pytest.approx([1.3132617, 0.5514447, 1.3132617])
    corrected = sampled_softmax(user, item, codes, torch.tensor([0.0, 1.0, 0.0]))
    # Two other rows are two draws: exp(2) counts as exp(2) / 2e, exp(1) as exp(1) / 2.
    want = [math.log(1 + math.exp(2 - 1 - 1) / 2), math.log(1 + math.exp(1 - 2)), math.log(1.5)]
    assert corrected.tolist() == pytest.approx(want)
    assert sampled_softmax(user, item, codes, temperature=0.5)[0].item() == pytest.approx(2.1269281)


def test_sampled_softmax_of_no_rows_is_empty() -> None:
    assert sampled_softmax(torch.zeros(0, 2), torch.zeros(0, 2), torch.zeros(0)).shape == (0,)
