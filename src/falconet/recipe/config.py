"""A recipe: one TOML file that says what to build, checked down to the models' own settings before any work."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from falconet.config import from_plain
from falconet.errors import ConfigError, DataError
from falconet.plugins import load_modules
from falconet.recipe.overrides import overridden
from falconet.recipe.protocol import with_protocol
from falconet.recipe.space import TuneConfig

FORMAT = 1
RETRIEVER = "retriever"  # what the single retriever of a recipe is called


def _check_seed(seed: int, name: str) -> None:
    if not 0 <= seed < 2**63:
        raise ConfigError(f"`{name}` is {seed}", hint="a whole number from 0 to 2^63 - 1")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the raw files are. `movielens` reads any MovieLens release; `files` whatever a Dataset reads.

    The others say how files are written and what the columns of `path` are, in the words of Dataset. Without a header
    `names` are the columns of `path`.
    """

    reader: Literal["movielens", "files"] = "movielens"
    path: str
    items: str | None = None  # files: one row per item
    users: str | None = None  # files: one row per user
    separator: str | None = None
    encoding: str | None = None
    null_values: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    dtypes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("`data.path` is empty", hint="it says where the raw files are")
        object.__setattr__(self, "items", self.items or None)
        object.__setattr__(self, "users", self.users or None)
        object.__setattr__(self, "separator", self.separator or None)
        for name in ("items", "users", "separator", "encoding", "null_values", "names", "dtypes"):
            if getattr(self, name) and self.reader != "files":
                raise ConfigError(f'`data.{name}` is for `data.reader = "files"`, not "{self.reader}"')


@dataclass(frozen=True, kw_only=True)
class SplitConfig:
    """What is kept for the test. `random` keeps `ratio` of each user's rows for training, `leave_last` all but the
    `last` ones.

    `stratified` keeps `ratio` of each item's rows, `users` everything of most users, and of those that are held out
    `ratio` of the rows is what is known of them, or the first `known` ones. `items` keeps everything of most items.
    """

    kind: Literal["random", "leave_last", "time", "stratified", "users", "items"] = "random"
    ratio: float = 0.8
    seed: int = 0
    last: int = 1  # leave_last: rows of each user
    held_out: float = 0.1  # users, items: share of them
    known: int | None = None  # users: rows of a held-out user, the first ones in time, that are known; None: by `ratio`
    min_rating: float | None = None  # rows of lower ratings are left out
    min_items: int = 1  # users of fewer rows are left out

    def __post_init__(self) -> None:
        if not 0 < self.ratio < 1:
            raise ConfigError(f"`split.ratio` is {self.ratio}", hint="a share between 0 and 1, like 0.8")
        if not 0 < self.held_out < 1:
            raise ConfigError(f"`split.held_out` is {self.held_out}", hint="a share of the users or items, like 0.1")
        if self.last < 1 or (self.last > 1 and self.kind != "leave_last"):
            raise ConfigError(
                f"`split.last` is {self.last}, `split.kind` is `{self.kind}`",
                hint='at least 1, with kind = "leave_last", which holds out the last rows of every user',
            )
        if self.known is not None and (self.known < 0 or self.kind != "users"):
            raise ConfigError(
                f"`split.known` is {self.known}, `split.kind` is `{self.kind}`",
                hint='at least 0, with kind = "users", which holds out whole users',
            )
        if self.min_rating is not None and not math.isfinite(self.min_rating):
            raise ConfigError(f"`split.min_rating` is {self.min_rating}", hint="a rating, like 4.0")
        if self.min_items < 1:
            raise ConfigError(f"`split.min_items` is {self.min_items}", hint="at least 1")
        _check_seed(self.seed, "split.seed")


@dataclass(frozen=True, kw_only=True)
class ColumnsConfig:
    """What the columns of the raw files are called. An empty name says that there is no such column."""

    user: str = "userId"
    item: str = "movieId"
    time: str | None = "timestamp"
    rating: str | None = "rating"
    title: str | None = "title"
    item_features: tuple[str, ...] | None = None  # None: chosen by type
    user_features: tuple[str, ...] | None = None  # likewise, of the users' table

    def __post_init__(self) -> None:
        for name in ("user", "item"):
            if not getattr(self, name):
                raise ConfigError(f"`columns.{name}` is empty", hint="every interaction has a user and an item")
        for name in ("time", "rating", "title"):
            object.__setattr__(self, name, getattr(self, name) or None)  # TOML has no word for nothing
        names = [name for name in (self.user, self.item, self.time, self.rating) if name is not None]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(
                f"`columns` calls two columns `{twice}`", hint="user, item, time and rating are different columns"
            )


@dataclass(frozen=True, kw_only=True)
class FeatureConfig:
    """Operators of one's choice for columns: of the items or the users in place of the usual ones, of the interactions.

    `ops` are tables: the operator's name under `op`, beside its settings. What comes out must be categorical or
    continuous.
    """

    columns: tuple[str, ...]
    ops: tuple[dict[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Features. `history` is `earlier` (strictly before the row), `others` (the user's other rows) or `none`.

    `features`: of items and users. `context`: of the moment, from columns of the interactions, such as the device or
    the time; a request says them.
    """

    positive: float = 3.0  # the target `rating` is whether the rating is above this
    history: Literal["earlier", "others", "none"] = "earlier"
    max_items: int = 50  # length of a history
    untrained_items: bool = False  # items of the table that training has no row of are in the catalogue too
    features: tuple[FeatureConfig, ...] = ()
    context: tuple[FeatureConfig, ...] = ()

    @property
    def context_columns(self) -> tuple[str, ...]:
        """The columns of the interactions that `context` reads."""
        return tuple(dict.fromkeys(name for feature in self.context for name in feature.columns))

    def __post_init__(self) -> None:
        for name in ("features", "context"):
            if not all(feature.columns and feature.ops for feature in getattr(self, name)):
                raise ConfigError(
                    f"`prepare.{name}` has an entry without columns or without ops", hint="both are lists"
                )
        if not math.isfinite(self.positive):
            raise ConfigError(f"`prepare.positive` is {self.positive}", hint="a rating, like 3.0")
        if self.max_items < 1:
            raise ConfigError(f"`prepare.max_items` is {self.max_items}", hint="at least 1")


@dataclass(frozen=True, kw_only=True)
class StageConfig:
    """A model to train: its name, its own settings, and those of its training."""

    model: str
    batch_size: int
    config: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RetrieverConfig(StageConfig):
    """A model that finds candidates. Of several, each has a `name` (the model's, if left out).

    `weight`: how much its places count where the lists of several become one; with 0 it names no candidates, but scores
    those of the others.
    """

    name: str = ""
    weight: float = 1.0

    def __post_init__(self) -> None:
        _check_name("retriever", self.name or self.model)
        if not 0 <= self.weight < math.inf:
            raise ConfigError(f"`retriever.weight` is {self.weight}", hint="0 or more")


def _check_name(table: str, name: str) -> None:
    if not re.fullmatch(r"[\w.+-]+", name) or name.startswith("."):
        raise ConfigError(f"`{table}.name` is {name!r}", hint="letters, digits and . _ + -: it names a folder")


# What a recipe starts from where it says nothing: settings that did well on some hundred thousand rows.
STAGES = {
    "retriever": StageConfig(
        model="TwoTower",
        batch_size=512,
        train={"epochs": 8, "optimizer": "adamw", "learning_rate": 0.003, "schedule": "linear"},
    ),
    "ranker": StageConfig(
        model="MLP",
        batch_size=1024,
        config={"hidden": [], "columns": ["*_standing", "*_affinity", "history_length*", "log_popularity*"]},
        train={"epochs": 12, "learning_rate": 0.05, "schedule": "linear"},
    ),
}


@dataclass(frozen=True, kw_only=True)
class CompareConfig(StageConfig):
    """A retriever that stands in the report beside the recipe's own; without `name` under the model's."""

    name: str = ""
    batch_size: int = 512

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.model)
        _check_name("compare", self.name)


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """`k`: length of the lists that are judged; metrics at other lengths are computed where `metrics` names them.

    `items`: what lists are made of, the whole catalogue or those of its items that training has no row of.
    """

    k: int = 10
    metrics: tuple[str, ...] = ("recall@10", "ndcg@10")  # which the table shows
    map_by: Literal["all", "min_k"] = "all"
    recall_by: Literal["all", "min_k"] = "all"
    items: Literal["all", "untrained"] = "all"

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(f"`evaluate.k` is {self.k}", hint="at least 1")

    @property
    def ks(self) -> tuple[int, ...]:
        """Every length at which something is computed, ascending. Raises ConfigError for a metric without one."""
        found = {self.k}
        for metric in self.metrics:
            k = metric.partition("@")[2]
            if not k.isdecimal() or not 0 < int(k) < 2**31:
                raise ConfigError(f"`evaluate.metrics` has `{metric}`", hint=f"like `ndcg@{self.k}`")
            found.add(int(k))
        return tuple(sorted(found))


@dataclass(frozen=True, kw_only=True)
class BundleConfig:
    """What is served. `verb`: what people do with items, in the past tense, as in "because you watched Alien"."""

    candidates: int = 200  # how many items the retrievers hand to the ranker
    verb: str | None = None  # None: "watched" for MovieLens, else "chose"
    index: Literal["exact", "ann"] = "exact"  # ann: approximate, for millions of items
    ranker: Literal["torch", "onnx"] = "torch"  # what runs the ranker; onnx: ONNX Runtime

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise ConfigError(f"`bundle.candidates` is {self.candidates}", hint="at least 1")
        if self.verb is not None and not self.verb.strip():
            raise ConfigError("`bundle.verb` is empty", hint='what people do with items, like "bought"')


@dataclass(frozen=True, kw_only=True)
class RefreshConfig:
    """How `falconet run --refresh` learns from events, and when the new bundle takes the old one's place."""

    epochs: int = 1  # passes over all rows, from the weights that there are
    held_out: float = 0.25  # share of the people with new events whose newest is held out
    margin: float = 0.05  # by how much of the old one's nDCG the new one may be below it
    people: int = 2000  # who are asked for at most
    keep: int = 3  # bundles, with the folders they were made in
    types: tuple[str, ...] = ()  # of events that count; none: all but `hide`

    def __post_init__(self) -> None:
        for name in ("epochs", "people", "keep"):
            if getattr(self, name) < 1:
                raise ConfigError(f"`refresh.{name}` is {getattr(self, name)}", hint="at least 1")
        if not 0 < self.held_out <= 1:
            raise ConfigError(f"`refresh.held_out` is {self.held_out}", hint="a share of the people, like 0.25")
        if not 0 <= self.margin <= 1:
            raise ConfigError(f"`refresh.margin` is {self.margin}", hint="a share of the old figure, like 0.05")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything `falconet run` needs."""

    format: int
    data: DataConfig
    retriever: tuple[RetrieverConfig, ...]
    ranker: StageConfig
    seed: int = 0
    modules: tuple[str, ...] = ()  # imported first: they register models and operators of one's own
    protocol: str | None = None  # whose settings are those of `split` and `evaluate` (protocol.py)
    split: SplitConfig = SplitConfig()
    columns: ColumnsConfig = ColumnsConfig()
    prepare: PrepareConfig = PrepareConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    bundle: BundleConfig = BundleConfig()
    refresh: RefreshConfig = RefreshConfig()
    compare: tuple[CompareConfig, ...] = ()
    tune: TuneConfig | None = None  # what `falconet tune` searches; no step reads it

    def __post_init__(self) -> None:
        _check_seed(self.seed, "seed")
        if not self.retriever:
            raise ConfigError("`retriever` is empty", hint="one at least finds the candidates")

    @property
    def retrievers(self) -> dict[str, RetrieverConfig]:
        """The retrievers by name. A single one without a name is called `retriever`."""
        if len(self.retriever) == 1:
            return {self.retriever[0].name or RETRIEVER: self.retriever[0]}
        return {one.name or one.model: one for one in self.retriever}

    @property
    def verb(self) -> str:
        """What people do with items."""
        return self.bundle.verb or ("watched" if self.data.reader == "movielens" else "chose")


def read_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a TOML file, with `a.b=value` overrides applied. Data paths start at the working directory.

    Raises DataError where the file is missing, else ConfigError naming the key, what was given and what is allowed.
    """
    return recipe_of(read_toml(path), overrides, where=f"`{path}`")


def read_toml(path: str | Path) -> dict[str, Any]:
    """The plain values in a recipe's file. Raises as `read_recipe` does."""
    path = Path(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"no recipe at `{path}`", hint="`recipes/` in the repository holds examples") from error
    except OSError as error:
        raise DataError(f"`{path}` cannot be read: {error.strerror}", hint="a recipe is a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"`{path}` is not TOML: {error}") from error


def recipe_of(plain: Mapping[str, Any], overrides: Sequence[str] = (), *, where: str = "the recipe") -> Recipe:
    """The recipe of plain values, as TOML has them. Raises ConfigError as `read_recipe` does."""
    from falconet.recipe.check import check

    changed = with_protocol(overridden(plain, overrides))
    recipe = from_plain(Recipe, {**changed, **_stages(changed)}, where="recipe")
    if recipe.format != FORMAT:
        raise ConfigError(f"{where} has recipe format {recipe.format}, this version reads {FORMAT}")
    load_modules(recipe.modules)
    check(recipe)
    return recipe


def _stages(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The models' tables, with what they start from. A model of another name starts from its own settings."""
    several = plain.get("retriever", {})
    retrievers = list(several) if isinstance(several, (list, tuple)) else [several]
    return {
        "retriever": [_started("retriever", one) for one in retrievers],
        "ranker": _started("ranker", plain.get("ranker", {})),
    }


def _started(stage: str, given: Any) -> Any:
    if not isinstance(given, Mapping):
        return given  # from_plain says what is wrong with it
    start = STAGES[stage]
    whole = {"model": start.model, "batch_size": start.batch_size, **given}
    for table in ("config", "train") if whole["model"] == start.model else ():
        if isinstance(given.get(table, {}), Mapping):
            whole[table] = {**getattr(start, table), **given.get(table, {})}
    return whole
