"""Figures of a model of several targets: by target, over the rows that know it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from sklearn.metrics import roc_auc_score

from falconet.batch import Batch
from falconet.errors import ColumnNotFoundError, ConfigError
from falconet.metrics.binary import BinaryMetrics
from falconet.metrics.regression import RegressionMetrics
from falconet.models import MLP, MMoE
from falconet.schema import Column, Schema, Tag
from falconet.testing.models import EXAMPLE, example_batch
from falconet.train.settings import TrainConfig
from falconet.train.trainer import Trainer
from train.workers import Rows

STARS = Column(name="stars", dtype="float32", tags=frozenset({Tag.TARGET, Tag.REGRESSION}))
SCHEMA = Schema((*EXAMPLE, STARS))
FIGURES = {"label": BinaryMetrics(), "stars": RegressionMetrics()}


@pytest.fixture
def batches() -> list[Batch]:
    """Two batches, in which every third row knows no stars."""
    made = [example_batch(SCHEMA, rows=24, seed=seed) for seed in (1, 2)]
    gaps = torch.arange(24) % 3 == 0
    return [replace(b, targets={**b.targets, "stars": b.targets["stars"].masked_fill(gaps, torch.nan)}) for b in made]


def model() -> MMoE:
    torch.manual_seed(0)
    return MMoE.from_schema(SCHEMA, replace(MMoE.debug(), target="label"))


def test_figures_by_target_are_those_of_the_rows_that_know_it(batches: list[Batch]) -> None:
    made = model()
    figures = Trainer(TrainConfig()).evaluate(made, Rows(batches), FIGURES)
    made.eval()
    with torch.no_grad():
        found = [made.predictions(b) for b in batches]
        losses = torch.cat([made.loss(b) for b in batches])
    label, stars = (torch.cat([b.targets[name] for b in batches]) for name in ("label", "stars"))
    errors = torch.cat([f["stars"] for f in found]).sub(stars)
    assert figures["label/auc"] == pytest.approx(roc_auc_score(label, torch.cat([f["label"] for f in found])))
    assert figures["stars/rmse"] == pytest.approx(math.sqrt(float(errors[~stars.isnan()].square().mean())))
    assert figures["loss"] == pytest.approx(float(losses.mean()))


def test_training_can_be_judged_by_one_of_them(batches: list[Batch]) -> None:
    config = TrainConfig(epochs=3, learning_rate=0.02, monitor="stars/rmse", precision="float32")
    result = Trainer(config).fit(model(), Rows(batches), Rows(batches), metrics=FIGURES)
    told = [line["valid"]["stars/rmse"] for line in result.history]
    assert result.metrics["valid"]["stars/rmse"] == min(told)
    assert told[-1] < told[0]


def test_metrics_without_a_name_are_of_the_target_that_rows_are_ranked_by(batches: list[Batch]) -> None:
    both = [Trainer(TrainConfig()).evaluate(model(), Rows(batches), m) for m in (BinaryMetrics(), FIGURES)]
    assert both[0]["auc"] == both[1]["label/auc"]
    single = MLP.from_schema(SCHEMA, replace(MLP.debug(), target="label"))
    assert 0 < Trainer(TrainConfig()).evaluate(single, Rows(batches), BinaryMetrics())["auc"] < 1


def test_a_target_that_the_model_does_not_predict_is_refused(batches: list[Batch]) -> None:
    single = MLP.from_schema(SCHEMA, replace(MLP.debug(), target="label"))
    with pytest.raises(ColumnNotFoundError, match="what the model predicts has no column `stars`"):
        Trainer(TrainConfig()).evaluate(single, Rows(batches), FIGURES)
    with pytest.raises(ColumnNotFoundError, match="the batch's targets has no column `star`\n\nhint: did you mean"):
        Trainer(TrainConfig()).evaluate(model(), Rows(batches), {"star": BinaryMetrics()})


def test_a_model_that_names_no_target_needs_data_with_one(batches: list[Batch]) -> None:
    class Nameless(torch.nn.Module):
        def forward(self, batch: Batch) -> torch.Tensor:
            return torch.zeros(batch.rows)

        def loss(self, batch: Batch) -> torch.Tensor:
            return torch.zeros(batch.rows)

    with pytest.raises(ConfigError, match="metrics need one target, the data has label, stars"):
        Trainer(TrainConfig()).evaluate(Nameless(), Rows(batches), BinaryMetrics())
