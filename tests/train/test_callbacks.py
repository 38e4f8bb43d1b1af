"""Who looks on while a model trains is told everything, in order, and what goes wrong there is raised."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import need
from falconet.errors import ConfigError
from falconet.train.callbacks import Callback
from falconet.train.log import MLflow, TensorBoard
from falconet.train.settings import TrainConfig
from falconet.train.trainer import Trainer
from train.workers import SGD, Line, Rows, config, line_batch, loader, net, same

TWO = TrainConfig(optimizer="sgd", learning_rate=0.1, precision="float32", epochs=2)


class Told(Callback):
    """Notes every call; raises in one of them."""

    def __init__(self, fails: str = "") -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.fails = fails

    def note(self, name: str, *rest: Any) -> None:
        self.calls.append((name, *rest))
        if name == self.fails:
            raise ValueError(f"{name} has had enough")

    def start(self, settings: Mapping[str, Any]) -> None:
        self.note("start", settings)

    def step(self, step: int, figures: Mapping[str, float]) -> None:
        self.note("step", step, dict(figures))

    def epoch(self, epoch: int, figures: Mapping[str, Any]) -> None:
        self.note("epoch", epoch, dict(figures))

    def end(self) -> None:
        self.note("end")

    @property
    def names(self) -> list[str]:
        return [name for name, *_ in self.calls]


def rows(steps: int = 2) -> Rows:
    return Rows([line_batch()] * steps)


def test_a_callback_hears_of_everything_in_order(tmp_path: Path) -> None:
    told = Told()
    result = Trainer(TWO, tmp_path / "run", callbacks=[told]).fit(Line(), rows(), rows(1))
    assert told.names == ["start", "step", "step", "epoch", "step", "step", "epoch", "end"]
    assert told.calls[0][1]["train"]["learning_rate"] == 0.1
    assert told.calls[0][1]["data"] == {"rows": 6}
    assert [call[1] for call in told.calls if call[0] == "step"] == [1, 2, 3, 4]
    # Half of w² (1 + 4 + 9) / 3, whose slope is w 14 / 3.
    assert told.calls[1][2] == {
        "loss": pytest.approx(7 / 3), "learning_rate": 0.1, "gradient_norm": pytest.approx(14 / 3),
    }  # fmt: skip
    assert [call[1:] for call in told.calls if call[0] == "epoch"] == [
        (epoch, line) for epoch, line in enumerate(result.history, 1)
    ]


@pytest.mark.parametrize("name", ["start", "step", "epoch", "end"])
def test_an_error_in_a_callback_is_raised_and_all_of_them_hear_of_the_end(tmp_path: Path, name: str) -> None:
    first, fails, last = Told(), Told(name), Told()
    with pytest.raises(ValueError, match=f"{name} has had enough"):
        Trainer(TWO, tmp_path / "run", callbacks=[first, fails, last]).fit(Line(), rows())
    assert [told.names[-1] for told in (first, fails, last)] == ["end"] * 3
    assert all(told.names.count("end") == 1 for told in (first, fails, last))
    snapshots = sorted(path.name for path in (tmp_path / "run/snapshots").iterdir())
    assert snapshots == {"start": [], "step": [], "epoch": ["00000002"], "end": ["00000004"]}[name]  # nothing is lost
    told = Told()
    Trainer(TWO, tmp_path / "run", callbacks=[told]).fit(Line(), rows(), resume="auto")
    assert told.names.count("step") == {"start": 4, "step": 4, "epoch": 2, "end": 0}[name]


def test_an_error_at_the_end_does_not_hide_the_first() -> None:
    class Both(Told):
        def end(self) -> None:
            raise KeyError("gone")

    with pytest.raises(ValueError, match="step has had enough") as error:
        Trainer(TWO, callbacks=[Both("step")]).fit(Line(), rows())
    assert error.value.__notes__ == ["and at the end: KeyError: 'gone'"]


def test_a_callback_may_end_the_training_for_good(tmp_path: Path) -> None:
    class Enough(Told):
        def epoch(self, epoch: int, figures: Mapping[str, Any]) -> bool:
            super().epoch(epoch, figures)
            return epoch == 2

    five = TrainConfig(optimizer="sgd", learning_rate=0.1, precision="float32", epochs=5)
    told, model, again = Enough(), Line(), Line()
    result = Trainer(five, tmp_path / "run", callbacks=[told]).fit(model, rows())
    assert result.epochs == 2
    assert told.names[-2:] == ["epoch", "end"]
    (tmp_path / "run/manifest.json").unlink()  # as if it had been cut off before its end
    assert Trainer(five, tmp_path / "run").fit(again, rows(), resume="must") == result
    assert same(model, again)


@pytest.mark.filterwarnings("ignore")  # TensorBoard's own
def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    need("tensorboard", importlib.util.find_spec("tensorboard") is not None, 'pip install "falconet[tensorboard]"')
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    told = Told()
    result = Trainer(TWO, callbacks=[TensorBoard(tmp_path / "board", every=2), told]).fit(Line(), rows(3), rows(1))
    events = EventAccumulator(str(tmp_path / "board")).Reload()
    assert set(events.Tags()["scalars"]) == {
        "step/loss", "step/learning_rate", "step/gradient_norm",
        "epoch/loss", "epoch/rows", "epoch/step", "epoch/valid.loss",
    }  # fmt: skip
    losses = {call[1]: call[2]["loss"] for call in told.calls if call[0] == "step"}
    assert {x.step: x.value for x in events.Scalars("step/loss")} == pytest.approx({n: losses[n] for n in (2, 4, 6)})
    assert [(x.step, x.value) for x in events.Scalars("epoch/valid.loss")] == [
        (line["epoch"], pytest.approx(line["valid"]["loss"])) for line in result.history
    ]


class FakeMlflow(SimpleNamespace):
    """Notes calls, under the names that MLflow has for them."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        for name in ("set_experiment", "start_run", "log_params", "log_metrics", "end_run"):
            setattr(self, name, lambda *a, _name=name, **k: self.calls.append((_name, *a, *k.values())))


def test_mlflow_is_called_with_settings_and_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)  # type: ignore[arg-type]
    result = Trainer(TWO, callbacks=[MLflow("lines", every=3)]).fit(Line(), rows())
    assert [call[0] for call in fake.calls] == [
        "set_experiment", "start_run", "log_params", "log_metrics", "log_metrics", "log_metrics", "end_run",
    ]  # fmt: skip
    assert fake.calls[0:2] == [("set_experiment", "lines"), ("start_run", None)]
    assert fake.calls[2][1]["train.epochs"] == 2
    epoch, step, last = fake.calls[3:6]
    assert (set(step[1]), step[2]) == ({"step/loss", "step/learning_rate", "step/gradient_norm"}, 3)
    assert epoch[1:] == ({"epoch/loss": result.history[0]["loss"], "epoch/rows": 6.0, "epoch/step": 2.0}, 1)
    assert last[2] == 2
    fake.calls.clear()
    Trainer(SGD, callbacks=[MLflow("lines", run="abc")]).fit(Line(), rows())
    assert ("start_run", "abc") in fake.calls
    assert "log_params" not in [call[0] for call in fake.calls]  # a run refuses a setting that is set twice


@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_mlflow_keeps_what_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("mlflow", importlib.util.find_spec("mlflow") is not None, 'pip install "falconet[mlflow]"')
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    import mlflow

    mlflow.set_tracking_uri(None)
    Trainer(TWO, callbacks=[MLflow("lines", every=1)]).fit(Line(), rows())
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("lines").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["train.learning_rate"] == "0.1"
    assert [x.step for x in client.get_metric_history(run.info.run_id, "step/loss")] == [1, 2, 3, 4]
    assert run.data.metrics["epoch/rows"] == 12


@pytest.mark.parametrize(
    ("callback", "module", "extra"),
    [
        (TensorBoard("board"), "torch.utils.tensorboard", "tensorboard"),
        (MLflow("lines"), "mlflow", "mlflow"),
    ],
)
def test_what_is_not_installed_is_named_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch, callback: Callback, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    model = Line()
    with pytest.raises(ConfigError, match=rf'{extra} is not installed(?s:.*)pip install "falconet\[{extra}\]"'):
        Trainer(SGD, callbacks=[callback]).fit(model, rows())
    assert model.weight.item() == 1


def test_figures_cannot_be_recorded_never() -> None:
    with pytest.raises(ConfigError, match=r"`every` is 0(?s:.*)at least 1"):
        TensorBoard("board", every=0)
    with pytest.raises(ConfigError, match="`every` is -1"):
        MLflow("lines", every=-1)


def test_steps_are_counted_on_in_a_resumed_run(data: Path, tmp_path: Path) -> None:
    chosen = config(epochs=2, snapshot_steps=4)
    first, second = Told("epoch"), Told()
    with pytest.raises(ValueError, match="epoch has had enough"):
        Trainer(chosen, tmp_path / "run", callbacks=[first]).fit(net(), loader(data))
    Trainer(chosen, tmp_path / "run", callbacks=[second]).fit(net(), loader(data), resume="auto")
    assert [call[1] for call in second.calls if call[0] == "step"] == list(range(11, 21))
    assert math.isfinite(second.calls[1][2]["gradient_norm"])
