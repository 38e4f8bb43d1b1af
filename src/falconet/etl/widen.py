"""The narrowest type that holds two others without loss: files of one data set may differ in widths."""

from __future__ import annotations

import polars as pl

_SIGNED: tuple[pl.DataType, ...] = (pl.Int8(), pl.Int16(), pl.Int32(), pl.Int64())
_UNSIGNED: tuple[pl.DataType, ...] = (pl.UInt8(), pl.UInt16(), pl.UInt32(), pl.UInt64())
_FLOATS: tuple[pl.DataType, ...] = (pl.Float16(), pl.Float32(), pl.Float64())
_TEXTS = (pl.String, pl.Categorical, pl.Enum)


def widest(a: pl.DataType, b: pl.DataType, *, inferred: bool = False) -> pl.DataType | None:
    """The type for values of `a` and of `b`; None where they differ in more than width.

    Types `inferred` from text also meet as integer and float.
    """
    if a == b or isinstance(b, pl.Null):
        return a
    if isinstance(a, pl.Null):
        return b
    if isinstance(a, pl.List) and isinstance(b, pl.List):
        inner = widest(_instance(a), _instance(b), inferred=inferred)
        return None if inner is None else pl.List(inner)
    if isinstance(a, pl.Array) and isinstance(b, pl.Array) and a.shape == b.shape:
        inner = widest(_instance(a), _instance(b), inferred=inferred)
        return None if inner is None else pl.Array(inner, a.size)
    if isinstance(a, pl.Struct) and isinstance(b, pl.Struct):
        return _structs(a, b, inferred)
    if isinstance(a, _TEXTS) and isinstance(b, _TEXTS):
        return pl.String()
    if isinstance(a, pl.Decimal) and isinstance(b, pl.Decimal):
        scale = max(a.scale, b.scale)
        digits = max(x.precision - x.scale for x in (a, b)) + scale
        return pl.Decimal(digits, scale) if digits <= 38 else None
    for family in (_SIGNED, _UNSIGNED, _FLOATS):
        if a in family and b in family:
            return max(a, b, key=family.index)
    if a.is_integer() and b.is_integer():
        signed, unsigned = (a, b) if a in _SIGNED else (b, a)
        if unsigned in _UNSIGNED[:3] and signed in _SIGNED:
            return _SIGNED[max(_SIGNED.index(signed), _UNSIGNED.index(unsigned) + 1)]
        return None
    if inferred and a.is_numeric() and b.is_numeric():
        return pl.Float64()
    return None


def say_type(name: str, dtype: str) -> str:
    """How one says what a column is."""
    return f'dtypes={{"{name}": "{dtype}"}} (in a recipe `data.dtypes.{name} = "{dtype}"`)'


def _structs(a: pl.Struct, b: pl.Struct, inferred: bool) -> pl.Struct | None:
    """A struct with the fields of both. Read from files they have the same ones; `inferred`, either may lack some."""
    left, right = _fields(a), _fields(b)
    if left.keys() != right.keys() and not inferred:
        return None
    fields = {}
    for name in {**left, **right}:
        wide = widest(left.get(name, pl.Null()), right.get(name, pl.Null()), inferred=inferred)
        if wide is None:
            return None
        fields[name] = wide
    return pl.Struct(fields)


def _fields(dtype: pl.Struct) -> dict[str, pl.DataType]:
    return {f.name: f.dtype if isinstance(f.dtype, pl.DataType) else f.dtype() for f in dtype.fields}


def _instance(dtype: pl.List | pl.Array) -> pl.DataType:
    inner = dtype.inner
    return inner if isinstance(inner, pl.DataType) else inner()
