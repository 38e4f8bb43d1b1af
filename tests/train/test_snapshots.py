"""What a run leaves on disk, and how it goes on from there."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from falconet.batch import Batch
from falconet.errors import ArtifactError
from falconet.io.artifact import read_artifact
from falconet.metrics.binary import BinaryMetrics
from falconet.models.mlp import MLP
from falconet.models.store import load_model
from falconet.train.trainer import Trainer
from train.workers import Each, Net, config, loader, net, same


def data_of(folder: Path) -> dict[str, object]:
    return {key: value for key, value in loader(folder).state_dict().items() if key not in ("epoch", "step")}


def files(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_a_run_leaves_a_whole_folder(data: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    source = loader(data)
    model = MLP.from_schema(source.schema, MLP.Config(hidden=(8,), dim=4))
    Trainer(config(epochs=2), tmp_path / "run").fit(model, source, step_key="abc")
    manifest = read_artifact(tmp_path / "run", "run")
    assert manifest.extra["step"] == "abc"
    assert files(tmp_path / "run") == {
        "config.json", "metrics.jsonl", "run.jsonl", "last.json", "lock", "manifest.json",
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


def stopped_after(step: int) -> Each:
    def stop(now: int, loss: float) -> None:
        if now == step:
            raise Stop

    return Each(stop)


@pytest.mark.parametrize("step", [5, 13])
def test_a_resumed_run_equals_an_undisturbed_one_bit_for_bit(
    data: Path, held_out: Path, tmp_path: Path, step: int
) -> None:
    chosen = config(epochs=2, snapshot_steps=4, schedule="cosine", warmup=3)
    whole, cut, resumed = net(dropout=0.3), net(dropout=0.3), net(seed=99, dropout=0.3)
    wanted = Trainer(chosen, tmp_path / "whole").fit(whole, loader(data), loader(held_out))
    with pytest.raises(Stop):
        Trainer(chosen, tmp_path / "cut", callbacks=[stopped_after(step)]).fit(cut, loader(data), loader(held_out))
    seen: list[int] = []
    each = Each(lambda now, loss: seen.append(now))
    result = Trainer(chosen, tmp_path / "cut", callbacks=[each]).fit(
        resumed, loader(data), loader(held_out), resume="auto"
    )
    assert seen == list(range(step // 4 * 4 + 1 if step < 10 else 13, 21))
    assert same(whole, resumed)
    assert result.history == wanted.history
    assert (tmp_path / "cut/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()
    assert (tmp_path / "cut/manifest.json").read_bytes() == (tmp_path / "whole/manifest.json").read_bytes()


@pytest.mark.skipif(os.name == "nt", reason="SIGTERM ends a process of Windows")
def test_sigterm_writes_a_snapshot_and_ends_with_143(data: Path, tmp_path: Path) -> None:
    def ask(step: int, loss: float) -> None:
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    whole, model = net(), net()
    Trainer(config()).fit(whole, loader(data))
    with pytest.raises(SystemExit) as end:
        Trainer(config(), tmp_path / "run", callbacks=[Each(ask)]).fit(model, loader(data))
    assert end.value.code == 143
    seen: list[int] = []
    each = Each(lambda now, loss: seen.append(now))
    Trainer(config(), tmp_path / "run", callbacks=[each]).fit(model, loader(data), resume="must")
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
    result = Trainer(config(), tmp_path / "run", callbacks=[Each(ask)]).fit(model, loader(data))
    assert (found[5], found[6], found[10]) == ([], ["00000005"], ["00000005"])  # the epoch's end writes its own anyway
    assert same(whole, model)
    assert result.history == wanted.history
    assert signal.getsignal(signal.SIGUSR1) == before


@pytest.mark.skipif(os.name == "nt", reason="SIGTERM ends a process of Windows")
def test_a_stop_in_the_last_step_of_an_epoch_loses_nothing(data: Path, held_out: Path, tmp_path: Path) -> None:
    def ask(step: int, loss: float) -> None:
        if step == 9:
            os.kill(os.getpid(), signal.SIGTERM)

    chosen, whole, model = config(epochs=2), net(dropout=0.3), net(dropout=0.3)
    wanted = Trainer(chosen).fit(whole, loader(data), loader(held_out))
    with pytest.raises(SystemExit):
        Trainer(chosen, tmp_path / "run", callbacks=[Each(ask)]).fit(model, loader(data), loader(held_out))
    seen: list[int] = []
    each = Each(lambda now, loss: seen.append(now))
    result = Trainer(chosen, tmp_path / "run", callbacks=[each]).fit(
        model, loader(data), loader(held_out), resume="must"
    )
    assert seen == list(range(11, 21))
    assert result.history == wanted.history
    assert same(whole, model)


def test_a_snapshot_is_written_when_so_many_minutes_are_over(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes = [0.0]
    monkeypatch.setattr("falconet.train.signals.time.monotonic", lambda: minutes[0] * 60)
    found: dict[int, list[str]] = {}

    def look(step: int, loss: float) -> None:
        minutes[0] += 1
        found[step] = [path.name for path in (tmp_path / "run/snapshots").iterdir()]

    Trainer(config(snapshot_minutes=3), tmp_path / "run", callbacks=[Each(look)]).fit(net(), loader(data))
    # Three minutes are over after step 3, which the fourth asks; six after step 7, which the next asks.
    assert [found[step] for step in (4, 5, 7, 8)] == [[], ["00000004"], ["00000004"], ["00000007"]]


def test_drawn_numbers_of_every_kind_are_those_of_an_undisturbed_run(data: Path, tmp_path: Path) -> None:
    class Noisy(Net):
        def loss(self, batch: Batch) -> Tensor:
            drawn = random.random() + np.random.random() + torch.rand(()).item()
            return super().loss(batch) * (1 + drawn)

    def noisy() -> Noisy:
        torch.manual_seed(1)
        return Noisy(0.3)

    chosen, whole, cut = config(snapshot_steps=4), noisy(), noisy()
    Trainer(chosen).fit(whole, loader(data))
    with pytest.raises(Stop):
        Trainer(chosen, tmp_path / "run", callbacks=[stopped_after(6)]).fit(noisy(), loader(data))
    random.seed(99)
    torch.manual_seed(99)
    Trainer(chosen, tmp_path / "run").fit(cut, loader(data), resume="must")
    assert same(whole, cut)


@pytest.mark.parametrize("rule", ["rowwise_rmsprop", "rowwise_adagrad", "rowwise_adam", "lazy_adam", "sgd", None])
@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "sgd"])
def test_every_optimizer_is_in_the_snapshot(data: Path, tmp_path: Path, rule: str | None, optimizer: str) -> None:
    dtype = "float32" if rule is None else "bfloat16"  # whose draws go on as well
    chosen = config(snapshot_steps=4, table_optimizer=rule, optimizer=optimizer, table_dtype=dtype, clip_norm=1.0)
    whole, cut = net(), net(seed=5)
    Trainer(chosen).fit(whole, loader(data))
    with pytest.raises(Stop):
        Trainer(chosen, tmp_path / "run", callbacks=[stopped_after(6)]).fit(net(), loader(data))
    Trainer(chosen, tmp_path / "run").fit(cut, loader(data), resume="must")
    assert same(whole, cut)


def test_a_finished_run_is_not_trained_again(data: Path, tmp_path: Path) -> None:
    first, second = net(), net(seed=5)
    Trainer(config(), tmp_path / "run").fit(first, loader(data))
    seen: list[int] = []
    each = Each(lambda step, loss: seen.append(step))
    result = Trainer(config(), tmp_path / "run", callbacks=[each]).fit(second, loader(data), resume="auto")
    assert seen == []
    assert same(first, second)
    assert result.rows == 320


def test_resume_is_refused_for_another_run_and_named(data: Path, tmp_path: Path) -> None:
    Trainer(config(), tmp_path / "run").fit(net(), loader(data))
    with pytest.raises(ArtifactError, match="holds a run already"):
        Trainer(config(), tmp_path / "run").fit(net(), loader(data))
    with pytest.raises(ArtifactError, match=r"train\.learning_rate = 0\.001 there, 0\.5 given"):
        Trainer(config(learning_rate=0.5), tmp_path / "run").fit(net(), loader(data), resume="auto")
    both = config(epochs=3, monitor="auc", accumulate=2, snapshot_steps=7)  # the last two are of how it is trained
    with pytest.raises(ArtifactError) as error:
        Trainer(both, tmp_path / "run").fit(net(), loader(data), loader(data), "auto", BinaryMetrics())
    assert str(error.value.args[0]).endswith(
        'holds another run: train.epochs = 1 there, 3 given; train.monitor = "loss" there, "auc" given; '
        f"valid = null there, {json.dumps(data_of(data))[:57]}... given"
    )
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
        Trainer(config(snapshot_steps=4), tmp_path / "run", callbacks=[stopped_after(5)]).fit(net(), loader(data))
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
        Trainer(config(snapshot_steps=4), tmp_path / "run", callbacks=[stopped_after(5)]).fit(net(), loader(data))
    file = tmp_path / "run/snapshots/00000004/model.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ArtifactError, match=r"model\.safetensors` has \d+ bytes, its manifest says \d+"):
        Trainer(config(snapshot_steps=4), tmp_path / "run").fit(net(), loader(data), resume="auto")
