"""Normalize: zero mean and unit spread, from exact sums."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl

from falconet.errors import SchemaError
from falconet.etl.op import OPS, ColumnOp, Group, StatOp, float32
from falconet.etl.table import flatten
from falconet.etl.types import polars_type
from falconet.schema import Column, Tag

_HALF = 32  # a number is high * 2^32 + low; products of halves fit Int128 sums of 2^62 rows
_SUMS = ("number", "high2", "cross", "low2")


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class Normalize(StatOp):
    """(x - mean) / standard deviation (ddof 1), as Float32, from the values that are neither null nor NaN nor infinite.

    Nulls and NaN become null; a constant column becomes 0 (for other values: x - mean). In lists element by element.

    The sums are exact: a float is an integer times a power of two, so the state has, per exponent, the number of values
    and the sums of their integers and of their squares (in halves), and both moments are rounded once, at the end. They
    are therefore the same bits however the data was cut, and no digits cancel.
    """

    def partial(self, frame: pl.LazyFrame, group: Group) -> pl.LazyFrame:
        (name,) = group
        dtype = frame.select(group).collect_schema()[name]
        inner = dtype.inner if isinstance(dtype, (pl.List, pl.Array)) else dtype
        kind = inner if isinstance(inner, pl.DataType) else inner()
        if not (kind.is_numeric() or kind in (pl.Boolean, pl.Null)):
            raise SchemaError(f"Normalize needs numbers, `{name}` is {dtype}", hint="cast it, or Categorify it")
        x = flatten(pl.col(name), dtype)
        if kind.is_float() or kind.is_decimal():
            parts = frame.select(x.cast(pl.Float64).alias("x")).drop_nulls().map_batches(_decompose, schema=_PARTS)
        else:
            number = x.cast(pl.Int128, strict=True)
            parts = frame.select(number.alias("number")).drop_nulls().with_columns(exponent=pl.lit(0, dtype=pl.Int32))
        high = pl.col("number").cast(pl.Int128) // 2**_HALF
        low = pl.col("number").cast(pl.Int128) - high * 2**_HALF
        sums = [high * 2**_HALF + low, high * high, high * low, low * low]
        return (
            parts.group_by("exponent")
            .agg(pl.len().cast(pl.Int64).alias("count"), *(x.sum().alias(n) for x, n in zip(sums, _SUMS, strict=True)))
            .select("exponent", "count", *_halves())
            .sort("exponent")
        )

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        whole = [_whole(name).sum().alias(name) for name in _SUMS]
        merged = pl.concat(states).group_by("exponent").agg(pl.col("count").sum(), *whole)
        return merged.select("exponent", "count", *_halves()).sort("exponent")

    def finish(self, state: pl.DataFrame) -> Normalized:
        rows = state.select("exponent", "count", *(_whole(name).alias(name) for name in _SUMS)).rows()
        n = sum(row[1] for row in rows)
        total, squares = Fraction(0), Fraction(0)
        for exponent, _, number, high2, cross, low2 in rows:
            scale = Fraction(2) ** exponent
            total += number * scale
            squares += ((high2 << 2 * _HALF) + (cross << (_HALF + 1)) + low2) * scale * scale
        if n == 0:
            return Normalized(mean=0.0, std=0.0)
        variance = (squares - total * total / n) / (n - 1) if n > 1 else Fraction(0)
        return Normalized(mean=float(total / n), std=_sqrt(variance))


@dataclass(frozen=True, kw_only=True)
class Normalized(ColumnOp):
    """`Normalize`, fitted."""

    mean: float
    std: float

    @property
    def scale(self) -> float:
        """What differences from the mean are multiplied with."""
        return 1.0 / self.std if self.std > 0 else 1.0

    def expr(self, x: pl.Expr, column: Column) -> pl.Expr:
        dtype = polars_type(column)
        if isinstance(dtype, pl.Array):
            x, dtype = x.arr.to_list(), pl.List(dtype.inner)
        return x.list.eval(self._scaled(pl.element())) if isinstance(dtype, pl.List) else self._scaled(x)

    def _scaled(self, x: pl.Expr) -> pl.Expr:
        number = x.cast(pl.Float64).fill_nan(None)
        return ((number - self.mean) * self.scale).cast(pl.Float32)

    def describe(self, column: Column) -> Column:
        tags = column.tags - {Tag.CATEGORICAL, Tag.ID} | {Tag.CONTINUOUS}
        return replace(column, tags=tags, cardinality=None, oov=None, domain=None)

    def row(self, values: dict[str, Any], columns: Mapping[str, Column]) -> dict[str, Any]:
        return {name: self._scaled_value(value) for name, value in values.items()}

    def _scaled_value(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._scaled_value(x) for x in value]
        if value is None or value != value:
            return None
        return float32((float(value) - self.mean) * self.scale)


_PARTS = pl.Schema({"number": pl.Int64(), "exponent": pl.Int32()})


def _decompose(frame: pl.DataFrame) -> pl.DataFrame:
    """Finite floats as integers of 53 bits times a power of two."""
    values = frame["x"].to_numpy()
    fraction, exponent = np.frexp(values[np.isfinite(values)])
    return pl.DataFrame({"number": (fraction * 2.0**53).astype(np.int64), "exponent": exponent - 53}, schema=_PARTS)


def _whole(name: str) -> pl.Expr:
    return pl.col(f"{name}_top").cast(pl.Int128) * 2**62 + pl.col(f"{name}_bottom").cast(pl.Int128)


def _halves() -> list[pl.Expr]:
    """Each Int128 sum as two Int64, which every reader of Parquet knows: top * 2^62 + bottom."""
    halves = []
    for name in _SUMS:
        top = pl.col(name) // 2**62
        halves.append(top.cast(pl.Int64).alias(f"{name}_top"))
        halves.append((pl.col(name) - top * 2**62).cast(pl.Int64).alias(f"{name}_bottom"))
    return halves


def _sqrt(value: Fraction) -> float:
    """The square root, also of what is too large or too small for a float."""
    if value == 0:
        return 0.0
    half = (value.numerator.bit_length() - value.denominator.bit_length()) // 2
    return math.ldexp(math.sqrt(float(value / Fraction(4) ** half)), half)
