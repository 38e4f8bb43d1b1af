"""The features of a refresh: what was known and what happened since, through a workflow that has learned on.

work/refresh/NNNN/events   new events as rows, the ids of all events used so far, what was said of items and users
                 /split    train: all rows up to now; test: the newest of some people
                 /workflow, /features: as `prepare` makes them
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from falconet.errors import ArtifactError, DataError
from falconet.etl.dataset import Dataset
from falconet.etl.hash_expr import hash_expr
from falconet.etl.rejoin import joined_table, with_table
from falconet.etl.split import NUMBER
from falconet.etl.workflow import FittedWorkflow
from falconet.io.artifact import Draft, read_artifact, read_manifest, write_artifact
from falconet.progress import note
from falconet.recipe.collect import Collected, as_rows, chosen, ids_like
from falconet.recipe.config import ColumnsConfig, Recipe
from falconet.recipe.generations import Generation
from falconet.recipe.names import inner_columns
from falconet.recipe.prepare import write_features
from falconet.recipe.source import RawData, read_data
from falconet.recipe.split import KNOWN
from falconet.serve.export import Said, read_said, write_said

KIND = "new events"
_PARTS = ("train", KNOWN, "test")


@dataclass(frozen=True)
class NewEvents:
    """The rows of a refresh: users, items, times and ratings as in the raw files, and when the events were."""

    rows: pl.DataFrame
    items: Said
    users: Said
    events: int


def keep_events(recipe: Recipe, base: Generation, made: Generation, found: Collected, source: str) -> None:
    """Write the events that no refresh has used yet to `events`.

    Raises DataError where there are none, or nothing can be held out to compare by: then none are kept, so that the
    next refresh takes all that there are by then.
    """
    events, used = chosen(found.events, recipe.refresh.types, source), _used(base)
    new = (
        events.join(used.lazy(), on="event_id", how="anti", maintain_order="left")
        .unique("event_id", keep="first", maintain_order=True)
        .collect()
    )
    if not len(new):
        kinds = f" of type {', '.join(recipe.refresh.types)}" if recipe.refresh.types else ""
        there = events.select(pl.len()).collect().item()
        raise DataError(
            f"no new events{kinds} in `{source}`: {there:,} are there, and all were learned from",
            hint="of people with a `user_id`; `hide` is no interaction",
        )
    rows = as_rows(new, _before(base), inner_columns(recipe.columns))
    if recipe.split.min_rating is not None:
        rating = inner_columns(recipe.columns).rating
        assert rating is not None
        kept = rows.filter(pl.col(rating) >= recipe.split.min_rating)
        if len(kept) < len(rows):
            lost = f"{len(rows) - len(kept):,} of {len(rows):,} new rows"
            note(f"{lost} have no rating from `split.min_rating` on: left out")
        rows = kept
    _newest(rows, _before(base), inner_columns(recipe.columns))
    extra = {**_taken(recipe, base, source), "events": len(new)}
    with write_artifact(made.work / "events", KIND, extra=extra, overwrite=True) as draft:
        _write(draft, "rows", rows)
        _write(draft, "ids", pl.concat([used, new.select("event_id")]))
        write_said(draft.path, found.items, found.users)


def is_kept(recipe: Recipe, base: Generation, made: Generation, source: str) -> bool:
    """Whether the events of an unfinished refresh from this base and source, of the same types, are there."""
    try:
        extra = read_artifact(made.work / "events", KIND).extra
    except ArtifactError:
        return False
    return {name: extra.get(name) for name in ("source", "base", "types")} == _taken(recipe, base, source)


def _taken(recipe: Recipe, base: Generation, source: str) -> dict[str, Any]:
    """What says which events a refresh takes."""
    return {"source": source, "base": _name(base), "types": list(recipe.refresh.types)}


def read_events(made: Generation) -> NewEvents:
    """What `keep_events` wrote."""
    folder = made.work / "events"
    rows = pl.read_parquet(folder / "rows/part-00000.parquet")
    return NewEvents(rows, *read_said(folder), read_manifest(folder, KIND).extra["events"])


def learn_on(recipe: Recipe, work: Path, base: Generation, made: Generation, *, step: str) -> None:
    """Split, workflow and features of a refresh."""
    events = read_events(made)
    raw = _as_said(read_data(recipe, work), events)
    columns = raw.columns
    before, known = _before(base), pl.scan_parquet(_files(base.work / "split", ("train",)))
    types = before.collect_schema()
    first = before.select(pl.col(NUMBER).max()).collect().item() + 1
    rows = events.rows.with_row_index(NUMBER, first).with_columns(pl.col(NUMBER).cast(types[NUMBER]))
    test = _held_out(rows, before, columns, recipe.refresh.held_out, int(made.name))
    others = pl.scan_parquet(_files(base.work / "split", _PARTS[1:]))
    known_others = known.select(NUMBER).join(others.select(NUMBER), on=NUMBER, how="semi")
    late = others.join(known_others, on=NUMBER, how="anti").sort(NUMBER).collect()
    train = rows.join(test.select(NUMBER), on=NUMBER, how="anti", maintain_order="left")
    added = pl.concat([late, train.select(late.columns)])
    parents = {"events": read_manifest(made.work / "events", KIND).sha256}
    with write_artifact(made.work / "split", "split", parents=parents, overwrite=True) as draft:
        names = known.collect_schema().names()
        _write(draft, "train", pl.concat([known, added.lazy().select(names)]))
        _write(draft, "test", test.select(names))
        _write(draft, "asked", test)
    fitted = FittedWorkflow.load(base.work / "workflow")
    for key, table in ((columns.item, raw.items), (columns.user, raw.users)):
        if table is not None and (joined := joined_table(fitted, key)) is not None:
            fitted = with_table(fitted, key, _like(table, joined))
    parts = {name: Dataset(made.work / "split" / name) for name in ("train", "test")}
    fitted = fitted.partial_fit(Dataset(added))
    fitted = replace(fitted, fitted_on=parts["train"].fingerprint)  # the rows that it has seen, in their order
    fitted.save(made.work / "workflow", overwrite=True)
    write_features(fitted, parts, raw, recipe, made.work / "features", step=step)


def _held_out(
    rows: pl.DataFrame, before: pl.LazyFrame, columns: ColumnsConfig, share: float, seed: int
) -> pl.DataFrame:
    """The newest rows of a share of the people, drawn by their ids."""
    user, newest = columns.user, _newest(rows, before, columns)
    order = hash_expr(pl.col(user), seed, rows.schema[user])
    return newest.sort(order, user).head(math.ceil(len(newest) * share)).sort(NUMBER)


def _newest(rows: pl.DataFrame, before: pl.LazyFrame, columns: ColumnsConfig) -> pl.DataFrame:
    """The newest new row of each person, of an item they had not met; of people of whom something else is known.

    Raises DataError where there is none.
    """
    user, pair = columns.user, [columns.user, columns.item]
    met = before.select(pair).join(rows.lazy().select(user), on=user, how="semi").unique().collect()
    fresh = rows.join(met, on=pair, how="anti", maintain_order="left")
    newest = fresh.group_by(user, maintain_order=True).last().select(rows.columns)
    others = pl.concat([met.select(user), rows.group_by(user).len().filter(pl.col("len") > 1).select(user)])
    newest = newest.join(others.unique(), on=user, how="semi", maintain_order="left")
    if not len(newest):
        raise DataError(
            f"no new row (of {len(rows):,}) is of somebody known and of an item they had not met: nothing can be held "
            "out to compare the bundles by",
            hint="refresh when there are more events; what was held out for the test counts as met",
        )
    return newest


def _as_said(raw: RawData, events: NewEvents) -> RawData:
    """The tables of items and users with what was said of them while the bundle was served."""
    items, users, columns = raw.items, raw.users, raw.columns
    types = raw.interactions.schema
    if events.items:
        titled = [(i, {columns.title if n == "title" else n: v for n, v in said.items()}) for i, said in events.items]
        if items is None and columns.title is not None:
            items = pl.DataFrame(schema={columns.item: types[columns.item], columns.title: pl.String})
        items = None if items is None else _with_said(items, columns.item, titled, "items")
    if events.users and users is not None:
        users = _with_said(users, columns.user, events.users, "users")
    return replace(raw, items=items, users=users)


def _with_said(
    table: pl.DataFrame, key: str, said: Sequence[tuple[Any, Mapping[Any, Any]]], whose: str
) -> pl.DataFrame:
    """A table of one row for each id, with other values, and rows for other ids."""
    if unknown := sorted({str(name) for _, values in said for name in values if name not in table.columns}):
        names = ", ".join(f"`{name}`" for name in unknown)
        note(f"the {whose} of the recipe have no column {names}: what was said of it is left out")
    ids = ids_like([one for one, _ in said], table.schema[key])
    made: dict[str, Any] = {key: ids}
    for name, dtype in table.schema.items():
        if name != key:
            made[name] = pl.Series(name, [values.get(name) for _, values in said], dtype=dtype, strict=False)
            made[f"{name}__said__"] = pl.Series([name in values for _, values in said])
    new = pl.DataFrame(made).drop_nulls(key).unique(key, keep="last", maintain_order=True)
    both = table.join(new, on=key, how="full", coalesce=True, suffix="__new__", maintain_order="left_right")
    return both.select(
        key,
        *(
            pl.when(pl.col(f"{name}__said__").fill_null(False))
            .then(pl.col(f"{name}__new__"))
            .otherwise(pl.col(name))
            .alias(name)
            for name in table.columns
            if name != key
        ),
    ).select(table.columns)


def _like(table: pl.DataFrame, joined: pl.DataFrame) -> pl.DataFrame:
    """The columns that a join knows, of its types; no scale has a place for infinite numbers."""
    made = table.select(joined.columns).cast(dict(joined.schema), strict=False)  # type: ignore[arg-type]
    finite = pl.selectors.float()
    return made.with_columns(pl.when(finite.is_finite()).then(finite))


def _used(base: Generation) -> pl.DataFrame:
    """The ids of the events that a bundle was made from."""
    file = base.work / "events/ids/part-00000.parquet"
    return pl.read_parquet(file) if file.is_file() else pl.DataFrame(schema={"event_id": pl.String})


def _before(base: Generation) -> pl.LazyFrame:
    return pl.scan_parquet(_files(base.work / "split", _PARTS))


def _files(folder: Path, parts: Sequence[str]) -> list[Path]:
    return [file for part in parts if (folder / part).is_dir() for file in sorted((folder / part).glob("*.parquet"))]


def _name(base: Generation) -> str:
    """What stands for a bundle and all that it was made from."""
    return read_manifest(base.bundle, "bundle").sha256


def _write(draft: Draft, name: str, rows: pl.DataFrame | pl.LazyFrame) -> None:
    (draft.path / name).mkdir()
    rows.lazy().sink_parquet(draft.path / name / "part-00000.parquet", compression="lz4", row_group_size=131_072)
