"""The first step of a recipe: raw files to features, and the fitted workflow that made them.

work/data      the reader's output            work/workflow  the fitted ETL
work/split     raw rows, train and test       work/features  train, test, users, items (docs/contracts.md)

Where whole users are held out, `split/known` is what is known of them and `features/held_out` their table.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from falconet import ops
from falconet.errors import ColumnNotFoundError, ConfigError, SchemaError
from falconet.etl.dataset import Dataset
from falconet.etl.selector import Node
from falconet.etl.workflow import FittedWorkflow, Workflow
from falconet.etl.writer import Shuffle
from falconet.io.artifact import read_manifest, write_artifact
from falconet.recipe.config import ColumnsConfig, PrepareConfig, Recipe
from falconet.recipe.names import ROW
from falconet.recipe.source import RawData, read_data
from falconet.recipe.split import KNOWN, split_rows
from falconet.recipe.tables import write_items, write_strangers, write_users


def item_features(items: pl.DataFrame | None, columns: ColumnsConfig) -> tuple[list[str], list[str]]:
    """The categorical and the continuous columns of the items that become features.

    Without `columns.item_features`: numbers, lists of strings or of whole numbers, and strings with at most a tenth as
    many values as rows.
    """
    if items is None:
        return [], []
    names = columns.item_features
    chosen = [n for n in items.columns if n not in (columns.item, columns.title)] if names is None else list(names)
    categorical, continuous = [], []
    for name in chosen:
        if name not in items.columns:
            raise ColumnNotFoundError.of(name, items.columns, where="the table of items (`columns.item_features`)")
        if name in (columns.item, columns.title):
            raise ConfigError(f"`columns.item_features` has `{name}`, the items' id or title", hint="leave it out")
        dtype = items[name].dtype
        few = names is not None or (dtype == pl.String and items[name].n_unique() <= max(2, len(items) // 10))
        inner = dtype.inner if isinstance(dtype, (pl.List, pl.Array)) else None
        if (inner is not None and (inner.is_integer() or inner == pl.String)) or (dtype == pl.String and few):
            categorical.append(name)
        elif dtype.is_numeric():
            continuous.append(name)
        elif names is not None:
            raise SchemaError(
                f"`columns.item_features` has `{name}`, which holds {dtype}",
                hint="features are strings, numbers, or lists of strings or whole numbers",
            )
    return categorical, continuous


def plan(
    items: pl.DataFrame | None, columns: ColumnsConfig, prepare: PrepareConfig, *, ties_by_row: bool = False
) -> Workflow:
    """The operator graph: ids, the item's own columns, the history, and the target.

    `ties_by_row`: what a user did earlier at the same time is history too, as a split by place in the file needs it.
    """
    user = [columns.user] >> ops.Categorify() >> ops.AddTags(tags=("user", "id"))
    item = [columns.item] >> ops.Categorify() >> ops.AddTags(tags=("item", "id"))
    outputs: Node = user + item
    categorical, continuous = item_features(items, columns)
    if items is not None and (categorical or continuous):
        known = items.select(columns.item, *categorical, *(_finite(name) for name in continuous))
        joined = [columns.item] >> ops.JoinExternal(known, on=columns.item)
        if categorical:
            outputs = outputs + (joined[categorical] >> ops.Categorify() >> ops.AddTags(tags=("item",)))
        if continuous:
            filled = joined[continuous] >> ops.Normalize() >> ops.FillMissing(fill_val=0.0)
            outputs = outputs + (filled >> ops.AddTags(tags=("item",)))
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
    return Workflow(outputs)


def _finite(name: str) -> pl.Expr:
    """Missing where a number is NaN or infinite: no scale has a place for those."""
    return pl.when(pl.col(name).is_finite()).then(pl.col(name)).alias(name)


def _above(rating: pl.Expr, bar: float) -> pl.Expr:
    """False for a missing rating, and for NaN, which Polars takes to be above everything."""
    number = rating.cast(pl.Float64)
    return ((number > bar) & number.is_not_nan()).fill_null(False)


def prepare(recipe: Recipe, work: Path, *, step: str) -> None:
    """Raw files to `work/split`, `work/workflow` and `work/features`, each written whole or not at all."""
    raw = read_data(recipe, work)
    columns = raw.columns
    split = work / "split"
    split_rows(raw.interactions, columns, recipe.split, split, where=recipe.data.path)
    train = Dataset(split / "train")
    leave_last = recipe.split.kind == "leave_last"
    fitted = plan(raw.items, columns, recipe.prepare, ties_by_row=leave_last).fit(train)
    fitted.save(work / "workflow", overwrite=True)
    parts = {name: Dataset(split / name) for name in ("train", KNOWN, "test") if (split / name).is_dir()}
    write_features(fitted, parts, raw, recipe, work / "features", step=step)


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
        write_items(fitted, parts["train"], raw.items, raw.columns, draft.path / "items")
        if KNOWN in parts:
            nothing = Dataset(parts["test"].scan().head(0).collect())
            write_users(fitted, parts["train"], nothing, raw.columns, draft.path / "users")
            held_out = draft.path / "held_out"
            write_strangers(fitted, parts[KNOWN], parts["test"], raw.columns, recipe.prepare, held_out)
        else:
            write_users(fitted, parts["train"], parts["test"], raw.columns, draft.path / "users")
