"""The first step of a recipe: raw files to features, and the fitted workflow that made them.

work/data      the reader's output            work/workflow  the fitted ETL
work/split     raw rows, train and test       work/features  train, test, users, items (docs/contracts.md)

Where whole users are held out, `split/known` is what is known of them and `features/held_out` their table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from falconet import ops
from falconet.errors import ColumnNotFoundError, ConfigError, SchemaError
from falconet.etl.dataset import Dataset
from falconet.etl.hash_expr import hash_expr
from falconet.etl.op import KeyedOp
from falconet.etl.selector import Node
from falconet.etl.workflow import FittedWorkflow, Workflow
from falconet.etl.writer import Shuffle
from falconet.io.artifact import read_manifest, write_artifact
from falconet.io.footer import data_files
from falconet.progress import note
from falconet.recipe.check import operators
from falconet.recipe.config import ColumnsConfig, FeatureConfig, PrepareConfig, Recipe
from falconet.recipe.names import ROW, is_taken
from falconet.recipe.source import RawData, read_data
from falconet.recipe.split import KNOWN, split_rows
from falconet.recipe.tables import count_rows, others_of, write_items, write_strangers, write_users
from falconet.recipe.times import seconds_of
from falconet.schema import SECONDS, Tag


def item_features(items: pl.DataFrame | None, columns: ColumnsConfig) -> tuple[list[str], list[str]]:
    """The categorical and the continuous columns of the items that become features.

    Without `columns.item_features`: numbers, lists of strings or of whole numbers, and strings with at most a tenth as
    many values as rows.
    """
    names = columns.item_features
    return _features(items, names, (columns.item, columns.title), "the table of items", "columns.item_features")


def user_features(users: pl.DataFrame | None, columns: ColumnsConfig) -> tuple[list[str], list[str]]:
    """The same of the users' table, by `columns.user_features`."""
    return _features(users, columns.user_features, (columns.user,), "the table of users", "columns.user_features")


def _features(
    table: pl.DataFrame | None,
    names: Sequence[str] | None,
    apart: tuple[str | None, ...],
    where: str,
    setting: str,
) -> tuple[list[str], list[str]]:
    if table is None:
        return [], []
    chosen = [n for n in table.columns if n not in apart] if names is None else list(names)
    categorical, continuous = [], []
    for name in chosen:
        if name not in table.columns:
            raise ColumnNotFoundError.of(name, table.columns, where=f"{where} (`{setting}`)")
        if name in apart:
            raise ConfigError(f"`{setting}` has `{name}`, which is the id or title", hint="leave it out")
        dtype = table[name].dtype
        few = names is not None or (dtype == pl.String and table[name].n_unique() <= max(2, len(table) // 10))
        inner = dtype.inner if isinstance(dtype, (pl.List, pl.Array)) else None
        if (inner is not None and (inner.is_integer() or inner == pl.String)) or (dtype == pl.String and few):
            categorical.append(name)
        elif dtype.is_numeric():
            continuous.append(name)
        elif names is not None:
            raise SchemaError(
                f"`{setting}` has `{name}`, which holds {dtype}",
                hint="features are strings, numbers, or lists of strings or whole numbers",
            )
    return categorical, continuous


def plan(
    items: pl.DataFrame | None,
    columns: ColumnsConfig,
    prepare: PrepareConfig,
    *,
    users: pl.DataFrame | None = None,
    catalogue: pl.DataFrame | None = None,
    ties_by_row: bool = False,
    seconds: Callable[[pl.Expr], pl.Expr] | None = None,
    context: Sequence[FeatureConfig] = (),
) -> Workflow:
    """The operator graph: ids, the columns of items, users and the moment, the history, the target, when a row was.

    `catalogue`: the ids of items that have a code, in the order of the codes; without it, those that are fitted.
    `ties_by_row`: what a user did earlier at the same time is history too, as a split by place in the file needs it.
    `seconds`: what makes seconds since 1970 of the column of times, if there is one. `context`: `prepare.context`, by
    the names used inside.
    """
    user = [columns.user] >> ops.Categorify() >> ops.AddTags(tags=("user", "id"))
    vocabs = None if catalogue is None else {columns.item: catalogue}
    item = [columns.item] >> ops.Categorify(vocabs=vocabs) >> ops.AddTags(tags=("item", "id"))
    outputs: Node = user + item
    tables = [table.columns for table in (items, users) if table is not None]
    for name in dict.fromkeys(n for feature in prepare.features for n in feature.columns):
        if name in (columns.user, columns.item):
            raise ConfigError(f"`prepare.features` has `{name}`, which is an id", hint="leave it out")
        if not any(name in names for names in tables):
            known = [n for names in tables for n in names]
            raise ColumnNotFoundError.of(name, known, where="no table of items or users (`prepare.features`)")
    for node in (
        _side(items, columns.item, "item", item_features(items, columns), prepare.features),
        _side(users, columns.user, "user", user_features(users, columns), prepare.features),
    ):
        outputs = outputs if node is None else outputs + node
    for feature in context:
        outputs = outputs + (_through(feature.columns, feature) >> ops.AddTags(tags=("context",)))
    if prepare.history != "none":
        time = columns.time if prepare.history == "earlier" else None
        keys = [columns.user, ROW] if time is None else [columns.user, time, ROW]
        row = ROW if ties_by_row and time is not None else None
        history = ops.History(key=columns.user, item=columns.item, time=time, row=row, length=prepare.max_items)
        outputs = outputs + ((keys + item) >> history)["history"]
    if columns.rating is not None:
        bar = prepare.positive
        taken = [columns.rating] >> ops.LambdaOp(lambda x: _above(x, bar).cast(pl.Float32))
        outputs = outputs + (taken >> ops.AddTags(tags=("target", "binary")))
    if columns.time is not None and seconds is not None:
        outputs = outputs + ([columns.time] >> ops.LambdaOp(seconds, dtype="int64") >> ops.Rename(name=SECONDS))
    return Workflow(outputs)


def _side(
    table: pl.DataFrame | None,
    id_: str,
    tag: str,
    usual: tuple[list[str], list[str]],
    chosen: Sequence[FeatureConfig],
) -> Node | None:
    """The features of a table, joined by its id: by the operators that the recipe names, or else the usual ones."""
    if table is None:
        return None
    own = [(f, [n for n in f.columns if n in table.columns]) for f in chosen]
    taken = {name for _, names in own for name in names}
    categorical, continuous = ([name for name in names if name not in taken] for names in usual)
    read = [*categorical, *(n for n in table.columns if n in taken)]
    if not (read or continuous):
        return None
    known = table.select(id_, *read, *(_finite(name) for name in continuous))
    joined = [id_] >> ops.JoinExternal(known, on=id_)
    parts: list[Node] = []
    if categorical:
        parts.append(joined[categorical] >> ops.Categorify())
    if continuous:
        parts.append(joined[continuous] >> ops.Normalize() >> ops.FillMissing(fill_val=0.0))
    parts += [_through(joined[names], feature) for feature, names in own if names]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole + part
    return whole >> ops.AddTags(tags=(tag,))


def _through(columns: Node | Sequence[str], feature: FeatureConfig) -> Node:
    """Columns after the operators that a recipe names for them."""
    first, *others = operators(feature)
    node: Node = (columns if isinstance(columns, Node) else list(columns)) >> first
    for operator in others:
        node = node >> operator
    return node


def catalogue_of(train: Dataset, items: pl.DataFrame | None, columns: ColumnsConfig) -> pl.DataFrame:
    """The ids of all items of the rows, the most frequent first, then those of the table that they lack.

    These are in the order of a hash: equal scores are listed by code, and ids often grow with time, which says much.
    Raises ConfigError without a table of items.
    """
    if items is None:
        raise ConfigError(
            "`prepare.untrained_items` without a table of items",
            hint="name it in `data.items`: nothing else says which items there are, and what they are like",
        )
    counts = count_rows(train, columns.item).drop_nulls().sort("count", columns.item, descending=[True, False])
    ids = counts.select(columns.item)
    others = others_of(items, counts, columns.item)
    return pl.concat([ids, others.sort(hash_expr(pl.col(columns.item), 0, others.schema[columns.item]), columns.item)])


def _check_features(fitted: FittedWorkflow, prepare: PrepareConfig) -> None:
    """Refuse columns that no model could read."""
    named = [("features", n) for feature in prepare.features for n in feature.columns]
    for setting, name in (*named, *(("context", n) for n in fitted.schema.select(Tag.CONTEXT).names)):
        if name not in fitted.schema or not {Tag.CATEGORICAL, Tag.CONTINUOUS} & fitted.schema[name].tags:
            raise SchemaError(
                f"`prepare.{setting}`: `{name}` is neither categorical nor continuous after its ops",
                hint="end with an operator that says so, such as Categorify, Normalize or AddTags, and keep the name",
            )


def _check_context(fitted: FittedWorkflow) -> None:
    """Refuse features of the moment that a request could not have, or that are called like another column."""
    for name in fitted.schema.select(Tag.CONTEXT).names:
        if is_taken(name):
            raise ConfigError(
                f"`prepare.context` makes `{name}`, a name that features give to something else",
                hint='another one, by { op = "Rename", name = "..." }',
            )
        for step in fitted.prune(outputs=[name]).plan.steps:
            if isinstance(step.op, KeyedOp):
                raise ConfigError(
                    f"`prepare.context`: `{name}` comes from {type(step.op).__name__}, which looks at other rows",
                    hint="a request is one row: operators of the moment look at nothing else",
                )


def _finite(name: str) -> pl.Expr:
    """Missing where a number is NaN or infinite: no scale has a place for those."""
    return pl.when(pl.col(name).is_finite()).then(pl.col(name)).alias(name)


def _above(rating: pl.Expr, bar: float) -> pl.Expr:
    """False for a missing rating, and for NaN, which Polars takes to be above everything."""
    number = rating.cast(pl.Float64)
    return ((number > bar) & number.is_not_nan()).fill_null(False)


def prepare(recipe: Recipe, work: Path, *, step: str, again: Path | None = None) -> None:
    """Raw files to `work/split`, `work/workflow` and `work/features`, each written whole or not at all.

    `again`: the working folder of a recipe that is prepared. Its training rows are all there is then.
    """
    raw = read_data(recipe, again or work)
    if again is not None:
        raw = replace(raw, interactions=Dataset(again / "split/train", columns=list(raw.interactions.schema)))
    columns = raw.columns
    split = work / "split"
    split_rows(raw.interactions, columns, recipe.split, split, where=recipe.data.path)
    train = Dataset(split / "train")
    leave_last = recipe.split.kind == "leave_last"
    catalogue = catalogue_of(train, raw.items, columns) if recipe.prepare.untrained_items else None
    graph = plan(
        raw.items,
        columns,
        recipe.prepare,
        users=raw.users,
        catalogue=catalogue,
        ties_by_row=leave_last,
        seconds=None if columns.time is None else seconds_of(train.scan(), columns.time),
        context=raw.context,
    )
    fitted = graph.fit(train)
    _check_features(fitted, recipe.prepare)
    _check_context(fitted)
    fitted.save(work / "workflow", overwrite=True)
    parts = {name: Dataset(split / name) for name in ("train", KNOWN, "test") if (split / name).is_dir()}
    write_features(fitted, parts, raw, recipe, work / "features", step=step)
    _say_what_is_alike(fitted.schema.select(Tag.CONTEXT).names, work / "features/train")


def _say_what_is_alike(names: Sequence[str], rows: Path) -> None:
    """Name columns of the moment that say nothing: times in another unit than their operator was told are missing."""
    values = (
        pl.scan_parquet(list(data_files(rows))).select(pl.col(names).n_unique()).collect() if names else pl.DataFrame()
    )
    for name in values.columns:
        if values[name].item() == 1:
            note(
                f"warning: `prepare.context`: `{name}` is the same in every row; of times in whole numbers, `unit` "
                'says what they count: "s", "ms", "us" or "ns"'
            )


def write_features(
    fitted: FittedWorkflow,
    parts: Mapping[str, Dataset],
    raw: RawData,
    recipe: Recipe,
    out: Path,
    *,
    step: str,
) -> None:
    """The tables of docs/contracts.md under one manifest. `parts`: train, test and, of held-out users, known."""
    parents = {name: read_manifest(out.parent / name, name).sha256 for name in ("split", "workflow")}
    with write_artifact(out, "features", parents=parents, extra={"step": step}, overwrite=True) as draft:
        for name in ("train", "test"):
            shuffle = Shuffle.FULL if name == "train" else Shuffle.NONE
            rows = fitted.transform(parts[name], out_of_fold=True)
            rows.to_parquet(draft.path / name, shuffle=shuffle, seed=recipe.seed)
        untrained = recipe.prepare.untrained_items
        write_items(fitted, parts["train"], raw.items, raw.columns, draft.path / "items", untrained=untrained)
        if KNOWN in parts:
            write_users(fitted, parts["train"], None, raw.columns, draft.path / "users")
            held_out = draft.path / "held_out"
            write_strangers(fitted, parts[KNOWN], parts["test"], raw.columns, recipe.prepare, held_out)
        else:
            write_users(fitted, parts["train"], parts["test"], raw.columns, draft.path / "users")
