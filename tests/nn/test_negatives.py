"""Where negatives come from: how often each is drawn, what is left out, and that processes agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from falconet.errors import ConfigError, DataError
from falconet.nn import ItemLoss, ItemLossConfig, full_softmax, log_q, sampled_softmax
from falconet.nn.negatives import Pool, Queue, Sampler, draw_for_all, draw_for_each, hardest
from falconet.train.launch import launch
from nn.workers import SETTINGS, item_losses

ITEMS = 50
ZIPF = 1000 / torch.arange(1, ITEMS + 1).double()
"""Counts of a catalogue in which the first item is taken fifty times as often as the last."""


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_items_are_drawn_as_often_as_the_power_of_their_counts_says_and_reserved_codes_never(power: float) -> None:
    sampler = Sampler(ZIPF, 3, power)
    draws = 200_000
    found = torch.bincount(sampler.draw((draws,), torch.Generator().manual_seed(1)), minlength=ITEMS).double()
    want = ZIPF[3:] ** power / (ZIPF[3:] ** power).sum()
    assert found[:3].sum() == 0
    chi_square = ((found[3:] - draws * want) ** 2 / (draws * want)).sum()
    assert chi_square < 85  # 46 degrees of freedom: passed by one seed in 2,500
    torch.testing.assert_close(sampler.log_q(torch.arange(3, ITEMS)), want.log())


def test_what_was_never_taken_is_never_drawn_by_popularity() -> None:
    counts = torch.tensor([9, 9, 9, 0, 5, 0, 1, 0])
    assert set(Sampler(counts, 3, 1.0).draw((500,), torch.Generator().manual_seed(0)).tolist()) == {4, 6}
    assert set(Sampler(counts, 3, 0.0).draw((500,), torch.Generator().manual_seed(0)).tolist()) == {3, 4, 5, 6, 7}
    with pytest.raises(DataError, match="no item can be drawn as a negative: none of 8 codes from 7 on was counted"):
        Sampler(counts, 7, 1.0)


def test_draws_follow_the_seed_of_torch() -> None:
    sampler, cpu = Sampler(ZIPF, 3, 1.0), torch.device("cpu")
    torch.manual_seed(3)
    first = (draw_for_all(sampler, 7, cpu), draw_for_each(sampler, 4, 5, cpu))
    torch.manual_seed(3)
    again = (draw_for_all(sampler, 7, cpu), draw_for_each(sampler, 4, 5, cpu))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(draw_for_all(sampler, 7, cpu), first[0])


def estimates(kind: str, own: int, scores: Tensor, repeats: int, correct: bool) -> Tensor:
    """Sums over the catalogue of exp(score), as estimated from the negatives of `repeats` batches, for one own item."""
    torch.manual_seed(11)
    q = log_q(ZIPF, torch.arange(ITEMS)).exp().double()
    found = []
    for _ in range(repeats):
        codes = torch.cat([torch.tensor([own]), torch.multinomial(q, 20, replacement=True)])
        settings = ItemLossConfig(negatives=kind, samples=20, correct=correct, queue=0)  # type: ignore[arg-type]
        items = scores.float()[:, None]
        loss = ItemLoss(settings, 0, 1)(torch.ones(21, 1), codes, lambda c, items=items: items[c], ZIPF)
        found.append((loss[0] + scores[own]).exp())  # loss = -score + ln of the sum
    return torch.stack(found).double()


@pytest.mark.parametrize("kind", ["batch", "uniform", "popularity", "mixed"])
@pytest.mark.parametrize("own", [0, 45])
def test_log_q_makes_the_sampled_softmax_an_unbiased_estimate_of_the_full_one(kind: str, own: int) -> None:
    scores = torch.randn(ITEMS, generator=torch.Generator().manual_seed(2)).double()
    truth = float(scores.exp().sum())
    repeats = 100
    sums = estimates(kind, own, scores, repeats, correct=True)
    error = float(sums.std()) / repeats**0.5
    assert abs(float(sums.mean()) - truth) < 4 * error
    plain = estimates(kind, own, scores, repeats, correct=False)
    assert abs(float(plain.mean()) - truth) > 8 * error  # without it, the estimate is far off


def test_the_loss_of_a_large_batch_and_its_gradient_are_close_to_those_of_the_full_softmax() -> None:
    torch.manual_seed(4)
    rows = 20_000
    codes = torch.multinomial(ZIPF, rows, replacement=True)
    items = torch.randn(ITEMS, 3, requires_grad=True)
    users = torch.randn(16, 3).repeat(rows // 16, 1)
    full = full_softmax(users @ items.T, codes)
    (wanted,) = torch.autograd.grad(full[:16].sum(), items)
    q = log_q(ZIPF, codes)
    sampled = sampled_softmax(users[:16], items[codes[:16]], codes[:16], q[:16])  # a small batch is not
    pool = Pool.of_batch(items[codes], codes, q)
    corrected = pool.corrected(pool.scores(users[:16])).masked_fill(pool.absent(codes[:16]), -torch.inf)
    own = (users[:16] * items[codes[:16]]).sum(1)
    loss = torch.cat([own[:, None], corrected], dim=1).logsumexp(1) - own
    (found,) = torch.autograd.grad(loss.sum(), items)
    torch.testing.assert_close(loss, full[:16], rtol=0.05, atol=0.02)
    torch.testing.assert_close(found, wanted, rtol=0.1, atol=0.15)
    assert float((sampled - full[:16]).detach().abs().max()) > 0.1


def test_own_items_are_no_negatives_wherever_they_come_from() -> None:
    """All rows took one item, and nothing else is in batch or queue: there is nothing to be compared with."""
    codes = torch.full((4,), 7)
    for config in (ItemLossConfig(negatives="batch"), ItemLossConfig(negatives="batch", queue=8)):
        loss = ItemLoss(config, 3, 2).train()
        for _ in range(3):
            assert loss(torch.randn(4, 2), codes, lambda c: torch.ones(len(c), 2), ZIPF).tolist() == [0.0] * 4


def test_a_queue_keeps_the_newest_vectors_and_adds_them_to_the_batch() -> None:
    queue = Queue(3, 1)
    assert len(queue.pool().codes) == 0
    for code in range(4, 9, 2):
        queue.push(Pool(torch.full((2, 1), float(code)), torch.tensor([code, code + 1])))
    assert queue.pool().codes.tolist() == [7, 8, 9]
    assert queue.pool().vectors.flatten().tolist() == [6.0, 8.0, 8.0]
    loss = ItemLoss(ItemLossConfig(negatives="batch", queue=5, correct=False), 0, 1).train()
    user, items = torch.ones(2, 1), torch.arange(ITEMS).float()[:, None] / ITEMS
    first = loss(user, torch.tensor([5, 6]), lambda codes: items[codes], ZIPF)
    second = loss(user, torch.tensor([7, 8]), lambda codes: items[codes], ZIPF)
    scores = items[torch.tensor([7, 8, 5, 6])].flatten()
    torch.testing.assert_close(second[0], scores.logsumexp(0) - scores[0])
    assert float(first[0]) == pytest.approx(float(items[[5, 6]].flatten().logsumexp(0) - items[5, 0]))
    assert loss.eval()(user, torch.tensor([1, 2]), lambda codes: items[codes], ZIPF).shape == (2,)
    assert loss.queue is not None and loss.queue.codes.tolist() == [-1, 5, 6, 7, 8]  # evaluation adds nothing


def test_hard_negatives_are_the_highest_of_those_that_count() -> None:
    scores = torch.tensor([[1.0, 5.0, 3.0, 2.0], [4.0, 1.0, 2.0, 9.0]])
    absent = torch.tensor([[False, True, False, False], [False, False, True, True]])
    found, gone = hardest(scores, absent, 3)
    assert found[0].tolist() == [3.0, 2.0, 1.0] and gone[0].tolist() == [False] * 3
    assert found[1][:2].tolist() == [4.0, 1.0] and gone[1].tolist() == [False, False, True]


def test_a_loss_over_the_whole_catalogue_is_the_full_softmax() -> None:
    torch.manual_seed(0)
    items, users, codes = torch.randn(ITEMS, 3), torch.randn(6, 3), torch.tensor([3, 9, 9, 49, 20, 1])
    config = ItemLossConfig(temperature=0.5, label_smoothing=0.1)
    found = ItemLoss(config, 3, 3)(users, codes, lambda c: items[c], ZIPF)
    want = full_softmax(users @ items.T, codes, first=3, temperature=0.5, label_smoothing=0.1)
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "bpr2"}, "`loss` is 'bpr2'"),
        ({"samples": 0}, "`samples` is 0"),
        ({"hard": 0}, "`hard` is 0"),
        ({"queue": 4}, "`queue` is 4 with negatives 'all'"),
        ({"per_row": True}, "`per_row` with negatives 'all'"),
        ({"temperature": 0.0}, "`temperature` is 0.0"),
        ({"label_smoothing": 1.0}, "`label_smoothing` is 1.0"),
        ({"loss": "gbce", "negatives": "popularity"}, "gBCE with negatives 'popularity'"),
        ({"calibration": 2.0}, "calibration 2.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ItemLossConfig(**settings)


def test_a_batch_alone_cannot_draw_from_the_catalogue() -> None:
    with pytest.raises(ConfigError, match="negatives 'uniform' need the catalogue"):
        ItemLoss(ItemLossConfig(negatives="uniform"), 3, 2).in_batch(
            torch.ones(2, 2), torch.ones(2, 2), torch.tensor([4, 5]), ZIPF
        )


@pytest.fixture(scope="module")
def two() -> dict[str, dict[str, Tensor]]:
    return launch(item_losses, 2)


@pytest.fixture(scope="module")
def one() -> dict[str, dict[str, Tensor]]:
    return item_losses()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", [*SETTINGS, "two_tower"])
def test_two_processes_of_four_rows_have_the_losses_and_gradients_of_one_of_eight(
    name: str, one: dict[str, dict[str, Tensor]], two: dict[str, dict[str, Tensor]]
) -> None:
    assert one[name].keys() == two[name].keys()
    assert float(one[name]["losses"].abs().sum()) > 0
    for part, wanted in one[name].items():
        torch.testing.assert_close(
            two[name][part], wanted, rtol=1e-5, atol=1e-5, msg=lambda m, part=part: f"{part}: {m}"
        )
