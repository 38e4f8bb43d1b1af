"""A run's folder is one process's at a time, and is found again when a part of it is gone."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from falconet.errors import ArtifactError
from falconet.nn.supervised import freeze
from falconet.train.callbacks import Callback
from falconet.train.trainer import Trainer
from train.workers import CutOff, Each, Worse, config, loader, net, same

CHOSEN = config(epochs=3, snapshot_steps=4)


def cut_off(data: Path, held_out: Path, folder: Path, step: int) -> None:
    """A run that was cut off after a step of 30."""

    def stop(now: int, loss: float) -> None:
        if now == step:
            raise CutOff

    with pytest.raises(CutOff):
        Trainer(CHOSEN, folder, callbacks=[Each(stop)]).fit(net(), loader(data), loader(held_out))


def test_two_processes_do_not_train_in_one_folder(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("falconet.train.checkpoint._PATIENCE", 0.2)
    refused: list[str] = []

    def another(step: int, loss: float) -> None:
        if step == 3:
            with pytest.raises(ArtifactError, match="another process is training in") as error:
                Trainer(config(), tmp_path / "run").fit(net(), loader(data), resume="auto")
            refused.append(str(error.value))

    first = net()
    Trainer(config(), tmp_path / "run", callbacks=[Each(another)]).fit(first, loader(data))
    assert len(refused) == 1
    second = net(seed=4)
    Trainer(config(), tmp_path / "run").fit(second, loader(data), resume="must")
    assert same(first, second)


def test_an_error_gives_the_folder_free(data: Path, held_out: Path, tmp_path: Path) -> None:
    cut_off(data, held_out, tmp_path / "run", 5)
    seen: list[int] = []
    each = Each(lambda step, loss: seen.append(step))
    Trainer(CHOSEN, tmp_path / "run", callbacks=[each]).fit(net(), loader(data), loader(held_out), resume="must")
    assert seen == list(range(5, 31))


def test_without_last_json_the_newest_whole_snapshot_is_gone_on_from(
    data: Path, held_out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, whole, model = tmp_path / "run", net(), net()
    Trainer(CHOSEN).fit(whole, loader(data), loader(held_out))
    cut_off(data, held_out, run, 13)
    (run / "last.json").unlink()
    shutil.copytree(run / "snapshots/00000012", run / "snapshots/00000099")
    (run / "snapshots/00000099/state.json").write_text("{}")
    seen: list[int] = []
    each = Each(lambda step, loss: seen.append(step))
    Trainer(CHOSEN, run, callbacks=[each]).fit(model, loader(data), loader(held_out), resume="auto")
    assert seen == list(range(13, 31))
    assert "has no last.json: going on from its newest snapshot, 00000012" in capsys.readouterr().err
    assert same(whole, model)


def test_the_best_epoch_is_the_one_of_the_snapshot_that_is_gone_on_from(
    data: Path, held_out: Path, tmp_path: Path
) -> None:
    """A process that is killed between the two pointers leaves a best.json of an epoch that is not over."""
    run = tmp_path / "run"
    worse, chosen = Worse(), config(epochs=3, monitor="auc", snapshot_steps=4)

    def stop(now: int, loss: float) -> None:
        if now == 15:
            raise CutOff

    with pytest.raises(CutOff):
        Trainer(chosen, run, callbacks=[Each(stop)]).fit(net(), loader(data), loader(held_out), metrics=worse)
    best = (run / "best.json").read_text()
    assert json.loads(best)["snapshot"] == "00000010"
    (run / "best.json").write_text(best.replace("00000010", "00000020"))
    result = Trainer(chosen, run).fit(net(), loader(data), loader(held_out), resume="must", metrics=worse)
    assert result.metrics["epoch"] == 1
    assert json.loads((run / "best.json").read_text()) == json.loads(best)


def test_a_run_does_not_go_on_with_other_parts_frozen(data: Path, held_out: Path, tmp_path: Path) -> None:
    cut_off(data, held_out, tmp_path / "run", 5)
    model = net()
    freeze(model.first)
    with pytest.raises(ArtifactError, match=r'model\.frozen = \[\] there, \["first\.weight", "first\.bias"\] given'):
        Trainer(CHOSEN, tmp_path / "run").fit(model, loader(data), loader(held_out), resume="auto")


@pytest.mark.skipif(os.name == "nt", reason="SIGTERM ends a process of Windows")
@pytest.mark.parametrize("epoch", [1, 3])
def test_a_stop_during_a_validation_ends_with_its_epoch(data: Path, held_out: Path, tmp_path: Path, epoch: int) -> None:
    class Judge:
        """Metrics of one's own, as a tensor, during which the program is told to end, twice."""

        calls = -1  # one batch is judged before all

        def partial(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
            return {"miss": (logits - targets).abs()}

        def merge(self, states: Any) -> dict[str, Tensor]:
            return {"miss": torch.cat([state["miss"] for state in states])}

        def finish(self, state: Mapping[str, Tensor]) -> Any:
            self.calls += 1
            if self.calls == epoch:
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)
            return {"mae": state["miss"].mean()}

    def fit(model: Any, folder: Path | None, judge: Judge, resume: Any, *callbacks: Callback) -> Any:
        trainer = Trainer(config(epochs=3, monitor="mae"), folder, callbacks=callbacks)
        return trainer.fit(model, loader(data), loader(held_out), resume, judge)

    quiet, whole, model = Judge(), net(), net()
    quiet.calls = 10
    wanted = fit(whole, None, quiet, "never")
    with pytest.raises(SystemExit) as end:
        fit(net(), tmp_path / "run", Judge(), "never")
    assert end.value.code == 143
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == epoch
    assert not (tmp_path / "run/manifest.json").exists()
    seen: list[int] = []
    found = fit(model, tmp_path / "run", quiet, "must", Each(lambda step, loss: seen.append(step)))
    assert seen == list(range(10 * epoch + 1, 31))
    assert found.history == wanted.history
    assert isinstance(found.metrics["valid"]["mae"], float)
    assert same(whole, model)


def test_a_run_of_an_older_format_is_refused_and_that_of_a_recipes_step_made_anew(
    data: Path, held_out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, whole, model = tmp_path / "run", net(), net()
    cut_off(data, held_out, run, 13)
    written = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**written, "format": 1}))
    kept = sorted(p for p in run.rglob("*"))
    for resume in ("auto", "must", "never"):
        with pytest.raises(ArtifactError, match=r"format 1, this version reads 3(?s:.*)the version that began it"):
            Trainer(CHOSEN, run).fit(net(), loader(data), loader(held_out), resume=resume)  # type: ignore[arg-type]
    assert sorted(p for p in run.rglob("*")) == kept
    seen: list[int] = []
    each = Each(lambda step, loss: seen.append(step))
    Trainer(CHOSEN, run, callbacks=[each]).fit(model, loader(data), loader(held_out), resume="auto", step_key="key")
    assert seen == list(range(1, 31))
    assert "is the run of an older version: starting anew" in capsys.readouterr().err
    Trainer(CHOSEN).fit(whole, loader(data), loader(held_out))
    assert same(whole, model)
