"""What is wrong with a recipe, said before any work: the settings of models, and, once there are features, columns."""

from __future__ import annotations

import fnmatch
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from falconet.config import from_plain
from falconet.errors import ConfigError, FalconetError, suggest
from falconet.etl.op import Op, StatOp
from falconet.io.footer import read_schema
from falconet.metrics.ranking import RankingMetrics
from falconet.models import MODELS
from falconet.models.base import Retriever
from falconet.models.closed_form import ClosedForm
from falconet.models.ranker import Ranker
from falconet.nn.onnx import needs_onnx
from falconet.ops import OPS
from falconet.recipe.config import RETRIEVER, FeatureConfig, Recipe, StageConfig
from falconet.recipe.names import inner_columns, is_taken
from falconet.retrieval.candidates import row_schema
from falconet.retrieval.faiss import needs_faiss
from falconet.schema import SECONDS, Column, Schema, Tag
from falconet.train.settings import TrainConfig

MERGED, TWO_STAGE = "merged", "two_stage"  # in a report: what several retrievers name together, and the whole
HISTORY = "history"
_TAKEN = ("Popular", MERGED, TWO_STAGE)
_FOLDERS = ("ranker", "scout", "compare")  # below `runs`, where retrievers have theirs


def check(recipe: Recipe) -> None:
    """Check what belongs to models and their training, which only those know. Raises ConfigError."""
    if recipe.columns.time is None and (recipe.prepare.history == "earlier" or recipe.split.kind == "time"):
        setting = 'split.kind = "time"' if recipe.split.kind == "time" else 'prepare.history = "earlier"'
        raise ConfigError(
            f"`{setting}` needs times, but `columns.time` is empty",
            hint='name the column of times, or set `split.kind = "random"` and `prepare.history = "others"`',
        )
    if recipe.bundle.candidates < recipe.evaluate.ks[-1]:
        raise ConfigError(
            f"`bundle.candidates` is {recipe.bundle.candidates}, but `evaluate` judges lists of "
            f"{recipe.evaluate.ks[-1]}",
            hint="the ranker can only order what the retrievers hand it",
        )
    known = RankingMetrics(recipe.evaluate.ks).names
    for metric in recipe.evaluate.metrics:
        if metric not in known:
            raise ConfigError(f"`evaluate.metrics` has no `{metric}`", hint=suggest(metric, known))
    for name in ("features", "context"):
        for place, feature in enumerate(getattr(recipe.prepare, name)):
            operators(feature, f"recipe.prepare.{name}[{place}]")
    _check_context(recipe)
    _check_stages(recipe)


def _check_context(recipe: Recipe) -> None:
    """Refuse columns that are no moment, and names under which the features have something else."""
    columns, inner = recipe.columns, inner_columns(recipe.columns)
    roles = {columns.user: "the user", columns.item: "the item", columns.rating: "what is predicted"}
    used = {inner.user, inner.item, inner.time, inner.rating}
    for name in recipe.prepare.context_columns:
        if name in roles:
            raise ConfigError(f"`prepare.context` has `{name}`, which is {roles[name]}", hint="leave it out")
        if name != columns.time and (is_taken(name) or name in used):
            raise ConfigError(
                f"`prepare.context` has `{name}`, a name that features give to something else",
                hint="another name for that column in the file",
            )


def check_packages(recipe: Recipe) -> None:
    """Raise ConfigError where a package is missing that building the recipe's bundle needs."""
    if recipe.bundle.ranker == "onnx":
        needs_onnx()
    if recipe.bundle.index == "ann":
        needs_faiss()


def operators(feature: FeatureConfig, where: str = "prepare.features") -> list[Op | StatOp]:
    """The operators that a recipe names for columns. Raises ConfigError for one that there is not, or its settings."""
    made: list[Op | StatOp] = []
    for place, given in enumerate(feature.ops):
        settings = dict(given)
        name = settings.pop("op", None)
        if not isinstance(name, str) or name not in OPS:
            raise ConfigError(f"`{where}.ops[{place}].op` is {name!r}", hint=suggest(str(name), OPS))
        made.append(from_plain(OPS[name], settings, where=f"{where}.ops[{place}]"))
    return made


def _check_stages(recipe: Recipe) -> None:
    taken = {name.lower() for name in _TAKEN}

    def take(where: str, name: str, model: str) -> None:
        if name.lower() == "ease" and model != "EASE":
            raise ConfigError(
                f"`{where}` is a model called `{name}`, which would stand in place of EASE", hint="another name"
            )
        if name.lower() in taken:  # many file systems do not tell such folders apart
            raise ConfigError(
                f"`{where}`: another model of the report is called `{name}`", hint="give it a `name` of its own"
            )
        taken.add(name.lower())

    several = len(recipe.retriever) > 1
    for place, one in enumerate(recipe.retriever):
        where = f"recipe.retriever[{place}]" if several else "recipe.retriever"
        _check_stage(where, one, retrieves=True)
        name = one.name or (one.model if several else RETRIEVER)
        if name.lower() in _FOLDERS:
            raise ConfigError(f"`{where}.name` is `{name}`, which is another folder of runs", hint="another name")
        take(where, name, one.model)
    if several and RETRIEVER in taken:
        raise ConfigError(
            "`retriever.name` is `retriever`, which is what all of them are called together", hint="another name"
        )
    if not any(one.weight for one in recipe.retriever):
        raise ConfigError("`retriever.weight` is 0 of every retriever", hint="one at least must name candidates")
    _check_stage("recipe.ranker", recipe.ranker, retrieves=False)
    for place, compared in enumerate(recipe.compare):
        _check_stage(f"recipe.compare[{place}]", compared, retrieves=True)
        take(f"recipe.compare[{place}]", compared.name, compared.model)


def _check_stage(where: str, stage: StageConfig, *, retrieves: bool) -> None:
    if stage.model not in MODELS:
        raise ConfigError(f"`{where}.model` is `{stage.model}`", hint=suggest(stage.model, MODELS))
    if issubclass(MODELS[stage.model], Retriever) != retrieves:
        fit = [n for n in MODELS if issubclass(MODELS[n], Retriever) == retrieves]
        raise ConfigError(
            f"`{where}.model` is `{stage.model}`, which is no {'retriever' if retrieves else 'ranker'}",
            hint=f"available: {', '.join(sorted(fit))}",
        )
    from_plain(MODELS[stage.model].Config, stage.config, where=f"{where}.config")
    from_plain(TrainConfig, stage.train, where=f"{where}.train")
    if issubclass(MODELS[stage.model], ClosedForm) and stage.train:
        raise ConfigError(
            f"`{where}.train`: `{stage.model}` has no training to set `{min(stage.train)}` of",
            hint="it is fitted, not trained",
        )
    if stage.batch_size < 1:
        raise ConfigError(f"`{where}.batch_size` is {stage.batch_size}", hint="a number of rows, at least 1")


@dataclass(frozen=True)
class Reads:
    """What a ranker's rows must have beside the usual: the ids of user and item, the history."""

    ids: bool
    history: bool


def ranker_reads(recipe: Recipe) -> Reads:
    """What the recipe's ranker reads: what its `columns` name, and the history where its kind is made for one."""
    columns = inner_columns(recipe.columns)
    named = recipe.ranker.config.get("columns") or ()
    kind = MODELS[recipe.ranker.model]
    history = HISTORY in named or (issubclass(kind, Ranker) and kind.reads_history)
    return Reads(columns.user in named or (columns.item in named and not history), history)


def with_columns(stage: StageConfig, rows: Schema) -> StageConfig:
    """A ranker whose `columns` are names: a `*` in one of them stands for anything, so for all columns that fit."""
    given = stage.config.get("columns")
    if given is None:
        return stage
    inputs = [c.name for c in rows.without_tags(Tag.TARGET, Tag.WEIGHT) if c.tags]
    found = [n for name in given for n in (fnmatch.filter(inputs, name) if "*" in name else [name])]
    if given and not found:
        raise ConfigError(
            f"`ranker.config.columns` is {list(given)}, which no column fits", hint=f"there are {', '.join(inputs)}"
        )
    return replace(stage, config={**stage.config, "columns": list(dict.fromkeys(found))})


def check_models(recipe: Recipe, features: Path) -> None:
    """Build every model of the recipe without its weights: a column that is not there is named before any training.

    Raises ConfigError, SchemaError or ColumnNotFoundError, with the stage's name.
    """
    train = read_schema(features / "train")
    reads, names = ranker_reads(recipe), tuple(recipe.retrievers)
    for name, one in recipe.retrievers.items():
        _build(f"the retriever `{name}`", one, train)
    check_compared(recipe, features)
    tables = [Schema(tuple(c for c in read_schema(features / t) if c.tags)) for t in ("users", "items")]
    rows = row_schema(tables[0] + tables[1], names, ids=reads.ids, history=reads.history)
    taken = Column(name="taken", dtype="float32", nullable=False, tags=frozenset({Tag.TARGET, Tag.BINARY}))
    _build("the ranker", with_columns(recipe.ranker, rows), rows + Schema((taken,)))


def check_compared(recipe: Recipe, features: Path) -> None:
    """The same for what `[[compare]]` names."""
    train = read_schema(features / "train")
    for one in recipe.compare:
        _build(f"`{one.name}` of `[[compare]]`", one, train)


def _build(what: str, stage: StageConfig, schema: Schema) -> None:
    kind = MODELS[stage.model]
    ours = kind.__module__.startswith("falconet.")  # another's constructor may read numbers that are not there yet
    try:
        with torch.device("meta") if ours else nullcontext():
            model = kind.from_schema(schema, from_plain(kind.Config, stage.config, where="config"))
    except FalconetError as error:
        raise type(error)(f"{what} cannot be built: {error.args[0]}", hint=error.hint) from error
    if isinstance(model, ClosedForm) and model.reads_times and SECONDS not in schema:
        raise ConfigError(
            f"{what} needs to know when items were taken, and the interactions do not say it",
            hint="`columns.time` names their column: dates, times, or numbers that count since 1970",
        )
