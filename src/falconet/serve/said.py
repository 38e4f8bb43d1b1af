"""What callers say of items and users: values by column, checked against the types of the tables they take part in."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any

import polars as pl

from falconet.errors import ColumnNotFoundError, DataError

LONGEST = 100_000  # characters of what is said of one item or user, as JSON
_FLOAT32 = 3.4e38  # the largest there is, nearly
_WORDS = {"integer": "a whole number", "float": "a number", "string": "a text", "bool": "true or false"}


def check_said(said: Mapping[str, Any], columns: Mapping[str, pl.DataType], *, field: str, what: str) -> dict[str, Any]:
    """The values as a store keeps them. None says that a value is not known.

    Raises ColumnNotFoundError for a name that `columns` does not have, DataError for a value of another type; both name
    the field.
    """
    if len(json.dumps(said, default=str)) > LONGEST:
        raise DataError(f"`{field}` has more than {LONGEST:,} characters", hint="say less of it")
    for name, value in said.items():
        if name not in columns:
            raise ColumnNotFoundError.of(name, columns, where=f"`{field}`: {what}")
        if not fits(value, columns[name]):
            raise DataError(f"`{field}.{name}` is {value!r}", hint=f"{_wanted(columns[name])}, or null")
    return dict(said)


def as_values(values: list[Any], dtype: pl.DataType) -> pl.Series:
    """Checked values as a column."""
    if isinstance(dtype, (pl.Date, pl.Datetime)):
        moments = [None if value is None else dt.datetime.fromisoformat(value) for value in values]
        zoned = isinstance(dtype, pl.Datetime) and dtype.time_zone is not None
        plain = [m if m is None or m.tzinfo is None else m.astimezone(dt.UTC).replace(tzinfo=None) for m in moments]
        times = pl.Series(plain, dtype=pl.Datetime("us"))
        return times.dt.replace_time_zone("UTC").cast(dtype) if zoned else times.cast(dtype)
    return pl.Series(values, dtype=dtype, strict=False)


def fits(value: Any, dtype: pl.DataType) -> bool:
    """Whether a column of this type can hold what is said; None, which says nothing is known, it always can."""
    return value is None or _fits(value, dtype)


def _fits(value: Any, dtype: pl.DataType) -> bool:
    if isinstance(dtype, (pl.List, pl.Array)):
        return isinstance(value, list) and all(one is not None and _fits(one, dtype.inner) for one in value)  # type: ignore[arg-type]
    if dtype == pl.Boolean:
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if dtype.is_integer():
        return isinstance(value, int) and bool(pl.Series([value], dtype=dtype, strict=False).null_count() == 0)
    if dtype.is_float():
        return isinstance(value, (int, float)) and abs(value) < (_FLOAT32 if dtype == pl.Float32 else 1e300)
    if isinstance(dtype, (pl.Date, pl.Datetime)):
        try:  # there and back: a moment may be outside of what the type, or its zone, can hold
            return as_values([value], dtype).to_list() != [None]
        except (TypeError, ValueError, OverflowError, pl.exceptions.InvalidOperationError):
            return False
    return dtype == pl.String and isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def _wanted(dtype: pl.DataType) -> str:
    if isinstance(dtype, (pl.List, pl.Array)):
        return f"a list, each of it {_wanted(dtype.inner)}"  # type: ignore[arg-type]
    if isinstance(dtype, (pl.Date, pl.Datetime)):
        return "a date or time like 2024-05-31T17:45:00"
    kind = "integer" if dtype.is_integer() else "float" if dtype.is_float() else str(dtype).lower()
    return _WORDS.get("bool" if kind == "boolean" else kind, f"nothing: values of type {dtype} cannot be said")
