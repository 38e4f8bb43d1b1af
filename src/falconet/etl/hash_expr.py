"""The stable hash as a Polars expression, of one column or of several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from falconet.errors import SchemaError
from falconet.hashing import MASK, MIX_1, MIX_2, P, splitmix64

_ROWS = 1 << 16  # strings whose bytes are summed at a time: a number of 8 bytes per byte


def hash_expr(expr: pl.Expr, seed: int = 0, dtype: pl.DataType | None = None) -> pl.Expr:
    """UInt64: `stable_hash(value, seed)` of a column; null and NaN are null. Times are counted in whole microseconds.

    `dtype` is the column's type, by default integers of any width. Raises SchemaError for types without a stable hash
    (lists, durations, times of the day, bytes).

    >>> from falconet.hashing import stable_hash
    >>> pl.select(hash_expr(pl.lit(-7), seed=1)).item() == stable_hash(-7, seed=1)
    True
    """
    bits = expr.cast(pl.UInt64, wrap_numerical=True) if dtype is None else _bits(expr, dtype)
    return splitmix_expr(bits ^ _uint64(splitmix64(seed & MASK)))


def with_hash(frame: pl.LazyFrame, hashes: Sequence[pl.Expr], name: str) -> pl.LazyFrame:
    """The frame and `stable_hash` of the tuple of several columns, from the hash of each; null where one of them is.

    Mixing has its argument twice, three times over, so every step is a column: one expression would explode.
    """
    frame = frame.with_columns(hashes[0].alias(name))
    for one in hashes[1:]:
        frame = frame.with_columns((pl.col(name) * _uint64(P) + one).alias(name))
        frame = frame.with_columns(splitmix_expr(pl.col(name)).alias(name))
    return frame


def splitmix_expr(x: pl.Expr) -> pl.Expr:
    """`splitmix64` of a UInt64 column."""
    x = x + _uint64(P)
    x = (x ^ (x // 2**30)) * _uint64(MIX_1)
    x = (x ^ (x // 2**27)) * _uint64(MIX_2)
    return x ^ (x // 2**31)


def _bits(x: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """The 64 bits that stand for a value before they are mixed."""
    if dtype.is_integer() or dtype in (pl.Boolean, pl.Null):
        return x.cast(pl.UInt64, wrap_numerical=True)
    if dtype.is_float():
        number = x.cast(pl.Float64).fill_nan(None)
        whole = (number == number.floor()) & (number.abs() < 2.0**63)
        integer = pl.when(whole).then(number).cast(pl.Int64).cast(pl.UInt64, wrap_numerical=True)
        return pl.when(whole).then(integer).otherwise(number.reinterpret(dtype=pl.UInt64))
    if dtype == pl.String:
        return x.map_batches(_text_bits, return_dtype=pl.UInt64, is_elementwise=True)
    if isinstance(dtype, pl.Datetime):
        return x.dt.epoch("us").cast(pl.UInt64, wrap_numerical=True)
    if dtype == pl.Date:
        return x.to_physical().cast(pl.UInt64, wrap_numerical=True)
    raise SchemaError(
        f"values of type {dtype} have no stable hash", hint="numbers, Booleans, strings, dates, datetimes"
    )


def _text_bits(texts: pl.Series) -> pl.Series:
    """Per string the sum of (byte_i + 1) * P^i over its UTF-8 bytes, modulo 2^64, xor its length."""
    slices = [_text_bits_of(texts[start : start + _ROWS]) for start in range(0, len(texts), _ROWS)]
    return pl.concat(slices) if slices else pl.Series(texts.name, [], dtype=pl.UInt64)


def _text_bits_of(texts: pl.Series) -> pl.Series:
    array = texts.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    lengths = np.diff(ends)
    used = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]] if data is not None else np.zeros(0, np.uint8)
    place = np.arange(len(used)) - np.repeat(ends[:-1] - ends[0], lengths)
    powers = np.full(int(lengths.max(initial=0)) + 1, P, np.uint64)
    powers[0] = 1
    weighted = (used.astype(np.uint64) + np.uint64(1)) * np.cumprod(powers)[place]
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(weighted)])[ends - ends[0]]
    bits = pl.Series(texts.name, np.diff(sums) ^ lengths.astype(np.uint64))
    return pl.select(pl.when(texts.is_not_null()).then(bits)).to_series() if texts.null_count() else bits


def _uint64(value: int) -> pl.Expr:
    return pl.lit(value, dtype=pl.UInt64)
