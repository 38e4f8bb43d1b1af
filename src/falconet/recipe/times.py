"""Columns of times as raw files have them: moments, dates, or numbers that count since 1970, in a unit nobody names."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
_YEAR = 31_557_600  # seconds
_DAY = 86_400  # seconds


def unit_of(latest: float | None) -> int | None:
    """How many units a second has, of numbers that count since 1970 up to `latest`; None where they can be no times."""
    if latest is None:
        return None
    return next((unit for unit in UNITS.values() if _YEAR * unit <= latest < 230 * _YEAR * unit), None)


def date_of(rows: pl.LazyFrame, name: str) -> pl.Expr | None:
    """The day of a column of times, in UTC where they are numbers; None where they can be no times."""
    dtype, at = rows.collect_schema()[name], pl.col(name)
    if dtype == pl.Date:
        return at
    if isinstance(dtype, pl.Datetime):
        return at.dt.date()
    seconds = seconds_of(rows, name)
    return None if seconds is None else pl.from_epoch(seconds(at), "s").dt.date()


def seconds_of(rows: pl.LazyFrame, name: str) -> Callable[[pl.Expr], pl.Expr] | None:
    """What makes of a column of times whole seconds since 1970 (UTC), int64; None where they can be no times."""
    dtype = rows.collect_schema()[name]
    if dtype == pl.Date:
        return lambda at: at.cast(pl.Int32).cast(pl.Int64) * _DAY
    if isinstance(dtype, pl.Datetime):
        return lambda at: at.dt.timestamp("us") // 10**6
    unit = _unit(rows, name)
    return None if unit is None else lambda at: (at // unit).cast(pl.Int64, strict=False)


def _unit(rows: pl.LazyFrame, name: str) -> int | None:
    """That of a column of numbers."""
    at = pl.col(name)
    return unit_of(rows.select(at.max()).collect().item()) if rows.collect_schema()[name].is_numeric() else None
