"""Sixteen rows per type, to see whether an expression still means what it meant."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from falconet.etl import expressions
from falconet.etl.types import polars_type
from falconet.schema import Column

ROWS = 16
ANSWER = "__answer__"
_NUMBERS = [None, 0, 1, -1, 2, 3, 4, 5, 7, 10, 42, 100, 127, 250, 1_000, 100_000]
_FLOATS = [None, float("nan"), 0.0, -1.0, 0.5, 1.0, 2.5, 3.0, 3.5, 4.0, 5.0, 0.1, 1e-9, 1e9, -273.15, 12345.678]
_TEXTS = [
    None,
    "",
    "a",
    "b",
    "A",
    "ab",
    "é",
    "1",
    "3.5",
    "x|y",
    "x y",
    " z ",
    "2020-01-31",
    "2020-01-31 12:00:00",
    "(a)",
    "Ω1",
]
_TIMES = [dt.datetime(1970, 1, 1) + dt.timedelta(days=397 * n, hours=7 * n, minutes=13 * n) for n in range(ROWS - 1)]


def probe_frames(exprs: Sequence[pl.Expr], names: Sequence[str], columns: Mapping[str, Column]) -> list[pl.DataFrame]:
    """The rows for expressions of an operator: one frame per selected column where they are of each by itself.

    `names` are selected, `columns` describes all that is read.
    """
    roots = dict.fromkeys(name for expr in exprs for name in expressions.columns_of(expressions.to_tree(expr)))
    beside = [values(columns[name]).alias(name) for name in roots if name != expressions.HERE]
    if expressions.HERE not in roots:
        return [pl.DataFrame(beside)]
    return [pl.DataFrame([values(columns[name]).alias(expressions.HERE), *beside]) for name in names]


def answers(frame: pl.DataFrame, exprs: Sequence[pl.Expr]) -> pl.DataFrame:
    """The rows that all expressions can answer, with their answers."""
    asked = {f"{ANSWER}{i}": expr for i, expr in enumerate(exprs)}
    try:
        return frame.with_columns(**asked)
    except pl.exceptions.PolarsError:  # some row has a value that a strict cast refuses: keep the others
        rows = [row for i in range(len(frame)) if (row := _one(frame[i : i + 1], asked)) is not None]
        return pl.concat(rows) if rows else frame.head(0).with_columns(**asked)


def _one(row: pl.DataFrame, asked: Mapping[str, pl.Expr]) -> pl.DataFrame | None:
    try:
        return row.with_columns(**asked)
    except pl.exceptions.PolarsError:
        return None


def values(column: Column) -> pl.Series:
    """Sixteen values of a column's type, null first."""
    dtype = polars_type(column)
    if isinstance(dtype, (pl.List, pl.Array)):
        inner = values(Column(name=column.name, dtype=column.dtype)).to_list()
        size = dtype.size if isinstance(dtype, pl.Array) else None
        lists: list[Any] = [
            None,
            *(inner[: size or n] if size is None or size <= ROWS else None for n in range(ROWS - 1)),
        ]
        return pl.Series(column.name, lists, dtype=dtype, strict=False)
    if dtype == pl.Boolean:
        return pl.Series(column.name, [None, *[True, False] * 8][:ROWS], dtype=dtype)
    if dtype == pl.String:
        return pl.Series(column.name, _TEXTS)
    if dtype == pl.Binary:
        return pl.Series(column.name, [None if text is None else text.encode() for text in _TEXTS])
    if dtype.is_float():
        return pl.Series(column.name, _FLOATS, dtype=pl.Float64).cast(dtype)
    if dtype.is_temporal():
        times = pl.Series(column.name, [None, *_TIMES], dtype=pl.Datetime("us"))
        if isinstance(dtype, pl.Duration):
            return times.cast(pl.Int64).cast(dtype)
        if isinstance(dtype, pl.Datetime):
            return times.dt.replace_time_zone(dtype.time_zone).cast(dtype)
        return times.dt.time() if dtype == pl.Time else times.cast(dtype)
    return pl.Series(column.name, _NUMBERS, dtype=pl.Int64).cast(dtype, strict=False)
