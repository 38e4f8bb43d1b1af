"""What people did while a bundle was served, as rows like those of a recipe's raw files: from a store, or exported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from falconet.errors import ColumnNotFoundError, ConfigError, DataError, suggest
from falconet.etl.dataset import Dataset
from falconet.etl.split import NUMBER
from falconet.io.artifact import MANIFEST, read_artifact
from falconet.io.private import private_folder
from falconet.progress import note
from falconet.recipe.config import ColumnsConfig
from falconet.recipe.times import UNITS, unit_of
from falconet.serve.events import HIDE, RATING, Id
from falconet.serve.export import FORMAT, KIND, Said, read_said, said_in
from falconet.serve.store import Store
from falconet.serve.stores import open_existing

AT = "event_time"  # microseconds since 1970, beside the recipe's own columns
_ARRIVAL, _RATING = "__arrival__", "__rating__"
_COLUMNS = ("event_id", "user_id", "item_id", "type", "value", "time")
_STORES = ("postgresql", "postgres", "redis", "rediss", "unix")
_LATEST = (2**63 - 1) // 1000  # microseconds: in the year 2262, where nanoseconds in 64 bits end


@dataclass(frozen=True)
class Collected:
    """All events of a source, in order of arrival, not in memory; and what its items and users are said to be."""

    events: pl.LazyFrame
    items: Said = ()
    users: Said = ()


def collect(source: str) -> Collected:
    """What a store or a folder of exported events holds.

    Raises ConfigError or DataError where there is none, ColumnNotFoundError or DataError for files that are something
    else.
    """
    if source.partition("://")[0] in _STORES or (Path(source).is_file() and Path(source).suffix != ".parquet"):
        store = open_existing(source)
        try:
            return _of_store(store)
        finally:
            store.close()
    if "://" not in source and not Path(source).exists():
        raise DataError(
            f"no events at `{source}`",
            hint="the store that `falconet serve` keeps, or a folder of `falconet events export`",
        )
    said: tuple[Said, Said] = ((), ())
    if (Path(source) / MANIFEST).is_file():
        manifest = read_artifact(source, KIND)
        if manifest.extra.get("events_format") != FORMAT:
            raise DataError(
                f"`{source}` has events format {manifest.extra.get('events_format')}, this version reads {FORMAT}"
            )
        said = read_said(Path(source))
    data = Dataset(source)
    for name in _COLUMNS:
        if name not in data.schema:
            raise ColumnNotFoundError.of(name, data.schema, where=f"`{source}`, which should hold events,")
    found = data.scan().select(_COLUMNS)
    for name, dtype in found.collect_schema().items():
        if not _may_be(name, dtype):
            raise DataError(
                f"`{source}`, which should hold events, has `{name}` as {dtype}",
                hint="`falconet events export` writes such files",
            )
    return Collected(found, *said)


def _may_be(name: str, dtype: pl.DataType) -> bool:
    """Whether a column of exported events may have this type."""
    if name in ("event_id", "type"):
        return dtype == pl.String
    if name == "time":
        return dtype == pl.Int64
    return dtype == pl.Null or (dtype.is_numeric() if name == "value" else dtype == pl.String or dtype.is_integer())


def _of_store(store: Store) -> Collected:
    folder = private_folder()
    none = pl.DataFrame(schema=dict.fromkeys(_COLUMNS, pl.Int64) | {"event_id": pl.String, "type": pl.String})
    files: list[Path] = []
    for batch in store.export():
        if batch.num_rows:
            files.append(folder / f"part-{len(files):06d}.parquet")
            pl.DataFrame(batch).select(_COLUMNS).write_parquet(files[-1], compression="lz4")
    return Collected(pl.scan_parquet(files) if files else none.lazy(), *said_in(store))


def chosen(events: pl.LazyFrame, types: Sequence[str], where: str) -> pl.LazyFrame:
    """The events of these types (none: all but `hide`) of people who are known by a `user_id`.

    Raises ConfigError for a type that no event has.
    """
    there = events.select(pl.col("type").unique()).collect()["type"].to_list() if types else []
    for name in types:
        if name not in there:
            hint = suggest(name, there) if there else None
            raise ConfigError(f"`refresh.types` has `{name}`, no event of `{where}` is of that type", hint=hint)
    wanted = pl.col("type").is_in(list(types)) if types else pl.col("type") != HIDE
    return events.filter(wanted & pl.col("user_id").is_not_null())


def as_rows(events: pl.DataFrame, like: pl.LazyFrame, columns: ColumnsConfig) -> pl.DataFrame:
    """One row for each user and item of the events, with the columns and types of `like`, by time, and `event_time`.

    An item that somebody met several times stands where it was met last; its rating is that of the last event that has
    one. What the moment was like is missing, but for its time: events do not say it. Events whose ids or times cannot
    be those of the raw files are left out, with a note. Raises DataError where times cannot be put in order with those
    of `like`.
    """
    types = like.collect_schema()
    known = events.with_columns(
        _id("user_id", events.schema["user_id"], types[columns.user]).alias(columns.user),
        _id("item_id", events.schema["item_id"], types[columns.item]).alias(columns.item),
        pl.col("time").alias(AT),
    ).drop_nulls([columns.user, columns.item])
    if lost := len(events) - len(known):
        kinds = " and ".join(f"`{name}` is {types[name]}" for name in (columns.user, columns.item))
        note(f"{lost:,} of {len(events):,} events have ids that the raw files cannot have ({kinds}): left out")
    known, before = _in_time(known, like, columns), len(known)
    if lost := before - len(known):
        note(f"{lost:,} of {len(events):,} events have times that the raw files cannot have: left out")
    rating = pl.col("value").filter(pl.col("type") == RATING).drop_nulls().last()
    rows = (
        known.with_row_index(_ARRIVAL)
        .sort(AT, _ARRIVAL)
        .group_by(columns.user, columns.item, maintain_order=True)
        .agg(pl.col(AT, _ARRIVAL).last(), rating.alias(_RATING))
        .sort(AT, _ARRIVAL)
    )
    made = [pl.col(columns.user), pl.col(columns.item), pl.col(AT)]
    if columns.time is not None:
        made.append(_time(like, columns.time).cast(types[columns.time]).alias(columns.time))
    if columns.rating is not None:
        given = pl.col(_RATING).cast(types[columns.rating], strict=False).alias(columns.rating)
        made.append(pl.when(given.cast(pl.Float64).is_finite()).then(given))  # else it is none: anybody may send 1e300
    roles = {NUMBER, columns.user, columns.item, columns.time, columns.rating}
    made += [pl.lit(None, dtype).alias(name) for name, dtype in types.items() if name not in roles]
    return rows.select(made)


def ids_like(ids: Sequence[Id], dtype: pl.DataType) -> pl.Series:
    """Ids as a column of the raw files holds them; null for what it cannot hold."""
    whole = all(isinstance(value, int) for value in ids)
    given = pl.Series("id", ids if whole else list(map(str, ids)), dtype=pl.Int64 if whole else pl.String)
    return given.to_frame().select(_id("id", given.dtype, dtype)).to_series()


def _id(name: str, given: pl.DataType, wanted: pl.DataType) -> pl.Expr:
    """As the raw files have it; null where they cannot: "7" is 7, "x7" and "07" are no whole numbers."""
    column = pl.col(name)
    if wanted == pl.String or given != pl.String:
        return column.cast(wanted, strict=False)
    number = column.cast(pl.UInt64 if wanted == pl.UInt64 else pl.Int64, strict=False)
    return pl.when(number.cast(pl.String) == column).then(number).cast(wanted, strict=False)


def _in_time(events: pl.DataFrame, like: pl.LazyFrame, columns: ColumnsConfig) -> pl.DataFrame:
    """The events whose times can be times of the raw files; anybody may send one of the year 300,000."""
    events = events.filter(pl.col(AT) <= _LATEST)
    if columns.time is None:
        return events
    dtype = like.collect_schema()[columns.time]
    return events.filter(_time(like, columns.time).cast(dtype, strict=False).is_not_null())


def _time(like: pl.LazyFrame, name: str) -> pl.Expr:
    """The time of an event in the unit of the raw files, which their latest time tells where they hold numbers."""
    dtype = like.collect_schema()[name]
    at = pl.col(AT)
    if isinstance(dtype, pl.Datetime):
        moment = at.cast(pl.Datetime("us", "UTC"))
        return moment.dt.convert_time_zone(dtype.time_zone) if dtype.time_zone else moment.dt.replace_time_zone(None)
    if dtype == pl.Date:
        return at.cast(pl.Datetime("us"))
    latest = like.select(pl.col(name).max()).collect().item()
    if (unit := unit_of(latest)) is None:
        raise DataError(
            f"the latest `{name}` of the raw files is {latest}, which is no time since 1970 in {', '.join(UNITS)}",
            hint="events cannot be put in order with such times: convert the raw files, and `falconet run` anew",
        )
    scaled = at * (unit // 10**6) if unit >= 10**6 else at // (10**6 // unit)
    return at / (10**6 / unit) if dtype.is_float() else scaled
