"""Learning rates, beside torch's own schedulers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from falconet.train.callbacks import Callback
from falconet.train.schedule import factor
from falconet.train.trainer import Trainer
from train.workers import Worse, config, loader, net

STEPS = 25


class Rates(Callback):
    """The learning rate of every step."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def step(self, step: int, figures: Mapping[str, float]) -> None:
        self.seen.append(figures["learning_rate"])


def torchs(make: Callable[[torch.optim.Optimizer], Any], steps: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler, rates = make(optimizer), []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("settings", "make"),
    [
        ({"schedule": "constant"}, lambda o: lr_scheduler.ConstantLR(o, factor=1.0)),
        ({"schedule": "step", "every": 10}, lambda o: lr_scheduler.StepLR(o, 10)),
        ({"schedule": "step", "every": 3, "decay": 0.5}, lambda o: lr_scheduler.StepLR(o, 3, gamma=0.5)),
        ({"schedule": "cosine"}, lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS)),
        ({"schedule": "linear"}, lambda o: lr_scheduler.LinearLR(o, 1.0, 0.0, STEPS)),
        (
            {"schedule": "cosine", "warmup": 5},
            lambda o: lr_scheduler.SequentialLR(
                o,
                [lr_scheduler.LambdaLR(o, lambda step: (step + 1) / 5), lr_scheduler.CosineAnnealingLR(o, STEPS - 5)],
                [5],
            ),
        ),
    ],
    ids=lambda x: "-".join(f"{value}" for value in x.values()) if isinstance(x, dict) else "",
)
def test_rates_are_those_of_torchs_schedulers(settings: dict[str, Any], make: Callable[..., Any]) -> None:
    chosen = {"warmup": 0, **settings}
    assert [factor(step=step, steps=STEPS, **chosen) for step in range(STEPS)] == pytest.approx(torchs(make, STEPS))


def test_a_plateau_lowers_the_rate_as_torchs_does(data: Path, held_out: Path) -> None:
    rates = Rates()
    chosen = config(epochs=6, schedule="plateau", decay=0.5, decay_every=2, monitor="auc", learning_rate=1.0)
    Trainer(chosen, callbacks=[rates]).fit(net(), loader(data, 320), loader(held_out), metrics=Worse())
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, "max", factor=0.5, patience=1, threshold=0.0)
    wanted = []
    for epoch in range(6):
        wanted.append(optimizer.param_groups[0]["lr"])
        scheduler.step(1 / (epoch + 1))
    assert rates.seen == pytest.approx(wanted)
    assert rates.seen == [1.0, 1.0, 1.0, 0.5, 0.5, 0.25]


@pytest.mark.parametrize("parts", [1, 3])
def test_the_schedule_takes_a_step_with_the_optimizer(data: Path, parts: int) -> None:
    rates = Rates()
    chosen = config(schedule="step", decay_every=4, learning_rate=0.01, accumulate=parts)
    Trainer(chosen, callbacks=[rates]).fit(net(), loader(data))
    assert rates.seen == pytest.approx([0.01] * 4 + [0.001] * 4 + [0.0001] * 2)
