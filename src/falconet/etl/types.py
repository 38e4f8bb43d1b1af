"""Between a schema's type names (Arrow's) and Polars types."""

from __future__ import annotations

import datetime as dt
import math
import re
from typing import Any

import polars as pl
from polars.datatypes import DataTypeClass

from falconet.errors import SchemaError
from falconet.schema import Column, List, Tag

_TYPES: dict[str, pl.DataType] = {
    "int8": pl.Int8(),
    "int16": pl.Int16(),
    "int32": pl.Int32(),
    "int64": pl.Int64(),
    "uint8": pl.UInt8(),
    "uint16": pl.UInt16(),
    "uint32": pl.UInt32(),
    "uint64": pl.UInt64(),
    "float16": pl.Float16(),
    "float32": pl.Float32(),
    "float64": pl.Float64(),
    "bool": pl.Boolean(),
    "string": pl.String(),
    "binary": pl.Binary(),
    "date32[day]": pl.Date(),
    "time64[ns]": pl.Time(),
    "null": pl.Null(),
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_UNITS = re.compile(r"(timestamp|duration)\[(ms|us|ns)(?:, tz=(.+))?\]")


def polars_type(column: Column) -> pl.DataType:
    """The Polars type of a schema's column: List for ragged lists, Array for lists of one length.

    Raises SchemaError where Polars has none.
    """
    inner = _TYPES.get(column.dtype)
    if inner is None:
        found = _UNITS.fullmatch(column.dtype)
        if found is None:
            raise SchemaError(
                f"column `{column.name}` has the type {column.dtype}, which the ETL does not know",
                hint=f"{', '.join(_TYPES)}, timestamp[us], timestamp[us, tz=UTC], duration[us]",
            )
        kind, unit, zone = found.groups()
        inner = pl.Datetime(unit, zone) if kind == "timestamp" else pl.Duration(unit)  # type: ignore[arg-type]
    if column.list is None:
        return inner
    return pl.List(inner) if column.list == "ragged" else pl.Array(inner, int(column.list))


def column_of(name: str, dtype: pl.DataType) -> Column:
    """A column described by its Polars type alone: floats are continuous, nothing else is guessed.

    Categories become strings. Raises SchemaError for types that have no place in a schema (structs, lists of lists).
    """
    shape: List = None
    inner = dtype
    if isinstance(dtype, pl.List):
        shape, inner = "ragged", _instance(dtype.inner)
    elif isinstance(dtype, pl.Array):
        shape, inner = dtype.size, _instance(dtype.inner)
    if isinstance(inner, (pl.Categorical, pl.Enum)):
        text = "string"
    elif isinstance(inner, pl.Datetime):
        zone = f", tz={inner.time_zone}" if inner.time_zone else ""
        text = f"timestamp[{inner.time_unit}{zone}]"
    elif isinstance(inner, pl.Duration):
        text = f"duration[{inner.time_unit}]"
    elif inner in _NAMES:
        text = _NAMES[inner]
    else:
        raise placeless(name, dtype)
    tags = frozenset({Tag.CONTINUOUS}) if inner.is_float() else frozenset[str]()
    return Column(name=name, dtype=text, list=shape, tags=tags)


def has_place(dtype: pl.DataType) -> bool:
    """Whether a schema can describe a column of this type; the others may stand in the data beside it."""
    inner = element(dtype)
    return not (inner.is_nested() or inner.is_decimal() or inner.is_object() or inner in (pl.Int128, pl.UInt128))


def placeless(name: str, dtype: pl.DataType) -> SchemaError:
    """What to say of a column that a schema cannot describe."""
    numbers = f'`Dataset(…, dtypes={{"{name}": "float64"}})` reads it as floats'
    return SchemaError(
        f"column `{name}` has the type {dtype}, which a schema cannot describe",
        hint=numbers if dtype.is_numeric() else "convert it, or leave it out: `Dataset(…, columns=[…])`",
    )


def value_of(value: Any, dtype: pl.DataType, *, what: str, name: str) -> Any:
    """`value` as a column of this type holds it: a whole number for integers, rounded for Float32, bytes for Binary.

    Raises SchemaError, with `what` it is and the column's `name`, where the type has no such value.
    """
    held: Any = None
    if dtype.is_integer():
        held = int(value) if isinstance(value, (int, float)) and value == math.floor(value) else None
        if held is not None and not bounds(dtype)[0] <= held <= bounds(dtype)[1]:
            held = None
    elif dtype.is_float():
        held = float(value) if isinstance(value, (int, float)) else None
        if held is not None and dtype != pl.Float64:
            held = pl.Series([held]).cast(dtype).item()
            held = None if math.isinf(held) and not math.isinf(value) else held
    elif dtype == pl.Boolean:
        held = bool(value) if value in (True, False) else None
    elif dtype == pl.Binary:
        held = value.encode() if isinstance(value, str) else None
    elif isinstance(dtype, pl.Datetime):
        fits = isinstance(value, dt.datetime) and (value.tzinfo is None) == (dtype.time_zone is None)
        held = value if fits else None
    elif dtype == pl.Date:
        held = value if isinstance(value, dt.date) and not isinstance(value, dt.datetime) else None
    else:
        held = value if dtype == pl.String and isinstance(value, str) else None
    if held is None:
        raise SchemaError(
            f"{what}={value!r} does not fit `{name}`, which is {dtype}", hint="give a value of the column's own type"
        )
    return held


def element(dtype: pl.DataType) -> pl.DataType:
    """The type of a list's elements; other types are their own."""
    return _instance(dtype.inner) if isinstance(dtype, (pl.List, pl.Array)) else dtype


def width(dtype: pl.DataType) -> int:
    """The bits of a type of numbers: 16 of Int16."""
    return int("".join(filter(str.isdigit, str(dtype))))


def bounds(dtype: pl.DataType) -> tuple[int, int]:
    """The smallest and the largest integer of an integer type."""
    bits = width(dtype)
    return (0, 2**bits - 1) if dtype.is_unsigned_integer() else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _instance(dtype: pl.DataType | DataTypeClass) -> pl.DataType:
    return dtype if isinstance(dtype, pl.DataType) else dtype()
