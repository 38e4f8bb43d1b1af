"""Operators of one column of numbers: Clip, LogOp, ReduceDtypeSize. Lists go element by element."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from falconet.errors import ConfigError, DataError, SchemaError
from falconet.etl.op import OPS, ColumnOp, Group, StatOp, float32
from falconet.etl.rowwise import OnRow, each_value
from falconet.etl.table import flatten
from falconet.etl.types import bounds, column_of, element, polars_type, width
from falconet.schema import Column, Tag

_FLOAT32_MAX = float.fromhex("0x1.fffffep127")


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class Clip(ColumnOp):
    """Limit numbers to the closed interval [min_value, max_value]; nulls and NaN stay, and so does the type.

    Limits of integer columns are those of the integers inside: at least .5 is at least 1. Limits of Float32 columns are
    rounded to it. Lists go element by element.
    """

    min_value: float | None = None
    max_value: float | None = None

    def __post_init__(self) -> None:
        low, high = self.min_value, self.max_value
        if low is None and high is None:
            raise ConfigError("Clip has no bound", hint="set `min_value`, `max_value` or both")
        if low != low or high != high:
            raise ConfigError(f"Clip min_value={low}, max_value={high}", hint="NaN is no bound")
        if low is not None and high is not None and low > high:
            raise ConfigError(f"Clip min_value={low} is above max_value={high}")

    def expr(self, x: pl.Expr, column: Column) -> pl.Expr:
        dtype = _number(column, "Clip")
        low, high = (None if bound is None else pl.lit(bound, dtype=dtype) for bound in self._bounds(column))
        return _each(x, column, lambda one: one.clip(low, high))

    def describe(self, column: Column) -> Column:
        low, high = self._bounds(column)
        least = [x for x in (low, column.min) if x is not None]
        most = [x for x in (high, column.max) if x is not None]
        return replace(column, min=max(least, default=None), max=min(most, default=None))

    def on_row(self, names: Group, columns: Mapping[str, Column]) -> OnRow:
        return each_value(columns, self._plain)

    def _plain(self, column: Column) -> Callable[[Any], Any]:
        low, high = self._bounds(column)

        def clip(x: Any) -> Any:
            if low is not None and x < low:
                return low
            return high if high is not None and x > high else x

        return clip

    def _bounds(self, column: Column) -> tuple[Any, Any]:
        """The bounds as values of the column's type; None where it has nothing beyond them."""
        dtype, low, high = _number(column, "Clip"), self.min_value, self.max_value
        if dtype.is_float():
            return tuple(None if x is None else pl.Series([float(x)]).cast(dtype).item() for x in (low, high))  # type: ignore[return-value]
        least, most = bounds(dtype)
        first = least if low is None or low <= least else math.ceil(min(low, most + 1))
        last = most if high is None or high >= most else math.floor(max(high, least - 1))
        if first > most or last < least or first > last:
            raise SchemaError(
                f"Clip min_value={low}, max_value={high} leaves no value to `{column.name}`, which is {dtype}"
            )
        return None if first == least else first, None if last == most else last


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class LogOp(ColumnOp):
    """ln(1 + x) as Float32, computed in Float64. Nulls stay; x <= -1, which has no logarithm, becomes null; NaN stays.

    Lists go element by element.
    """

    def expr(self, x: pl.Expr, column: Column) -> pl.Expr:
        _number(column, "LogOp")
        return _each(x, column, _log1p)

    def describe(self, column: Column) -> Column:
        tags = column.tags if column.tags & {Tag.ID, Tag.TARGET} else column.tags - {Tag.CATEGORICAL} | {Tag.CONTINUOUS}
        return replace(column, tags=tags, nullable=True, cardinality=None, oov=None, domain=None, min=None, max=None)

    def on_row(self, names: Group, columns: Mapping[str, Column]) -> OnRow:
        return each_value(columns, lambda column: _log1p_of)


def _log1p(x: pl.Expr) -> pl.Expr:
    x = x.cast(pl.Float64)
    return pl.when((x > -1) | x.is_nan()).then(x.log1p()).cast(pl.Float32)


def _log1p_of(x: float) -> float | None:
    x = float(x)
    return float32(math.log1p(x)) if x > -1 else x if x != x else None


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class ReduceDtypeSize(StatOp):
    """The smallest integer type that holds what the fit saw, and Float32 for floats; other columns stay.

    A later value that does not fit raises DataError: nothing wraps, no number becomes infinite. Integers become Int8,
    Int16, Int32 or Int64 (UInt64 above that), all nulls Int8; floats with a finite value beyond Float32 stay Float64.
    Nulls and NaN stay. Lists go element by element.
    """

    def partial(self, frame: pl.LazyFrame, group: Group) -> pl.LazyFrame:
        name = group[0]
        dtype = frame.select(name).collect_schema()[name]
        kind = element(dtype)
        x = flatten(pl.col(name), dtype)
        if kind.is_float():
            x = x.cast(pl.Float64)
            x = pl.when(x.is_finite()).then(x)
        elif kind.is_integer():
            x = x if kind == pl.UInt64 else x.cast(pl.Int64)
        else:
            x = pl.lit(None, dtype=pl.Null)
        return frame.select(x.alias("x")).select(pl.col("x").min().alias("min"), pl.col("x").max().alias("max"))

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        return pl.concat(states).select(pl.col("min").min(), pl.col("max").max())

    def finish(self, state: pl.DataFrame) -> ColumnOp:
        kind, (low, high) = state.schema["min"], state.row(0)
        if kind.is_float():
            fits = max(abs(low or 0.0), abs(high or 0.0)) <= _FLOAT32_MAX
            return Reduced(dtype="float32" if fits else "float64")
        if not kind.is_integer():
            return Reduced(dtype="")
        for dtype in (pl.Int8(), pl.Int16(), pl.Int32(), pl.Int64()):
            least, most = bounds(dtype)
            if least <= (low or 0) and (high or 0) <= most:
                return Reduced(dtype=column_of("", dtype).dtype)
        return Reduced(dtype="uint64")


@dataclass(frozen=True, kw_only=True)
class Reduced(ColumnOp):
    """`ReduceDtypeSize`, fitted: a type by its schema name, or nothing to be done."""

    dtype: str

    def expr(self, x: pl.Expr, column: Column) -> pl.Expr:
        target = self._target(column)
        if target is None:
            return x
        return _each(x, column, _checked_float32 if target == pl.Float32 else lambda one: one.cast(target))

    def on_row(self, names: Group, columns: Mapping[str, Column]) -> OnRow:
        return each_value(columns, self._plain)

    def _plain(self, column: Column) -> Callable[[Any], Any]:
        target = self._target(column)
        if target is None:
            return lambda x: x
        least, most = (-_FLOAT32_MAX, _FLOAT32_MAX) if target.is_float() else bounds(target)

        def reduce(x: Any) -> Any:
            if (x < least or x > most) and not math.isinf(x):
                raise DataError(f"`{column.name}` is {target} since the fit, which cannot hold {x}", hint=_REFIT)
            return float32(x) if target.is_float() else x

        return reduce

    def _target(self, column: Column) -> pl.DataType | None:
        """The type, where it is smaller than the one the column has."""
        if not self.dtype:
            return None
        own, target = (element(polars_type(c)) for c in (column, Column(name=column.name, dtype=self.dtype)))
        return target if width(target) < width(own) else None


_REFIT = "the fit saw smaller values: fit on data that has the largest ones"


def _checked_float32(x: pl.Expr) -> pl.Expr:
    """Float32, where a finite value that is too large fails as the cast of an integer does."""
    x = x.cast(pl.Float64)
    too_large = x.is_finite() & (x.abs() > _FLOAT32_MAX)
    fits = pl.when(too_large).then(x).otherwise(0.0).cast(pl.Int8) == 0
    return pl.when(fits).then(x.cast(pl.Float32))


def _number(column: Column, who: str) -> pl.DataType:
    """The type of the column's numbers. Raises SchemaError where it has none."""
    dtype = element(polars_type(column))
    if not dtype.is_numeric():
        raise SchemaError(f"{who} needs numbers, `{column.name}` is {polars_type(column)}")
    return dtype


def _each(x: pl.Expr, column: Column, function: Callable[[pl.Expr], pl.Expr]) -> pl.Expr:
    """A function of a value, for every value of a column or of its lists."""
    dtype = polars_type(column)
    if isinstance(dtype, pl.Array):
        return x.arr.eval(function(pl.element()))
    return x.list.eval(function(pl.element())) if isinstance(dtype, pl.List) else function(x)
