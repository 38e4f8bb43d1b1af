"""What is refused before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from falconet.batch import Batch
from falconet.errors import ConfigError
from falconet.metrics.binary import BinaryMetrics
from falconet.models.mlp import MLP
from falconet.train.callbacks import Callback
from falconet.train.settings import TrainConfig
from falconet.train.trainer import Trainer
from train.workers import SGD, Line, Net, Rows, config, line_batch, loader


@pytest.mark.parametrize(
    ("setting", "value", "what"),
    [
        ("optimizer", "adamm", "one of 'adam', 'adamw', 'sgd', 'adagrad', not 'adamm'"),
        ("table_optimizer", "adam", "or nothing, not 'adam'"),
        ("schedule", "cosin", "not 'cosin'"),
        ("precision", "bf16", "not 'bf16'"),
        ("table_dtype", "float16", "not 'float16'"),
        ("epochs", 1.5, "a whole number, not 1.5"),
        ("epochs", "3", "a whole number, not '3'"),
        ("compile", 1, "true or false, not 1"),
        ("learning_rate", float("inf"), "is inf"),
        ("learning_rate", float("nan"), "is nan"),
        ("weight_decay", float("nan"), "is nan"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(setting: str, value: object, what: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(**{setting: value})
    assert f"{setting}`" in error.value.args[0]
    assert what in error.value.args[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"loader": DataLoader(TensorDataset(torch.zeros(3, 1)))},
            r"a DataLoader was given as a loader(?s:.*)MapLoader\.of",
        ),
        ({"valid": [1, 2]}, "a list was given as a loader: it has no rows, batches, state_dict"),
        ({"metrics": BinaryMetrics}, "the class BinaryMetrics was given as metrics"),
        (
            {"metrics": {"y": len}},
            "a builtin_function_or_method was given as metrics: it has no partial, merge, finish",
        ),
        ({"resume": "yes"}, "`resume` is 'yes'(?s:.*)\"auto\" goes on"),
        ({"resume": True}, '`resume` is True(?s:.*)"auto" goes on'),
        ({"resume": "auto"}, '`resume="auto"` without a folder'),
        ({"metrics": BinaryMetrics()}, r"metrics judge what Line\(batch\) gives, and it has no `forward`"),
        ({"model": Line}, r"the class Line was given as a model(?s:.*)hint: Line\("),
        ({"model": MLP}, r"the class MLP was given as a model(?s:.*)MLP\.from_schema\(loader\.schema\)"),
        ({"model": Rows([line_batch()])}, "a Rows was given as a model(?s:.*)torch.nn.Module"),
    ],
)
def test_what_is_no_loader_and_no_metric_is_named(arguments: dict[str, Any], message: str) -> None:
    given = {"model": Line(), "loader": Rows([line_batch()]), **arguments}
    with pytest.raises(ConfigError, match=message):
        Trainer(SGD).fit(**given)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({"epochs": 1},), "a Trainer needs a TrainConfig, not {'epochs': 1}"),
        ((TrainConfig,), "a Trainer needs a TrainConfig, not its class"),
        ((SGD, 3), "`folder` is 3"),
        ((SGD, None, 2), "`runtime` is 2(?s:.*)falconet launch"),
        ((SGD, None, None, Callback()), "`callbacks` is <(?s:.*)a list"),
        ((SGD, None, None, [Callback]), "is no callback"),
        ((SGD, None, None, [print]), "is no callback"),
    ],
)
def test_what_is_no_trainers_is_refused_when_it_is_made(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Trainer(*arguments)


def test_a_class_is_not_evaluated() -> None:
    with pytest.raises(ConfigError, match="the class Line was given as a model"):
        Trainer(SGD).evaluate(Line, Rows([line_batch()]))  # type: ignore[arg-type]


@pytest.mark.parametrize("setting", [{"monitor": "auc"}, {"patience": 2}, {"schedule": "plateau"}])
def test_what_needs_a_validation_is_refused_without(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"`{next(iter(setting))}(?s:.*) without validation data"):
        Trainer(config(**setting)).fit(Line(), Rows([line_batch()]))


def test_a_table_that_is_a_layers_weight_too_is_refused(data: Path) -> None:
    class Tied(Net):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(6, 30, bias=False)
            self.out.weight = self.tables.weight("item")

        def loss(self, batch: Batch) -> Tensor:
            items = batch.features["item"]
            assert isinstance(items, Tensor)
            logits = self.out(self.tables(batch, ["user"])["user"])
            return nn.functional.cross_entropy(logits, items.long(), reduction="none")

    with pytest.raises(ConfigError, match=r"`out\.weight` is the table `tables\.weights\.table_item` as well"):
        Trainer(config()).fit(Tied(), loader(data))
    frozen = Tied()
    frozen.out.weight.requires_grad_(False)  # learns nowhere, so nothing is lost
    Trainer(config()).fit(frozen, loader(data))
