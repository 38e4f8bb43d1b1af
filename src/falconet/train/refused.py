"""What the trainer refuses before anything is trained, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import get_args

from torch import nn

from falconet.errors import ConfigError, DataError
from falconet.train.callbacks import Callback
from falconet.train.checkpoint import Resume
from falconet.train.interfaces import Batches, Judges
from falconet.train.parallel import unwrap
from falconet.train.runtime import Runtime
from falconet.train.settings import TrainConfig


def check_trainer(config: object, folder: object, runtime: object, callbacks: object) -> None:
    """Raise ConfigError for arguments of `Trainer` that are of another kind."""
    if not isinstance(config, TrainConfig):
        what = "a TrainConfig, not its class" if config is TrainConfig else f"a TrainConfig, not {config!r}"
        raise ConfigError(f"a Trainer needs {what}", hint="Trainer(TrainConfig(epochs=..., ...))")
    if folder is not None and not isinstance(folder, str | PathLike):
        raise ConfigError(f"`folder` is {folder!r}", hint="a path, or None")
    if runtime is not None and not isinstance(runtime, Runtime):
        raise ConfigError(
            f"`runtime` is {runtime!r}", hint="what Runtime.start() gives; `falconet launch -np N` starts N"
        )
    if not isinstance(callbacks, Sequence):
        raise ConfigError(f"`callbacks` is {callbacks!r}", hint="a list of them")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigError(f"{callback!r} is no callback", hint="an object of a class of fl.Callback")


def check_model(model: object, metrics: object = None) -> None:
    """Raise ConfigError for what is no network, or has no predictions for `metrics`."""
    if isinstance(model, type) and issubclass(model, nn.Module):
        name = model.__name__
        make = f"{name}.from_schema(loader.schema)" if hasattr(model, "from_schema") else f"{name}(...)"
        raise ConfigError(f"the class {name} was given as a model", hint=make)
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"a {type(model).__name__} was given as a model",
            hint="a torch.nn.Module, and the first argument, as in fit(model, loader) and import_weights(model, path)",
        )
    if metrics is not None and getattr(type(unwrap(model)), "forward", None) is nn.Module.forward:
        raise ConfigError(
            f"metrics judge what {type(model).__name__}(batch) gives, and it has no `forward`",
            hint="a method `forward(self, batch)` that gives one prediction per row",
        )


def check_loader(data: Batches) -> None:
    """Raise ConfigError for what lacks a part of `Batches`."""
    _check(
        data, ("rows", "batches", "state_dict", "__len__"), "a loader",
        hint="fl.Loader for Parquet files, fl.MapLoader for a torch data set, fl.MapLoader.of for a DataLoader",
    )  # fmt: skip


def check_metrics(metrics: Judges | None) -> None:
    """Raise ConfigError for what lacks a part of `Metrics`."""
    for metric in metrics.values() if isinstance(metrics, Mapping) else [] if metrics is None else [metrics]:
        _check(
            metric, ("partial", "merge", "finish"), "metrics",
            hint="those of falconet.metrics, or a class of your own with these methods",
        )  # fmt: skip


def _check(given: object, names: Sequence[str], what: str, hint: str) -> None:
    missing = [name for name in names if not hasattr(given, name)]
    if missing or isinstance(given, type):
        kind = f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
        lacks = f": it has no {', '.join(missing)}" if missing else ""
        raise ConfigError(f"{kind} was given as {what}{lacks}", hint=hint)


def check_resume(resume: object, folder: object) -> None:
    """Raise ConfigError for another `resume` than there is, or one without a folder."""
    if resume not in get_args(Resume):
        raise ConfigError(
            f"`resume` is {resume!r}",
            hint='"auto" goes on where the run in the folder stopped, "must" insists on one, "never" starts one',
        )
    if resume != "never" and folder is None:
        raise ConfigError(f'`resume="{resume}"` without a folder', hint="Trainer(config, folder)")


def check_data(config: TrainConfig, loader: Batches, valid: Batches | None, metrics: Judges | None) -> None:
    """Raise ConfigError or DataError for what is no loader or metric, has no rows, or lacks what `config` asks for."""
    for data in (loader, valid):
        if data is not None:
            check_loader(data)
    check_metrics(metrics)
    if not len(loader):
        raise DataError("no rows to train on", hint="the loader has no batch")
    if valid is None:
        _without_validation(config)
    elif not len(valid):
        raise DataError("no rows to validate on", hint="`valid` has no batch; fit(...) without it trains as well")
    elif metrics is None and config.monitor != "loss":
        raise ConfigError(
            f"`monitor` is {config.monitor!r}, but the validation has no figure but the loss",
            hint="fit(..., metrics=...)",
        )


def _without_validation(config: TrainConfig) -> None:
    needs = {
        "`patience`": config.patience is not None,
        '`schedule="plateau"`': config.schedule == "plateau",
        f'`monitor="{config.monitor}"`': config.monitor != "loss",
    }
    for what, asked in needs.items():
        if asked:
            raise ConfigError(f"{what} without validation data", hint="fit(..., valid=loader), or another setting")
