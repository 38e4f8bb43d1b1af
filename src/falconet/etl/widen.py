"""The narrowest type that holds two others without loss: files of one data set may differ in widths."""

from __future__ import annotations

import polars as pl

_SIGNED: tuple[pl.DataType, ...] = (pl.Int8(), pl.Int16(), pl.Int32(), pl.Int64())
_UNSIGNED: tuple[pl.DataType, ...] = (pl.UInt8(), pl.UInt16(), pl.UInt32(), pl.UInt64())
_FLOATS: tuple[pl.DataType, ...] = (pl.Float16(), pl.Float32(), pl.Float64())


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


def _instance(dtype: pl.List) -> pl.DataType:
    inner = dtype.inner
    return inner if isinstance(inner, pl.DataType) else inner()
