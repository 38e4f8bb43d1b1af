"""Frames of any make as Polars frames, and values of one type compared with those of another."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars as pl

from falconet.compute.engine import collect
from falconet.errors import SchemaError
from falconet.etl.dataset import Dataset
from falconet.etl.sources import as_polars


def as_frame(data: Any) -> pl.DataFrame:
    """A Polars frame from Polars, pandas, Arrow, a Dataset, or a path. A pandas index is not data and is dropped."""
    if isinstance(data, (str, Path)):
        data = Dataset(data)
    if isinstance(data, Dataset):
        return data.collect()
    frame = as_polars(data)
    return collect(frame) if isinstance(frame, pl.LazyFrame) else frame


def plain(frame: pl.LazyFrame) -> pl.LazyFrame:
    """Categories as strings: their codes are an accident of the file."""
    types = {name: dtype for name, dtype in frame.collect_schema().items() if plain_type(dtype) != dtype}
    return frame.with_columns(as_plain(pl.col(name), dtype) for name, dtype in types.items()) if types else frame


def as_plain(x: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """A column of this type, categories as strings."""
    return x if plain_type(dtype) == dtype else x.cast(plain_type(dtype))


def plain_type(dtype: pl.DataType) -> pl.DataType:
    """The type with strings in place of categories."""
    if isinstance(dtype, (pl.Categorical, pl.Enum)):
        return pl.String()
    if isinstance(dtype, pl.List) and isinstance(dtype.inner, (pl.Categorical, pl.Enum)):
        return pl.List(pl.String)
    if isinstance(dtype, pl.Array) and isinstance(dtype.inner, (pl.Categorical, pl.Enum)):
        return pl.Array(pl.String, dtype.size)
    return dtype


def one_value(frame: pl.LazyFrame, names: Iterable[str], where: str) -> None:
    """Raise SchemaError unless each of the columns has one value per row, which can be compared."""
    types = frame.select(names).collect_schema()
    for name, dtype in types.items():
        if dtype.is_nested():
            raise SchemaError(f"{where} needs one value per row, `{name}` is {dtype}")


def flatten(x: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """The elements of a list column, with nothing for empty and null lists; other columns as they are."""
    if isinstance(dtype, pl.Array):
        x, dtype = x.arr.to_list(), pl.List(dtype.inner)
    return x.list.explode(empty_as_null=False, keep_nulls=False) if isinstance(dtype, pl.List) else x


def one_zero(x: pl.Expr) -> pl.Expr:
    """Floats with 0.0 for -0.0: the two are equal, but which of them stands for both must not be an accident."""
    return pl.when(x == 0).then(0.0).otherwise(x)


def canonical(x: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Values as a key or a vocabulary keeps them, so that those of narrower types meet: integers as Int64 (UInt64 as it
    is), floats as Float64 with null for NaN and one zero; other types as they are.
    """
    if dtype.is_integer():
        return x if dtype == pl.UInt64 else x.cast(pl.Int64)
    return one_zero(x.cast(pl.Float64).fill_nan(None)) if dtype.is_float() else x


def matching(x: pl.Expr, given: pl.DataType, known: pl.DataType, name: str) -> pl.Expr:
    """`x` of type `given` as values of type `known`, null where there is no equal one.

    A float 3.0 is the integer 3, 3.5 and NaN are none. Raises SchemaError for types that have no equal values.
    """
    if given == known:
        return x.fill_nan(None) if given.is_float() else x
    if given == pl.Null or (given.is_integer() and known.is_integer()):
        return x.cast(known, strict=False)
    if given.is_integer() and known.is_float():
        cast = x.cast(known)
        return pl.when(cast.cast(given, strict=False) == x).then(cast)
    if given.is_float() and known.is_integer():
        cast = x.cast(known, strict=False)
        return pl.when(cast.cast(given) == x).then(cast)
    if given.is_float() and known.is_float():
        cast = x.cast(known)
        return pl.when(cast.cast(given) == x).then(cast).fill_nan(None)
    if given.is_temporal() and known.is_temporal():
        return x.cast(known)
    raise SchemaError(f"`{name}` is {given} here and {known} there", hint="cast one of them: no value could be equal")
