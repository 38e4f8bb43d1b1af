"""Columns that folders give (`year=2020/month=1/`): their types, over all files, and their values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import polars as pl
import pyarrow.parquet as pq

from falconet.etl.text_types import guess, parse

Pairs = Sequence[tuple[str, str | None]]


def hive_types(files: Iterable[Pairs], dtypes: Mapping[str, pl.DataType]) -> dict[str, pl.DataType]:
    """The type of each column: the one given, a date (2020-01-31), or what a CSV file with these values would have."""
    values: dict[str, list[str | None]] = {}
    for pairs in files:
        for name, value in pairs:
            values.setdefault(name, []).append(value)
    return {name: dtypes.get(name) or _type(pl.Series(found, dtype=pl.String)) for name, found in values.items()}


def _type(values: pl.Series) -> pl.DataType:
    if values.null_count() == len(values):
        return pl.String()
    dates = values.to_frame("x").select(parse(pl.col("x"), pl.Date()))["x"]
    return pl.Date() if dates.null_count() == values.null_count() else guess(values)


def hive_value(text: str | None, dtype: pl.DataType) -> object:
    """A folder's text as a value of a type; None where it is none."""
    return pl.select(parse(pl.lit(text, dtype=pl.String), dtype)).item()


def agrees(meta: pq.FileMetaData, name: str, text: str | None, dtype: pl.DataType) -> bool:
    """Whether the footer of a file says that its own column `name` holds nothing but what its folder says."""
    value = hive_value(text, dtype)
    for i in range(meta.num_row_groups):
        group = meta.row_group(i)
        found = next(c for c in map(group.column, range(group.num_columns)) if c.path_in_schema == name)
        facts = found.statistics
        if facts is None or (facts.null_count or 0) != (group.num_rows if value is None else 0):
            return False
        if value is not None and not (facts.has_min_max and facts.min == value and facts.max == value):
            return False
    return True
