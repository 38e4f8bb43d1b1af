"""Accuracy, counted: the same for any cut of the rows."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics import accuracy_score

from falconet.errors import DataError
from falconet.metrics.classes import ClassMetrics

torch.manual_seed(0)
LOGITS, TARGETS = torch.randn(1000, 5), torch.randint(0, 5, (1000,))


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("processes", [1, 3])
def test_accuracy_is_scikit_learns_for_any_cut(size: int, processes: int) -> None:
    metrics = ClassMetrics()
    parts = list(zip(LOGITS.split(size), TARGETS.split(size), strict=True))
    states = [metrics.merge([metrics.partial(*part) for part in parts[i::processes]]) for i in range(processes)]
    joined = {name: torch.cat([state[name] for state in states]) for name in ("right", "rows")}
    assert metrics.finish(joined) == {"accuracy": accuracy_score(TARGETS.numpy(), LOGITS.argmax(1).numpy())}


def test_no_rows_have_no_accuracy() -> None:
    metrics = ClassMetrics()
    nothing = metrics.partial(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    assert math.isnan(metrics.finish(metrics.merge([nothing]))["accuracy"])
    assert math.isnan(metrics.finish(metrics.merge([]))["accuracy"])


def test_what_is_no_score_is_refused() -> None:
    with pytest.raises(DataError, match="1 of 2 rows have a score that is NaN"):
        ClassMetrics().partial(torch.tensor([[1.0, math.nan], [0.0, 1.0]]), torch.tensor([0, 1]))
    with pytest.raises(DataError, match=r"logits \(2,\) and targets \(2,\) \(torch.int64\) must be \[rows, classes\]"):
        ClassMetrics().partial(torch.zeros(2), torch.tensor([0, 1]))
