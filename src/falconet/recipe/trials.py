"""Optuna: the study of a search, its trials' values, and trials ended early. Nothing else imports it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from falconet.errors import ConfigError
from falconet.progress import note
from falconet.recipe.space import Choice, Range
from falconet.train.callbacks import Callback

if TYPE_CHECKING:
    import optuna

FIRST = 8  # trials at random before Optuna has something to learn from
ERROR = "error"  # the attribute of a trial that failed: why


def require() -> Any:
    """The module. Raises ConfigError where it, or what writes the best recipe, is not installed."""
    try:
        import optuna
        import tomli_w  # noqa: F401 - needed at the end of a search, said at its start
    except ImportError as error:
        raise ConfigError("a search needs Optuna", hint='pip install "falconet[tune]"') from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def open_study(folder: Path, name: str, *, names: set[str], seed: int, prune: bool) -> optuna.Study:
    """The study of that name in `folder/study.log`, which this process has for itself.

    Trials that were killed, of all settings in `names`, are asked for again, once: what kills twice may do so always.
    """
    optuna = require()
    (folder / "study.lock").unlink(missing_ok=True)  # a killed process may have left it
    backend = optuna.storages.journal
    lock = backend.JournalFileOpenLock(str(folder / "study.lock"))
    study: Any = optuna.create_study(
        storage=optuna.storages.JournalStorage(backend.JournalFileBackend(str(folder / "study.log"), lock)),
        study_name=name,
        direction="maximize",
        load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=1)
        if prune
        else optuna.pruners.NopPruner(),
    )
    # The same seed gives the same values again: one that goes on must not start with those of its first trial.
    study.sampler = optuna.samplers.TPESampler(n_startup_trials=FIRST, seed=seed + len(study.trials))
    before = [trial.params for trial in study.trials if was_killed(trial)]
    for trial in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        if trial.params in before:
            note(f"trial {trial.number} was killed, as was an earlier one of its settings: it is not tried again")
        elif trial.params.keys() == names:
            study.enqueue_trial(trial.params)
    return study  # type: ignore[no-any-return]


def failed(trial: optuna.Trial, why: str) -> None:
    """Write down that a trial ended with an error."""
    trial.set_user_attr(ERROR, why)
    trial.study.tell(trial, state=require().trial.TrialState.FAIL)


def was_killed(trial: optuna.trial.FrozenTrial) -> bool:
    """Whether the process of a trial ended before the trial did; it says nothing about the settings."""
    return trial.state.name == "FAIL" and ERROR not in trial.user_attrs


def suggested(trial: optuna.Trial, ranges: Mapping[str, Choice | Range]) -> dict[str, Any]:
    """The values that a trial is to try."""
    return {name: decoded(one, _suggest(trial, name, one)) for name, one in ranges.items()}


def _suggest(trial: optuna.Trial, name: str, one: Choice | Range) -> Any:
    if isinstance(one, Choice):
        return trial.suggest_categorical(name, [encoded(one, value) for value in one.values])
    if one.whole:
        return trial.suggest_int(name, int(one.low), int(one.high), log=one.log, step=int(one.step or 1))
    return trial.suggest_float(name, one.low, one.high, log=one.log, step=one.step)


def encoded(one: Choice | Range, value: Any) -> Any:
    """A value as Optuna has it, which chooses among numbers and texts alone."""
    return json.dumps(value) if isinstance(one, Choice) else value


def decoded(one: Choice | Range, value: Any) -> Any:
    return json.loads(value) if isinstance(one, Choice) else value


class Pruning(Callback):
    """Measures a model after each epoch and ends the trial where it is behind the others at that epoch."""

    def __init__(self, trial: optuna.Trial, measure: Callable[[], float]) -> None:
        self._trial, self._measure = trial, measure

    def epoch(self, epoch: int, figures: Mapping[str, Any]) -> None:
        self._trial.report(self._measure(), epoch)
        if self._trial.should_prune():
            raise require().TrialPruned
