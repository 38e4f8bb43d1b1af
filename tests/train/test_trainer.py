"""The training loop on one process."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from falconet.batch import Batch
from falconet.errors import ConfigError, DataError
from falconet.metrics.binary import BinaryMetrics
from falconet.train.callbacks import Callback
from falconet.train.parallel import share_batchnorm
from falconet.train.runtime import Runtime
from falconet.train.settings import TrainConfig
from falconet.train.trainer import Trainer
from train.workers import SGD, Each, Line, Net, Rows, Worse, config, line_batch, loader, net, same, weights


def test_a_step_follows_the_mean_over_the_rows() -> None:
    model = Line()
    result = Trainer(SGD).fit(model, Rows([line_batch()]))
    assert model.weight.item() == pytest.approx(1 - 0.1 * 14 / 3)
    assert result.metrics == {"epoch": 1, "step": 1, "rows": 3, "loss": pytest.approx(7 / 3)}
    assert (result.epochs, result.rows, result.path) == (1, 3, None)


def test_weights_of_rows_count() -> None:
    model = Line()
    result = Trainer(SGD).fit(model, Rows([line_batch(weighted=True)]))
    assert model.weight.item() == pytest.approx(1 - 0.1 * 28 / 4)
    assert result.metrics["loss"] == pytest.approx(14 / 4)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_batch_of_few_rows_counts_by_its_rows(parts: int, weighted: bool) -> None:
    def batch(rows: int) -> Batch:
        features, target = {"x": torch.full((rows,), 2.0)}, {"y": torch.zeros(rows)}
        return Batch.of(features, target, torch.full((rows,), 3.0) if weighted else None)

    seen: list[float] = []

    class Weights(Callback):
        def step(self, step: int, figures: Mapping[str, float]) -> None:
            seen.append(model.weight.item())

    model, batches = Line(), [batch(6), batch(6), batch(6), batch(2)]
    Trainer(dataclasses.replace(SGD, accumulate=parts), callbacks=[Weights()]).fit(model, Rows(batches))
    weight = 1.0
    for rows, found in zip([6, 6, 6, 2], seen, strict=True):  # the gradient of each row is 4 times the weight
        weight -= 0.1 * 4 * weight * min(rows / (20 / 4), 1)
        assert found == pytest.approx(weight)


@pytest.mark.parametrize(("rows", "gradient"), [(1, 1), (2, 5 / 2), (3, 14 / 3)])
def test_an_epoch_of_one_batch_takes_a_whole_step_however_small_it_is(rows: int, gradient: float) -> None:
    model = Line()
    Trainer(SGD).fit(model, Rows([line_batch()[:rows]]))
    assert model.weight.item() == pytest.approx(1 - 0.1 * gradient)


def test_the_dense_gradient_is_clipped() -> None:
    model = Line()
    clipped = TrainConfig(optimizer="sgd", learning_rate=0.1, precision="float32", clip_norm=2.0)
    Trainer(clipped).fit(model, Rows([line_batch()]))
    assert model.weight.item() == pytest.approx(0.8)


def test_a_model_learns_and_says_how_well(data: Path, held_out: Path) -> None:
    model, seen = net(), []
    each = Each(lambda step, loss: seen.append(step))
    result = Trainer(config(epochs=6, learning_rate=0.01), callbacks=[each]).fit(
        model, loader(data), loader(held_out), metrics=BinaryMetrics()
    )
    assert seen == list(range(1, 61))
    assert result.history[-1]["loss"] < 0.8 * result.history[0]["loss"]
    assert set(result.metrics["valid"]) == {"loss", "auc", "log_loss"}
    assert result.metrics["valid"]["loss"] == pytest.approx(result.metrics["valid"]["log_loss"], rel=1e-5)
    assert result.metrics["valid"]["loss"] == min(line["valid"]["loss"] for line in result.history)
    assert (result.rows, result.epochs) == (1920, 6)


@pytest.mark.parametrize("rule", ["rowwise_rmsprop", "rowwise_adagrad", "sgd", None])
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "adagrad"])
def test_every_optimizer_lowers_the_loss_and_leaves_padding_alone(data: Path, rule: str | None, optimizer: str) -> None:
    model = net()
    chosen = config(
        epochs=3, optimizer=optimizer, learning_rate=0.02, table_optimizer=rule, weight_decay=0.01,
        table_weight_decay=0.01,
    )  # fmt: skip
    result = Trainer(chosen).fit(model, loader(data))
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    assert all(model.tables.weight(table)[0].tolist() == [0] * 6 for table in model.tables.tables)
    assert all(p.requires_grad for p in model.parameters())


def test_dense_tables_move_as_torch_moves_them(data: Path) -> None:
    ours, theirs = net(), net()
    share_batchnorm(theirs)
    Trainer(config(table_optimizer=None, learning_rate=0.01)).fit(ours, loader(data))
    optimizer = torch.optim.Adam(theirs.parameters(), lr=0.01)
    for batch in loader(data).batches(0):
        optimizer.zero_grad()
        theirs.loss(batch).mean().backward()
        optimizer.step()
    for name, x in theirs.state_dict().items():
        assert torch.allclose(ours.state_dict()[name], x, atol=2e-5), name


def test_rowwise_rmsprop_by_hand() -> None:
    torch.manual_seed(0)
    model = Net()
    before = model.unused.weight("nobody").detach().clone()
    gradient = torch.tensor([[3.0, 4.0, 0.0]])  # mean square 25 / 3

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = model.unused

        def loss(self, batch: Batch) -> Tensor:
            return (self.tables(batch)["nobody"] * gradient).sum(1)

    batch = Batch.of({"nobody": torch.tensor([2, 0])})
    only_two = Rows([Batch(batch.features, rows=2, global_rows=2)] * 2)
    Trainer(config(table_learning_rate=0.1)).fit(Fixed(), only_two)
    # Each touch: the mean square, corrected for its start, is that of the gradient itself (halved: two rows).
    step = 0.1 * gradient[0] / math.sqrt(25 / 3)
    assert torch.allclose(model.unused.weight("nobody")[2], before[2] - 2 * step, atol=1e-6)
    rest = [0, 1, 3, 4]
    assert torch.equal(model.unused.weight("nobody")[rest], before[rest])


def test_tables_have_rules_and_rates_of_their_own(data: Path, tmp_path: Path) -> None:
    def fit(**settings: Any) -> dict[str, Tensor]:
        model, step = net(), next(loader(data).batches(0))
        Trainer(config(epochs=1, **settings)).fit(model, Rows([step]))  # one step: the same gradients
        return {table: model.tables.weight(table).detach().clone() for table in model.tables.tables}

    alone, default = fit(table_optimizer="lazy_adam", table_learning_rate=0.003), fit()
    both = fit(table_optimizer={"user": "lazy_adam"}, table_learning_rate={"user": 0.003})
    assert torch.equal(both["user"], alone["user"])
    assert torch.equal(both["item"], default["item"])
    assert not torch.allclose(both["user"], default["user"], atol=1e-3)
    assert not torch.allclose(both["item"], alone["item"], atol=1e-3)
    settings = config(table_optimizer={"user": "lazy_adam"}, table_learning_rate={"user": 0.003}, epochs=2)
    whole, cut = net(), net()
    Trainer(settings, tmp_path / "whole").fit(whole, loader(data))
    with pytest.raises(ZeroDivisionError):
        Trainer(settings, tmp_path / "cut", callbacks=[Each(_raise_at(15))]).fit(cut, loader(data))
    cut = net()
    Trainer(settings, tmp_path / "cut").fit(cut, loader(data), resume="must")
    assert same(whole, cut)


def _raise_at(number: int) -> Callable[[int, float], object]:
    def act(step: int, loss: float) -> None:
        if step == number:
            raise ZeroDivisionError

    return act


def test_rules_and_rates_of_unknown_tables_are_refused(data: Path) -> None:
    for name, value in (("table_optimizer", "sgd"), ("table_learning_rate", 0.1)):
        with pytest.raises(ConfigError, match=rf"`{name}` names `users`, no table of the model(?s:.*)`user`"):
            Trainer(config(**{name: {"users": value}})).fit(net(), loader(data))
    with pytest.raises(ConfigError, match=r"`table_learning_rate.user` is 0"):
        config(table_learning_rate={"user": 0.0})
    with pytest.raises(ConfigError, match=r"table_optimizer.user.*'adam'|table_optimizer.*'adam'"):
        config(table_optimizer={"user": "adam"})


def test_frozen_parameters_stay(data: Path) -> None:
    model = net()
    model.first.requires_grad_(False)
    model.tables.weight("item").requires_grad_(False)
    before = weights(model)
    Trainer(config()).fit(model, loader(data))
    after = weights(model)
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert {"first.weight", "first.bias", "tables.weights.table_item"} & moved == set()
    assert "tables.weights.table_user" in moved
    assert not model.tables.weight("item").requires_grad


def test_training_leaves_the_callers_random_numbers_alone(data: Path) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    Trainer(config()).fit(Net(0.5), loader(data))
    model = Net(0.5)
    state = torch.get_rng_state()
    Trainer(config()).fit(model, loader(data))
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(before, state)


def test_patience_ends_a_run_and_the_best_weights_stay(data: Path, held_out: Path, tmp_path: Path) -> None:
    model = net()
    patient = config(epochs=9, patience=2, monitor="auc")
    result = Trainer(patient, tmp_path / "run").fit(model, loader(data), loader(held_out), metrics=Worse())
    assert (result.epochs, result.metrics["epoch"], result.metrics["valid"]["auc"]) == (3, 1, 0.5)
    once = net()
    Trainer(config(epochs=1)).fit(once, loader(data))
    assert same(model, once)


def test_a_loss_that_is_no_number_stops_the_run_at_its_step(data: Path) -> None:
    class Breaks(Net):
        calls = 0

        def loss(self, batch: Batch) -> Tensor:
            self.calls += 1
            return super().loss(batch) * (math.nan if self.calls == 13 else 1)

    with pytest.raises(
        DataError,
        match=r"the loss is nan at step 3 of epoch 2(?s:.*)hint:(?s:.*)all values in it are finite: a smaller learning",
    ):
        Trainer(config(epochs=3)).fit(Breaks(), loader(data))


def test_wrong_settings_and_models_are_refused(data: Path) -> None:
    with pytest.raises(ConfigError, match="`epochs` is 0"):
        TrainConfig(epochs=0)
    with pytest.raises(ConfigError, match="`learning_rate` is -1"):
        TrainConfig(learning_rate=-1)
    with pytest.raises(ConfigError, match="`patience` without validation data"):
        Trainer(config(patience=1)).fit(net(), loader(data))
    with pytest.raises(ConfigError, match=r"Linear has no `loss\(batch\)`"):
        Trainer(config()).fit(nn.Linear(1, 1), loader(data))
    with pytest.raises(DataError, match="no rows to train on"):
        Trainer(config()).fit(net(), Rows([]))
    with pytest.raises(DataError, match="no rows to validate on"):
        Trainer(config()).fit(net(), loader(data), Rows([]))

    class Reduced(Net):
        def loss(self, batch: Batch) -> Tensor:
            return super().loss(batch).mean()

    with pytest.raises(ConfigError, match=r"Reduced\.loss gave \(\) for 32 rows"):
        Trainer(config()).fit(Reduced(), loader(data))

    class Number(Net):
        def loss(self, batch: Batch) -> Tensor:
            return 0.5  # type: ignore[return-value]

    with pytest.raises(ConfigError, match=r"Number\.loss gave 0\.5 for 32 rows(?s:.*)one loss per row"):
        Trainer(config()).fit(Number(), loader(data))
    with pytest.raises(ConfigError, match=r"Net has nothing to learn(?s:.*)no parameter requires a gradient"):
        Trainer(config()).fit(net().requires_grad_(False), loader(data))
    with pytest.raises(ConfigError, match=r'`resume="must"` without a folder(?s:.*)Trainer\(config, folder\)'):
        Trainer(config()).fit(net(), loader(data), resume="must")
    with pytest.raises(ConfigError, match=r"`monitor` is 'auc'(?s:.*)metrics="):
        Trainer(config(monitor="auc")).fit(net(), loader(data), loader(data))
    with pytest.raises(ConfigError, match=r"no `aux` to monitor(?s:.*)did you mean `auc`"):
        Trainer(config(monitor="aux")).fit(net(), loader(data), loader(data), metrics=BinaryMetrics())


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses are looked at as on a GPU: after several steps, here seven."""
    monkeypatch.setattr("falconet.train.trainer._LOOK", {"cpu": 7})


def watched(data: Path, folder: Path) -> tuple[Net, list[tuple[int, float]]]:
    model, seen = net(dropout=0.3), []  # type: ignore[var-annotated]
    each = Each(lambda step, loss: seen.append((step, loss)))
    Trainer(config(epochs=2, snapshot_steps=4), folder, callbacks=[each]).fit(model, loader(data))
    return model, seen


def test_losses_that_are_looked_at_late_are_the_same(
    data: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    wanted, figures = watched(data, tmp_path / "soon")
    request.getfixturevalue("late")
    found, late_figures = watched(data, tmp_path / "late")
    assert late_figures == figures
    assert [step for step, _ in figures] == list(range(1, 21))
    assert same(found, wanted)
    for name in ("metrics.jsonl", "manifest.json"):
        assert (tmp_path / "late" / name).read_bytes() == (tmp_path / "soon" / name).read_bytes()


@pytest.mark.usefixtures("late")
def test_a_loss_that_is_no_number_is_named_by_its_step_also_when_seen_late(data: Path, tmp_path: Path) -> None:
    class Breaks(Net):
        calls = 0

        def loss(self, batch: Batch) -> Tensor:
            self.calls += 1
            return super().loss(batch) * (math.nan if self.calls == 13 else 1)

    with pytest.raises(DataError, match="the loss is nan at step 3 of epoch 2"):
        Trainer(config(epochs=2, snapshot_steps=4), tmp_path / "run").fit(Breaks(), loader(data))
    assert [path.name for path in (tmp_path / "run/snapshots").iterdir()] == ["00000012"]


@pytest.mark.skipif(os.name == "nt", reason="SIGTERM ends a process of Windows")
@pytest.mark.usefixtures("late")
def test_a_stop_is_heard_when_losses_are_looked_at(data: Path, tmp_path: Path) -> None:
    def ask(step: int, loss: float) -> None:
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit):
        Trainer(config(epochs=3), tmp_path / "run", callbacks=[Each(ask)]).fit(net(), loader(data))
    # Step 2 is looked at after step 7, the request goes with step 8, which is looked at with the epoch's last.
    assert [path.name for path in (tmp_path / "run/snapshots").iterdir()] == ["00000010"]


def test_loaders_that_can_put_batches_on_the_device_do() -> None:
    class Moves(Rows):
        device: torch.device | None = None

        def move_to(self, device: torch.device) -> None:
            self.device = device

    train, valid, test = (Moves([line_batch()]) for _ in range(3))
    runtime = Runtime()
    trainer = Trainer(SGD, runtime=runtime)
    model = Line()
    trainer.fit(model, train, valid)
    trainer.evaluate(model, test)
    assert [loader.device for loader in (train, valid, test)] == [runtime.device] * 3
