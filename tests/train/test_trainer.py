"""The training loop on one process."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from falconet.batch import Batch
from falconet.errors import ArtifactError, ConfigError, DataError
from falconet.io.artifact import read_artifact
from falconet.loader.loader import Loader
from falconet.metrics.binary import BinaryMetrics
from falconet.models.mlp import MLP
from falconet.models.store import load_model
from falconet.train.parallel import load_weights, plain_keys, share_batchnorm, unwrap
from falconet.train.schedule import factor
from falconet.train.trainer import TrainConfig, Trainer
from train.workers import Net, Rows, config, net, weights


def loader(data: Path, batch_size: int = 32) -> Loader:
    return Loader(data, batch_size=batch_size, shuffle=True, seed=7)


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def files(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


class Line(nn.Module):
    """Half the squared error of a single weight's prediction; its gradient is easy to write down."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def loss(self, batch: Batch) -> Tensor:
        x = batch.features["x"]
        assert isinstance(x, Tensor)
        return (self.weight * x - batch.targets["y"]).square() / 2


def line_batch(weighted: bool = False) -> Batch:
    x, y = torch.tensor([1.0, 2.0, 3.0]), torch.zeros(3)
    return Batch.of({"x": x}, {"y": y}, torch.tensor([1.0, 0.0, 3.0]) if weighted else None)


SGD = TrainConfig(optimizer="sgd", learning_rate=0.1, precision="float32")


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


def test_the_dense_gradient_is_clipped() -> None:
    model = Line()
    clipped = TrainConfig(optimizer="sgd", learning_rate=0.1, precision="float32", clip_norm=2.0)
    Trainer(clipped).fit(model, Rows([line_batch()]))
    assert model.weight.item() == pytest.approx(0.8)


def test_a_model_learns_and_says_how_well(data: Path, held_out: Path) -> None:
    model, seen = net(), []
    result = Trainer(config(epochs=6, learning_rate=0.01)).fit(
        model, loader(data), loader(held_out), metrics=BinaryMetrics(), on_step=lambda step, loss: seen.append(step)
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


def test_the_rate_rises_then_falls() -> None:
    assert [round(factor("cosine", step, 6, 2), 4) for step in range(6)] == [0.5, 1.0, 1.0, 0.8536, 0.5, 0.1464]
    assert [factor("constant", step, 4, 2) for step in range(4)] == [0.5, 1.0, 1.0, 1.0]


def test_patience_ends_a_run_and_the_best_weights_stay(data: Path, held_out: Path, tmp_path: Path) -> None:
    class Worse(BinaryMetrics):
        calls = 0

        def finish(self, state: dict[str, Tensor]) -> dict[str, float]:
            self.calls += 1
            return {"auc": 1 / self.calls}

    model = net()
    patient = config(epochs=9, patience=2, monitor="auc")
    result = Trainer(patient, tmp_path / "run").fit(model, loader(data), loader(held_out), metrics=Worse())
    assert (result.epochs, result.metrics["epoch"], result.metrics["valid"]["auc"]) == (3, 1, 1.0)
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


def test_a_run_leaves_a_whole_folder(data: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    source = loader(data)
    model = MLP.from_schema(source.schema, MLP.Config(hidden=(8,), dim=4))
    Trainer(config(epochs=2), tmp_path / "run").fit(model, source, step_key="abc")
    manifest = read_artifact(tmp_path / "run", "run")
    assert manifest.extra["step"] == "abc"
    assert files(tmp_path / "run") == {
        "config.json", "metrics.jsonl", "run.jsonl", "last.json", "manifest.json",
        "model/config.json", "model/manifest.json", "model/model.safetensors",
        "snapshots/00000020/manifest.json", "snapshots/00000020/model.safetensors", "snapshots/00000020/state.json",
        "snapshots/00000020/tables-0.safetensors", "snapshots/00000020/optimizer.safetensors",
    }  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [(line["epoch"], line["step"], line["rows"]) for line in lines] == [(1, 10, 320), (2, 20, 640)]
    assert [json.loads(x)["event"] for x in (tmp_path / "run/run.jsonl").read_text().splitlines()] == [
        "start", "epoch", "epoch",
    ]  # fmt: skip
    assert same(load_model(tmp_path / "run/model"), model)


class Stop(Exception):  # noqa: N818
    """The run is cut off."""


def stopped_after(step: int) -> object:
    def on_step(now: int, loss: float) -> None:
        if now == step:
            raise Stop

    return on_step


@pytest.mark.parametrize("step", [5, 13])
def test_a_resumed_run_equals_an_undisturbed_one_bit_for_bit(
    data: Path, held_out: Path, tmp_path: Path, step: int
) -> None:
    chosen = config(epochs=2, snapshot_steps=4, schedule="cosine", warmup=3)
    whole, cut, resumed = net(dropout=0.3), net(dropout=0.3), net(seed=99, dropout=0.3)
    wanted = Trainer(chosen, tmp_path / "whole").fit(whole, loader(data), loader(held_out))
    with pytest.raises(Stop):
        Trainer(chosen, tmp_path / "cut").fit(cut, loader(data), loader(held_out), on_step=stopped_after(step))  # type: ignore[arg-type]
    seen: list[int] = []
    result = Trainer(chosen, tmp_path / "cut").fit(
        resumed, loader(data), loader(held_out), resume="auto", on_step=lambda now, loss: seen.append(now)
    )
    assert seen == list(range(step // 4 * 4 + 1 if step < 10 else 13, 21))
    assert same(whole, resumed)
    assert result.history == wanted.history
    assert (tmp_path / "cut/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()
    assert (tmp_path / "cut/manifest.json").read_bytes() == (tmp_path / "whole/manifest.json").read_bytes()


def test_sigterm_writes_a_snapshot_and_ends_with_143(data: Path, tmp_path: Path) -> None:
    def ask(step: int, loss: float) -> None:
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    whole, model = net(), net()
    Trainer(config()).fit(whole, loader(data))
    with pytest.raises(SystemExit) as end:
        Trainer(config(), tmp_path / "run").fit(model, loader(data), on_step=ask)
    assert end.value.code == 143
    seen: list[int] = []
    Trainer(config(), tmp_path / "run").fit(model, loader(data), resume="must", on_step=lambda now, _: seen.append(now))
    assert seen == [6, 7, 8, 9, 10]
    assert same(whole, model)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGUSR1")
def test_sigusr1_writes_a_snapshot_and_training_goes_on(data: Path, tmp_path: Path) -> None:
    found: dict[int, list[str]] = {}

    def ask(step: int, loss: float) -> None:
        if step in (4, 9):
            os.kill(os.getpid(), signal.SIGUSR1)
        found[step] = sorted(path.name for path in (tmp_path / "run/snapshots").iterdir())

    whole, model = net(), net()
    wanted = Trainer(config()).fit(whole, loader(data))
    before = signal.getsignal(signal.SIGUSR1)
    result = Trainer(config(), tmp_path / "run").fit(model, loader(data), on_step=ask)
    assert (found[5], found[6], found[10]) == ([], ["00000005"], ["00000005"])  # the epoch's end writes its own anyway
    assert same(whole, model)
    assert result.history == wanted.history
    assert signal.getsignal(signal.SIGUSR1) == before


def test_a_finished_run_is_not_trained_again(data: Path, tmp_path: Path) -> None:
    first, second = net(), net(seed=5)
    Trainer(config(), tmp_path / "run").fit(first, loader(data))
    seen: list[int] = []
    result = Trainer(config(), tmp_path / "run").fit(
        second, loader(data), resume="auto", on_step=lambda step, loss: seen.append(step)
    )
    assert seen == []
    assert same(first, second)
    assert result.rows == 320


def test_resume_is_refused_for_another_run_and_named(data: Path, tmp_path: Path) -> None:
    Trainer(config(), tmp_path / "run").fit(net(), loader(data))
    with pytest.raises(ArtifactError, match="holds a run already"):
        Trainer(config(), tmp_path / "run").fit(net(), loader(data))
    with pytest.raises(ArtifactError, match=r"train\.learning_rate = 0\.001 there, 0\.5 given"):
        Trainer(config(learning_rate=0.5), tmp_path / "run").fit(net(), loader(data), resume="auto")
    with pytest.raises(ArtifactError, match=r"data\.batch_size = 32 there, 16 given"):
        Trainer(config(), tmp_path / "run").fit(net(), loader(data, 16), resume="auto")
    with pytest.raises(ArtifactError, match="no run to resume"):
        Trainer(config(), tmp_path / "other").fit(net(), loader(data), resume="must")
    (tmp_path / "holiday").mkdir()
    (tmp_path / "holiday/photo.jpg").touch()
    with pytest.raises(ArtifactError, match="is not empty and not a run"):
        Trainer(config(), tmp_path / "holiday").fit(net(), loader(data), resume="auto")


def test_the_run_of_another_step_makes_way(data: Path, tmp_path: Path) -> None:
    Trainer(config(), tmp_path / "run").fit(net(), loader(data), step_key="old")
    result = Trainer(config(epochs=2), tmp_path / "run").fit(net(), loader(data), resume="auto", step_key="new")
    assert result.epochs == 2
    assert read_artifact(tmp_path / "run", "run").extra["step"] == "new"


def test_a_start_and_an_end_that_were_cut_off_are_made_again(data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / ".tmp-config.json-1-2").touch()
    first = Trainer(config(), run).fit(net(), loader(data), resume="auto")
    (run / "manifest.json").unlink()
    assert Trainer(config(), run).fit(net(seed=3), loader(data), resume="auto") == first
    assert read_artifact(run, "run").extra["step"] is None


def test_a_folder_that_is_no_run_is_refused_and_left_alone(data: Path, tmp_path: Path) -> None:
    (tmp_path / ".tmp-of-another-program").mkdir()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ArtifactError, match=r"is not empty and not a run(?s:.*)choose another folder"):
        Trainer(config(), tmp_path).fit(net(), loader(data), resume="auto")
    assert {path.name for path in tmp_path.iterdir()} == {".tmp-of-another-program", "notes.txt"}


def test_a_disk_that_is_full_is_an_error_and_what_was_saved_stays(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(tensors: object, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(Stop):
        Trainer(config(snapshot_steps=4), tmp_path / "run").fit(net(), loader(data), on_step=stopped_after(5))  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setattr("falconet.train.checkpoint.save_file", full)
        with pytest.raises(ArtifactError, match=r"cannot be written: \[Errno 28\] No space left(?s:.*)hint: space"):
            Trainer(config(snapshot_steps=4), tmp_path / "run").fit(net(), loader(data), resume="auto")
    assert not (tmp_path / "run/manifest.json").exists()
    assert (tmp_path / "run/snapshots/00000004/manifest.json").exists()
    Trainer(config(snapshot_steps=4), tmp_path / "run").fit(net(), loader(data), resume="must")


def test_a_finished_run_is_only_read_and_a_pointer_to_nothing_is_named(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(path: Path, content: bytes) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    Trainer(config(), tmp_path / "run").fit(net(), loader(data))
    monkeypatch.setattr("falconet.train.checkpoint.write_file", never)
    assert Trainer(config(), tmp_path / "run").fit(net(seed=3), loader(data), resume="auto").epochs == 1
    with pytest.raises(ArtifactError, match=r"cannot be written: \[Errno 30\] Read-only"):
        Trainer(config(), tmp_path / "other").fit(net(), loader(data))
    (tmp_path / "run/last.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"last\.json` names no snapshot(?s:.*)train anew"):
        Trainer(config(), tmp_path / "run").fit(net(), loader(data), resume="auto")


def test_a_damaged_snapshot_is_named(data: Path, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        Trainer(config(snapshot_steps=4), tmp_path / "run").fit(net(), loader(data), on_step=stopped_after(5))  # type: ignore[arg-type]
    file = tmp_path / "run/snapshots/00000004/model.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ArtifactError, match=r"model\.safetensors` has \d+ bytes, its manifest says \d+"):
        Trainer(config(snapshot_steps=4), tmp_path / "run").fit(net(), loader(data), resume="auto")


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
def test_weights_of_a_wrapped_model_load_into_a_plain_one(prefix: str) -> None:
    source, target = net(), net(seed=2)
    load_weights(target, {prefix + name: x for name, x in source.state_dict().items()})
    assert same(source, target)


def test_weights_load_into_a_wrapped_model_and_are_saved_plain(data: Path, tmp_path: Path) -> None:
    class Compiled(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self._orig_mod = model

    wrapped = Compiled(net())
    load_weights(wrapped, net(seed=2).state_dict())
    assert same(unwrap(wrapped), net(seed=2))
    assert list(plain_keys({"rest._orig_mod.0.weight": torch.zeros(1)})) == ["rest.0.weight"]
    Trainer(config(), tmp_path / "run").fit(wrapped, loader(data))
    assert same(unwrap(wrapped), unwrap(wrapped))
    from safetensors.torch import load_file

    assert set(load_file(tmp_path / "run/model/model.safetensors")) == set(net().state_dict())


def test_weights_of_another_model_are_refused() -> None:
    with pytest.raises(ArtifactError, match=r"missing .*unknown other"):
        load_weights(net(), {"other": torch.zeros(1)})
    wrong = {**net().state_dict(), "first.bias": torch.zeros(3)}
    with pytest.raises(ArtifactError, match=r"`first\.bias` is \(3,\) there, \(16,\) in the model"):
        load_weights(net(), wrong)


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
