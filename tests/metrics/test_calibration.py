"""Calibration: the definition's values, whatever the batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss

from falconet.errors import ConfigError
from falconet.metrics.calibration import Calibration


def figures(logits: torch.Tensor, targets: torch.Tensor, size: int, bins: int = 10) -> dict[str, float]:
    metrics = Calibration(bins)
    states = [metrics.partial(*part) for part in zip(logits.split(size), targets.split(size), strict=True)]
    return metrics.finish(metrics.merge(states))


@pytest.mark.parametrize("decimals", [0, 7], ids=["many ties", "no ties"])
def test_a_thousand_rows_equal_the_definition_for_any_batches(decimals: int) -> None:
    rng = np.random.default_rng(0)
    logits = torch.tensor(rng.normal(size=1000).round(decimals))
    targets = torch.tensor(rng.random(1000) < 0.3, dtype=torch.float32)
    p, y = torch.sigmoid(logits).numpy(), targets.numpy()
    got = [figures(logits, targets, size) for size in (1, 7, 1000)]
    assert got[0] == got[1] == got[2]
    assert got[0]["calibration"] == pytest.approx(p.sum() / y.sum(), abs=1e-12)
    assert got[0]["normalized_entropy"] == pytest.approx(log_loss(y, p) / log_loss(y, np.full(1000, y.mean())))


def test_without_ties_the_curve_is_scikit_learns() -> None:
    rng = np.random.default_rng(1)
    logits = torch.tensor(rng.normal(size=1000))
    targets = torch.tensor(rng.random(1000) < torch.sigmoid(2 * logits).numpy(), dtype=torch.float32)
    metrics = Calibration(10)
    state = metrics.partial(logits, targets)
    probabilities = torch.sigmoid(logits).numpy()
    happened, predicted = calibration_curve(targets.numpy(), probabilities, n_bins=10, strategy="quantile")
    curve = metrics.curve(state)
    assert [rows for *_, rows in curve] == [100] * 10
    # scikit-learn lays the borders between rows by interpolation, so a bin may take a row of its neighbour
    assert [x for x, *_ in curve] == pytest.approx(predicted.tolist(), abs=0.01)
    assert [x for _, x, _ in curve] == pytest.approx(happened.tolist(), abs=0.03)
    assert metrics.finish(state)["ece"] == pytest.approx(sum(abs(a - b) for a, b, _ in curve) / 10)


def test_rows_of_one_score_are_in_one_bin() -> None:
    metrics = Calibration(4)
    curve = metrics.curve(metrics.partial(torch.tensor([0.0, 0, 0, 0, 0, 9]), torch.tensor([0, 1, 0, 1, 0, 1])))
    assert [(predicted, happened, rows) for predicted, happened, rows in curve[:1]] == [(0.5, 0.4, 5)]
    assert [rows for *_, rows in curve] == [5, 1]


@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=1, max_size=50), st.integers(1, 12))
def test_bins_hold_every_row_once_and_are_in_order(rows: list[tuple[int, bool]], bins: int) -> None:
    metrics = Calibration(bins)
    logits, targets = (torch.tensor([float(row[i]) for row in rows]) for i in (0, 1))
    curve = metrics.curve(metrics.partial(logits, targets))
    assert len(curve) <= bins
    assert sum(rows for *_, rows in curve) == len(logits)
    assert sum(happened * rows for _, happened, rows in curve) == pytest.approx(float(targets.sum()))
    assert sorted(predicted for predicted, *_ in curve) == [predicted for predicted, *_ in curve]


def test_what_has_no_denominator_is_no_figure() -> None:
    one = figures(torch.zeros(3), torch.ones(3), 2)
    assert one["calibration"] == 0.5
    assert math.isnan(one["normalized_entropy"])
    none = figures(torch.zeros(3), torch.zeros(3), 2)
    assert math.isnan(none["calibration"])
    assert none["ece"] == 0.5
    metrics = Calibration()
    assert all(math.isnan(x) for x in metrics.finish(metrics.merge([])).values())
    with pytest.raises(ConfigError, match="`bins` must be a whole number of at least 1, not 0"):
        Calibration(0)
