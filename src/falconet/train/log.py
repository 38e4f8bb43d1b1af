"""Callbacks that send a training's figures to TensorBoard or MLflow. metrics.jsonl and run.jsonl are always written."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from falconet.arguments import explained
from falconet.errors import ConfigError
from falconet.train.callbacks import Callback


class TensorBoard(Callback):
    """Writes event files for `tensorboard --logdir FOLDER`: steps every `every` steps, epochs always."""

    main_only = True

    @explained
    def __init__(self, folder: str | Path, *, every: int = 10) -> None:
        self._folder, self._every = Path(folder), _at_least_one(every)
        self._writer: Any = None

    def start(self, settings: Mapping[str, Any]) -> None:
        """Open the files. Raises ConfigError where TensorBoard is not installed."""
        self._writer = _extra("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(self._folder))
        self._writer.add_text("settings", "\n".join(f"    {name} = {x}" for name, x in flat(settings).items()))

    def step(self, step: int, figures: Mapping[str, float]) -> None:
        if step % self._every == 0:
            for name, value in figures.items():
                self._writer.add_scalar(f"step/{name}", value, step)

    def epoch(self, epoch: int, figures: Mapping[str, Any]) -> None:
        for name, value in flat(figures).items():
            if name != "epoch":
                self._writer.add_scalar(f"epoch/{name}", value, epoch)

    def end(self) -> None:
        if self._writer is not None:
            self._writer.close()


class MLflow(Callback):
    """Records the settings, and the figures of every `every` steps and of epochs, as a run of an MLflow experiment.

    Where it goes (`MLFLOW_TRACKING_URI`) is MLflow's own setting. `run`: the id of a run to go on with.
    """

    main_only = True

    @explained
    def __init__(self, experiment: str, *, run: str | None = None, every: int = 10) -> None:
        self._experiment, self._run, self._every = experiment, run, _at_least_one(every)
        self._mlflow: Any = None

    def start(self, settings: Mapping[str, Any]) -> None:
        """Open the run. Raises ConfigError where MLflow is not installed."""
        mlflow = _extra("mlflow", "mlflow")
        mlflow.set_experiment(self._experiment)
        mlflow.start_run(run_id=self._run)
        self._mlflow = mlflow
        if self._run is None:  # MLflow refuses a parameter that is set twice
            mlflow.log_params(flat(settings))

    def step(self, step: int, figures: Mapping[str, float]) -> None:
        if step % self._every == 0:
            self._mlflow.log_metrics({f"step/{name}": x for name, x in figures.items()}, step=step)

    def epoch(self, epoch: int, figures: Mapping[str, Any]) -> None:
        found = {f"epoch/{name}": float(x) for name, x in flat(figures).items() if name != "epoch"}
        self._mlflow.log_metrics(found, step=epoch)

    def end(self) -> None:
        if self._mlflow is not None:
            self._mlflow.end_run()


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one.

    >>> flat({"loss": 0.5, "valid": {"auc": 0.7}})
    {'loss': 0.5, 'valid.auc': 0.7}
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found


def _extra(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(f"{extra} is not installed", hint=f'pip install "falconet[{extra}]"') from error


def _at_least_one(every: int) -> int:
    if every < 1:
        raise ConfigError(f"`every` is {every}", hint="at least 1")
    return every
