"""`falconet tune`: settings searched for, by Optuna, on a part of the training rows. The test is never looked at.

work/tune/work      a working folder like any, whose split is of the training rows alone
work/tune/study.log every trial, written as it goes: a search that was killed goes on
work/tune/best.toml the recipe with the best settings
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from falconet.config import config_hash, from_plain, to_plain
from falconet.errors import ConfigError, FalconetError, suggest
from falconet.evaluation.evaluate import figure
from falconet.io.artifact import read_manifest, write_file
from falconet.models.base import MODELS, Model, Retriever
from falconet.models.closed_form import ClosedForm
from falconet.nn.modes import evaluating
from falconet.progress import aligned, hushed, note
from falconet.recipe.check import MERGED, TWO_STAGE
from falconet.recipe.config import Recipe, StageConfig, recipe_of
from falconet.recipe.lock import locked
from falconet.recipe.overrides import overridden
from falconet.recipe.prepare import prepare
from falconet.recipe.run import is_prepared, run, run_steps, steps
from falconet.recipe.space import TuneConfig
from falconet.recipe.stages import evaluation_config, own
from falconet.recipe.trials import Pruning, decoded, encoded, failed, open_study, require, suggested, was_killed
from falconet.train.callbacks import Callback
from falconet.train.settings import TrainConfig

if TYPE_CHECKING:
    import optuna

AGAIN = 1  # added to the seed of the split, so that the second split is not the first one's


@dataclass(frozen=True)
class Tried:
    """A trial: what it set, and what came of it. `value` is None where it has none: `state` says why."""

    number: int
    settings: Mapping[str, Any]
    state: str  # "complete", "pruned" or "failed"
    value: float | None
    seconds: float


@dataclass(frozen=True)
class Tuned:
    """What a search found. `as_it_stands` is the value of the recipe's own settings, where the space has them."""

    metric: str
    of: str
    tried: tuple[Tried, ...]
    best: Tried
    as_it_stands: float | None
    recipe: Path


def tune(
    plain: Mapping[str, Any],
    work: str | Path,
    *,
    trials: int | None = None,
    timeout: float | None = None,
) -> Tuned:
    """Search the space of a recipe's plain values (its TOML), in `work/tune`, and write `best.toml` there.

    Trials of an earlier call with the same recipe, data and space count; the recipe's own settings are tried first.
    `trials` in all, in place of `tune.trials`; `timeout`: seconds after which no further trial begins.

    Raises ConfigError without the extra, without a space, for a setting that is not there or a value that it does not
    take; what the steps raise where not one trial came to a value; ArtifactError where another run holds the folder.
    """
    search = Search(plain, Path(work))
    with locked(search.folder):
        return search.run(search.config.trials if trials is None else trials, timeout)


class Search:
    """One search: its recipe, its space, and how a trial is measured."""

    def __init__(self, plain: Mapping[str, Any], work: Path) -> None:
        self.recipe = recipe_of(plain)
        if self.recipe.tune is None or not self.recipe.tune.space:
            raise ConfigError(
                "the recipe has no `[tune.space]`",
                hint='it names what is searched, like "retriever.config.dim" = [32, 64, 128]',
            )
        self.plain, self.work, self.folder = plain, work, work / "tune"
        self.config: TuneConfig = self.recipe.tune
        self.ranges = self.config.ranges
        for name, one in self.ranges.items():
            for value in one.ends:
                self.with_settings({name: value})
        both = any(not name.startswith("retriever.") for name in self.ranges)
        single = next(iter(self.recipe.retrievers)) if len(self.recipe.retrievers) == 1 else MERGED
        self.of = self.config.of or (TWO_STAGE if both else single)
        known = [*self.recipe.retrievers, *([MERGED] if len(self.recipe.retrievers) > 1 else []), TWO_STAGE]
        if self.of not in known:
            raise ConfigError(f"`tune.of` is `{self.of}`", hint=suggest(self.of, known))

    def with_settings(self, settings: Mapping[str, Any]) -> Recipe:
        """The recipe with other settings. Raises ConfigError for those that it does not take."""
        try:
            return recipe_of(self.plain, [f"{name}={toml(value)}" for name, value in settings.items()])
        except ConfigError as error:
            said = ", ".join(f"{name} = {toml(value)}" for name, value in settings.items())
            raise ConfigError(f"`tune.space` has {said}: {error.args[0]}", hint=error.hint) from error

    def run(self, trials: int, timeout: float | None) -> Tuned:
        require()
        start = time.monotonic()
        run(self.recipe, self.work, only="prepare")
        study = self._study()
        own_settings = self._own_settings()
        if not study.trials and own_settings is not None:
            study.enqueue_trial({name: encoded(self.ranges[name], value) for name, value in own_settings.items()})
        last: FalconetError | None = None
        while sum(trial.state.name in _STATES and not was_killed(trial) for trial in study.trials) < trials:
            if timeout is not None and time.monotonic() - start > timeout:
                note(f"{timeout:.0f} seconds are over: no further trial")
                break
            last = self._try(study) or last
        tried = tuple(one for trial in study.trials if (one := self._tried(trial)) is not None)
        complete = [one for one in tried if one.value is not None]
        if not complete:
            raise last or ConfigError("no trial came to a value", hint="more trials, or more time")
        best = max(complete, key=lambda one: (_value(one), -one.number))
        path = self.folder / "best.toml"
        write_file(path, self._best(best).encode())
        stands = next((one.value for one in complete if one.settings == own_settings), None)
        return Tuned(self.config.metric, self.of, tried, best, stands, path)

    def _study(self) -> optuna.Study:
        """The study of this recipe, data and space."""
        plain = to_plain(replace(self.recipe, tune=replace(self.config, trials=1)))
        name = config_hash({"recipe": plain, "data": read_manifest(self.work / "features", "features").sha256})
        return open_study(self.folder, name, names=set(self.ranges), seed=self.recipe.seed, prune=self._prunes)

    @property
    def _prunes(self) -> bool:
        """Whether a trial's worth shows while its model trains: a single retriever that is trained by gradient."""
        alone = self.of in self.recipe.retrievers and len(self.recipe.retrievers) == 1
        return self.config.prune and alone and not issubclass(MODELS[self.recipe.retriever[0].model], ClosedForm)

    def _try(self, study: optuna.Study) -> FalconetError | None:
        """One trial; the error that it ended with."""
        optuna = require()
        trial = study.ask()
        settings = suggested(trial, self.ranges)
        start = time.monotonic()
        said = ", ".join(f"{name} = {toml(value)}" for name, value in settings.items())
        note(f"trial {trial.number}: {said}")
        again = [one for one in study.trials if one.params == trial.params and one.value is not None]
        try:
            value = again[0].value if again else self._measure(settings, trial)
        except optuna.TrialPruned:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            note(f"trial {trial.number}: ended early, behind the others")
        except FalconetError as error:
            failed(trial, str(error.args[0]))
            note(f"trial {trial.number} failed: {error.args[0]}")
            return error
        else:
            study.tell(trial, value)
            seconds = time.monotonic() - start
            note(f"trial {trial.number}: {self.config.metric} {value:.4f} in {seconds:.1f} s")
        return None

    def _measure(self, settings: Mapping[str, Any], trial: optuna.Trial) -> float:
        """Train what is asked for on a part of the training rows; its figure on the others. Steps that are there stay.

        Raises what the steps raise, and TrialPruned.
        """
        recipe, folder = self.with_settings(settings), self.folder / "work"
        with locked(folder), hushed():
            self._prepare(recipe, folder)
            features, config = folder / "features", evaluation_config(recipe)

            def watch(model: Model) -> Sequence[Callback]:
                assert isinstance(model, Retriever)
                return [Pruning(trial, lambda: self._figure(features, model, recipe))] if self._prunes else ()

            last = "ranker" if self.of == TWO_STAGE else "retriever"
            wanted = [step for step in steps(recipe, folder, watch=watch) if step.stage in ("retriever", last)]
            run_steps(wanted)
            model = next(model for name, model in own(recipe, folder) if name == self.of)
            return figure(features, self.of, model, config, self.config.metric)

    def _figure(self, features: Path, model: Retriever, recipe: Recipe) -> float:
        with evaluating(model):
            return figure(features, self.of, model, evaluation_config(recipe), self.config.metric)

    def _prepare(self, recipe: Recipe, folder: Path) -> None:
        """The features of a split of the training rows, where they are not there yet."""
        recipe = replace(recipe, split=replace(recipe.split, seed=recipe.split.seed + AGAIN))
        reads = to_plain((recipe.seed, recipe.split, recipe.columns, recipe.prepare))
        rows = read_manifest(self.work / "split", "split").sha256
        key = config_hash({"step": "prepare", "settings": reads, "inputs": rows})
        if not is_prepared(folder, key):
            prepare(recipe, folder, step=key, again=self.work)

    def _own_settings(self) -> dict[str, Any] | None:
        """What the recipe itself has for what is searched; None, with a note, where the space is elsewhere."""
        whole = _whole(self.recipe)
        found = {name: _at(whole, name) for name in self.ranges}
        outside = [f"{name} = {toml(value)}" for name, value in found.items() if not self.ranges[name].has(value)]
        if not outside:
            return found
        note(f"the recipe as it stands is not tried: the space does not have {', '.join(outside)}")
        return None

    def _tried(self, trial: optuna.trial.FrozenTrial) -> Tried | None:
        state = _STATES.get(trial.state.name)
        if state is None or was_killed(trial) or trial.params.keys() != self.ranges.keys():
            return None
        settings = {name: decoded(one, trial.params[name]) for name, one in self.ranges.items()}
        seconds = trial.duration.total_seconds() if trial.duration is not None else 0.0
        return Tried(trial.number, settings, state, trial.value if state == "complete" else None, seconds)

    def _best(self, best: Tried) -> str:
        """The recipe with the best settings, as TOML."""
        import tomli_w

        plain = overridden(self.plain, [f"{name}={toml(value)}" for name, value in best.settings.items()])
        text = tomli_w.dumps({name: table for name, table in plain.items() if name != "tune"})
        return (
            f"# {self.config.metric} of `{self.of}` was {best.value:.4f} on a part of the training rows, the best of\n"
            f"# {len(self.ranges)} searched settings. What it is on the test is for `falconet run` to say.\n{text}"
        )


def table_text(found: Tuned, rows: int = 10) -> str:
    """The best trials as a table for people."""
    complete = sorted((one for one in found.tried if one.value is not None), key=lambda one: (-_value(one), one.number))
    names = list(found.best.settings)
    lines = [["trial", found.metric, "seconds", *(name.removeprefix("retriever.") for name in names)]]
    for one in complete[:rows]:
        lines.append(
            [str(one.number), f"{_value(one):.4f}", f"{one.seconds:.1f}", *(_short(one.settings[n]) for n in names)]
        )
    count = {state: sum(one.state == state for one in found.tried) for state in _STATES.values()}
    said = [f"{number} {state}" for state, number in count.items() if number]
    text = f"{aligned(lines)}\n\n{found.metric} of `{found.of}` on the validation rows; trials: {', '.join(said)}"
    if found.as_it_stands is not None:
        text += f"\nthe recipe as it stands: {found.as_it_stands:.4f}, the best: {_value(found.best):.4f}"
    return text


def _value(one: Tried) -> float:
    return -1.0 if one.value is None else one.value


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else toml(value)


_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}


def toml(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml, value))}]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def _whole(recipe: Recipe) -> dict[str, Any]:
    """A recipe's plain values, with all that models and their training have where it says nothing."""
    stages = {"retriever": [_stage(one) for one in recipe.retriever], "ranker": _stage(recipe.ranker)}
    return {**to_plain(recipe), **stages}


def _stage(stage: StageConfig) -> dict[str, Any]:
    config = from_plain(MODELS[stage.model].Config, stage.config)
    return {**to_plain(stage), "config": to_plain(config), "train": to_plain(from_plain(TrainConfig, stage.train))}


def _at(plain: Any, name: str) -> Any:
    """The value of a setting by its name as for `--set`."""
    for part in name.split("."):
        if isinstance(plain, list):
            if part.isdecimal():
                plain = plain[int(part)]
                continue
            plain = plain[0]
        plain = plain.get(part)
    return plain
