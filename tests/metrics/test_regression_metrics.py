"""RMSE and MAE: scikit-learn's values, whatever the batches."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics import mean_absolute_error, root_mean_squared_error

from falconet.errors import DataError
from falconet.metrics.regression import RegressionMetrics

METRICS = RegressionMetrics()


def figures(predictions: torch.Tensor, targets: torch.Tensor, size: int, processes: int = 1) -> dict[str, float]:
    parts = list(zip(predictions.split(size), targets.split(size), strict=True))
    ranks = [METRICS.merge([METRICS.partial(*part) for part in parts[i::processes]]) for i in range(processes)]
    return METRICS.finish(METRICS.merge(ranks))


@pytest.mark.parametrize("processes", [1, 3])
def test_a_thousand_rows_equal_scikit_learn_for_any_batches(processes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    predictions, targets = torch.randn(1000, generator=generator), torch.randn(1000, generator=generator)
    got = [figures(predictions, targets, size, processes) for size in (1, 7, 1000)]
    assert got[0] == got[1] == got[2]
    y, p = targets.double().numpy(), predictions.double().numpy()
    assert got[0] == pytest.approx({"rmse": root_mean_squared_error(y, p), "mae": mean_absolute_error(y, p)}, rel=1e-12)


def test_no_rows_are_no_figure_and_what_is_no_number_is_refused() -> None:
    assert all(math.isnan(x) for x in METRICS.finish(METRICS.merge([])).values())
    with pytest.raises(DataError, match="1 of 2 predictions are not finite"):
        METRICS.partial(torch.tensor([1.0, math.inf]), torch.zeros(2))
    with pytest.raises(DataError, match="2 of 2 targets are not finite"):
        METRICS.partial(torch.zeros(2), torch.tensor([math.nan, math.nan]))
    with pytest.raises(DataError, match=r"predictions \(2,\) and targets \(1,\) must be one number per row"):
        METRICS.partial(torch.zeros(2), torch.zeros(1))
