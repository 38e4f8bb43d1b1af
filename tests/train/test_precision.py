"""Which precision a run takes, and the factor that float16 needs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from falconet.batch import Batch
from falconet.errors import DataError
from falconet.train import precision
from falconet.train.callbacks import Callback
from falconet.train.checkpoint import Position
from falconet.train.precision import choose, first_scale, rescale
from falconet.train.runtime import Runtime
from falconet.train.trainer import Trainer
from train.workers import Rows, config, loader, net, same

FIRST = 65536.0


class Steep(nn.Module):
    """A layer whose loss is so steep that its float16 gradient overflows until the factor has fallen to 1024."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1, bias=False)
        nn.init.constant_(self.layer.weight, 0.5)

    def loss(self, batch: Batch) -> Tensor:
        x = batch.features["x"]
        assert isinstance(x, Tensor)
        return self.layer(x.unsqueeze(1)).squeeze(1) * 40.0


def steep_rows(steps: int) -> Rows:
    return Rows([Batch.of({"x": torch.ones(1)}, {})] * steps)


class Norms(Callback):
    """The gradient's norm in every step, and the weight after it."""

    def __init__(self, model: Steep, stop: int | None = None) -> None:
        self.model, self.stop = model, stop
        self.norms: list[float] = []
        self.weights: list[float] = []

    def step(self, step: int, figures: Mapping[str, float]) -> None:
        self.norms.append(figures["gradient_norm"])
        self.weights.append(self.model.layer.weight.item())
        if step == self.stop:
            raise InterruptedError


HALF = config(optimizer="sgd", learning_rate=0.001, precision="float16", snapshot_steps=1)


def test_steps_that_overflow_are_skipped_and_the_factor_falls(tmp_path: Path) -> None:
    model = Steep()
    norms = Norms(model)
    Trainer(HALF, tmp_path / "run", callbacks=[norms]).fit(model, steep_rows(9))
    overflows = [math.isinf(norm) for norm in norms.norms]
    # 40 times the factor is above 65,504, the largest float16 number, from 2,048 on.
    assert overflows == [True] * 6 + [False] * 3
    assert norms.norms[6:] == [40.0] * 3
    assert norms.weights == pytest.approx([0.5] * 6 + [0.46, 0.42, 0.38])
    state = json.loads((tmp_path / "run/snapshots/00000009/state.json").read_text())
    assert (state["scale"], state["good_steps"]) == (1024.0, 3)


@pytest.mark.parametrize("step", [3, 8])
def test_the_factor_goes_on_in_a_resumed_run(tmp_path: Path, step: int) -> None:
    whole, cut, resumed = Steep(), Steep(), Steep()
    Trainer(HALF).fit(whole, steep_rows(9))
    with pytest.raises(InterruptedError):
        Trainer(HALF, tmp_path / "run", callbacks=[Norms(cut, stop=step)]).fit(cut, steep_rows(9))
    norms = Norms(resumed)
    Trainer(HALF, tmp_path / "run", callbacks=[norms]).fit(resumed, steep_rows(9), resume="must")
    assert [math.isinf(norm) for norm in norms.norms] == ([True] * 6 + [False] * 3)[step - 1 :]
    assert same(whole, resumed)


def test_a_gradient_that_no_factor_helps_ends_the_run_and_leaves_the_weights() -> None:
    class Hopeless(Steep):
        def loss(self, batch: Batch) -> Tensor:
            return (self.layer.weight.sum() * 0).sqrt() + super().loss(batch) * 0  # its slope at 0 is no number

    model = Hopeless()
    with pytest.raises(DataError, match=r"the gradient is nan at step 17 of epoch 1(?s:.*)a smaller learning rate"):
        Trainer(HALF).fit(model, steep_rows(40))
    assert model.layer.weight.item() == 0.5


def test_tables_and_dense_layers_learn_in_float16_what_they_learn_in_float32(data: Path) -> None:
    losses = [
        Trainer(config(epochs=2, learning_rate=0.01, precision=precision)).fit(net(), loader(data)).metrics["loss"]
        for precision in ("float32", "float16")
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)


def test_the_factor_moves_as_torchs_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "_GROW_AFTER", 3)
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=FIRST, growth_interval=3)
    position = Position()
    first_scale(position, torch.float16)
    for fine in (True, True, True, False, True, False, True, True, True, True, False, False):
        scaler.scale(weight.sum())  # it refuses to go on without a loss
        weight.grad = torch.full((1,), 1.0 if fine else math.inf)
        scaler.step(optimizer)
        scaler.update()
        assert rescale(position, fine)
        assert position.scale == scaler.get_scale()


@pytest.mark.parametrize(
    ("before", "dtype", "after"),
    [
        (None, torch.float16, FIRST),
        (1.0, torch.float16, 1.0),  # it has fallen so far
        (512.0, torch.float16, 512.0),
        (512.0, torch.bfloat16, None),  # goes on on other hardware
        (None, torch.float32, None),
    ],
)
def test_a_run_begins_with_its_own_factor(before: float | None, dtype: torch.dtype, after: float | None) -> None:
    position = Position(scale=before)
    first_scale(position, dtype)
    assert position.scale == after


@pytest.mark.parametrize(
    ("asked", "bfloat16", "float16", "chosen"),
    [
        ("auto", True, True, torch.bfloat16),
        ("auto", False, True, torch.float16),
        ("auto", False, False, torch.float32),
        ("float32", True, True, torch.float32),
        ("float16", False, False, torch.float16),
        ("bfloat16", False, False, torch.bfloat16),
    ],
)
def test_auto_takes_the_fastest_that_the_hardware_has(
    monkeypatch: pytest.MonkeyPatch, asked: precision.Precision, bfloat16: bool, float16: bool, chosen: torch.dtype
) -> None:
    monkeypatch.setattr(precision, "bfloat16_is_fast", lambda device: bfloat16)
    monkeypatch.setattr(precision, "float16_is_fast", lambda device: float16)
    assert choose(asked, Runtime()) == chosen
