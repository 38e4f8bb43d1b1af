"""AUC and log loss: scikit-learn's values, whatever the batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from falconet.errors import DataError
from falconet.metrics.binary import BinaryMetrics

METRICS = BinaryMetrics()


def figures(logits: torch.Tensor, targets: torch.Tensor, size: int) -> dict[str, float]:
    cuts = range(0, max(len(logits), 1), size)
    return METRICS.finish(METRICS.merge([METRICS.partial(logits[i : i + size], targets[i : i + size]) for i in cuts]))


def test_auc_and_log_loss_of_four_rows() -> None:
    got = figures(torch.tensor([0.0, 2.0, 1.0, -1.0]), torch.tensor([0.0, 1.0, 0.0, 1.0]), 4)
    assert got["auc"] == 0.5
    assert got["log_loss"] == pytest.approx((math.log(2) + 0.126928011 + 1.313261688 + 1.313261688) / 4, abs=1e-9)


@pytest.mark.parametrize("decimals", [0, 1, 7], ids=["many ties", "some ties", "no ties"])
def test_a_thousand_rows_equal_scikit_learn_for_any_batches(decimals: int) -> None:
    rng = np.random.default_rng(0)
    logits = torch.tensor(rng.normal(size=1000).round(decimals), dtype=torch.float32)
    targets = torch.tensor(rng.random(1000) < torch.sigmoid(logits).numpy(), dtype=torch.float32)
    probabilities = torch.sigmoid(logits.double()).numpy()
    want = {"auc": roc_auc_score(targets, logits), "log_loss": log_loss(targets, probabilities)}
    got = [figures(logits, targets, size) for size in (1, 7, 1000)]
    assert got[0] == got[1] == got[2]
    assert got[0] == pytest.approx(want, abs=1e-12)


def test_the_order_of_rows_and_states_changes_no_bit() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(500, generator=generator).round(decimals=1)
    targets = torch.randint(0, 2, (500,), generator=generator)
    order = torch.randperm(500, generator=generator)
    assert figures(logits, targets, 500) == figures(logits[order], targets[order], 37)


def test_batches_of_one_class_join_into_the_right_auc() -> None:
    logits, targets = torch.tensor([3.0, 2.0, 1.0, 0.0]), torch.tensor([1, 1, 0, 0])
    assert figures(logits, targets, 2)["auc"] == 1.0
    assert figures(-logits, targets, 1)["auc"] == 0.0


def test_two_uneven_ranks_join_into_the_value_of_one_process() -> None:
    logits, targets = torch.tensor([9.0, -1, 2, 0.5, -3, 1, 0]), torch.tensor([0, 0, 1, 1, 0, 1, 0])
    ranks = [METRICS.partial(logits[:3], targets[:3]), METRICS.partial(logits[3:], targets[3:])]
    joined = METRICS.merge(ranks[::-1])
    assert len(joined["targets"]) == 7
    assert METRICS.finish(joined) == METRICS.finish(METRICS.partial(logits, targets))


def test_constant_scores_have_an_auc_of_one_half() -> None:
    assert figures(torch.zeros(7), torch.tensor([1, 0, 0, 1, 0, 0, 0]), 3)["auc"] == 0.5


def test_one_class_has_no_auc_and_no_rows_have_nothing() -> None:
    one = figures(torch.tensor([0.0, 0.0]), torch.tensor([1, 1]), 1)
    assert math.isnan(one["auc"])
    assert one["log_loss"] == pytest.approx(math.log(2))
    assert all(math.isnan(value) for value in METRICS.finish(METRICS.merge([])).values())


def test_certain_and_wrong_is_a_large_loss_not_an_infinite_one() -> None:
    logits = torch.tensor([1e4, float("-inf"), float("inf")])
    got = figures(logits, torch.tensor([0, 1, 1]), 3)
    want = log_loss([0, 1, 1], [1.0, 0.0, 1.0])
    assert got["log_loss"] == pytest.approx(want, rel=1e-6)
    assert got["auc"] == 0.5


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=60), st.integers(1, 60))
def test_auc_is_the_share_of_pairs_ordered_rightly(rows: list[tuple[int, bool]], size: int) -> None:
    positives, negatives = ([score for score, target in rows if target is kind] for kind in (True, False))
    if not positives or not negatives:
        return
    pairs = [(p > n) + 0.5 * (p == n) for p in positives for n in negatives]
    logits, targets = (torch.tensor([row[i] for row in rows]) for i in (0, 1))
    assert figures(logits.float(), targets.float(), size)["auc"] == sum(pairs) / len(pairs)


def test_what_is_no_target_or_no_score_is_refused() -> None:
    with pytest.raises(DataError, match=r"targets must be 0 or 1, not 3.5"):
        METRICS.partial(torch.zeros(2), torch.tensor([1.0, 3.5]))
    with pytest.raises(DataError, match="1 of 2 logits are NaN"):
        METRICS.partial(torch.tensor([0.0, float("nan")]), torch.zeros(2))
    with pytest.raises(DataError, match=r"logits \(2,\) and targets \(3,\) must be one number per row"):
        METRICS.partial(torch.zeros(2), torch.zeros(3))
