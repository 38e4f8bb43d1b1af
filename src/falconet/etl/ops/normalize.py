"""Normalize and NormalizeMinMax: columns of numbers on a common scale."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from falconet.compute.engine import collect
from falconet.errors import SchemaError
from falconet.etl import moments
from falconet.etl.op import OPS, ColumnOp, Group, StatOp, float32
from falconet.etl.table import flatten, one_zero
from falconet.etl.types import polars_type
from falconet.schema import Column, Tag

_SMALLEST = 2.0**-1022  # below this one over a number may be infinite


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class Normalize(StatOp):
    """(x - mean) / standard deviation (ddof 1), as Float32, from the values that are neither null nor NaN nor infinite.

    Nulls and NaN become null; a constant column becomes 0 (for other values: x - mean). In lists element by element.

    The sums are exact and both moments are rounded once, at the end. They are therefore the same bits however the data
    was cut, and no digits cancel.
    """

    def partial(self, frame: pl.LazyFrame, group: Group) -> pl.LazyFrame:
        return moments.finite(moments.sums(frame, group[0], squares=True, where="Normalize"))

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        return moments.merge(states)

    def finish(self, state: pl.DataFrame) -> Normalized:
        found = moments.finish(state)
        if found.is_empty():
            return Normalized(mean=0.0, std=0.0)
        return Normalized(mean=found["mean"].item(), std=found["std"].item() or 0.0)


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class NormalizeMinMax(StatOp):
    """(x - min) / (max - min), as Float32, from the values that are neither null nor NaN nor infinite.

    Nulls and NaN become null. A column whose values are all equal becomes 0 (for other values: x - min). Values outside
    what the fit saw are not clipped. In lists element by element.
    """

    def partial(self, frame: pl.LazyFrame, group: Group) -> pl.LazyFrame:
        (name,) = group
        dtype = frame.select(name).collect_schema()[name]
        if not moments.is_summable(dtype):
            raise SchemaError(f"NormalizeMinMax needs numbers, `{name}` is {dtype}", hint="cast it, or Categorify it")
        x = flatten(pl.col(name), dtype).cast(pl.Float64).alias("x")
        return _range(frame.select(x).filter(pl.col("x").is_finite()), pl.col("x"), pl.col("x"))

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        return collect(_range(pl.concat(states).lazy(), pl.col("min"), pl.col("max")))

    def finish(self, state: pl.DataFrame) -> Ranged:
        low, high = state.row(0)
        return Ranged(low=low or 0.0, high=high or 0.0)


@dataclass(frozen=True, kw_only=True)
class _Scaled(ColumnOp):
    """(x * unit - start) * scale."""

    @property
    def unit(self) -> float:
        """One, or a half where differences would be too large for a float."""
        return 1.0

    @property
    @abstractmethod
    def start(self) -> float:
        """What becomes 0."""

    @property
    @abstractmethod
    def scale(self) -> float:
        """What differences from it are multiplied with."""

    def expr(self, x: pl.Expr, column: Column) -> pl.Expr:
        dtype = polars_type(column)
        if isinstance(dtype, pl.Array):
            x, dtype = x.arr.to_list(), pl.List(dtype.inner)
        return x.list.eval(self._scaled(pl.element())) if isinstance(dtype, pl.List) else self._scaled(x)

    def _scaled(self, x: pl.Expr) -> pl.Expr:
        number = x.cast(pl.Float64).fill_nan(None)
        number = number if self.unit == 1 else number * self.unit
        return ((number - self.start) * self.scale).cast(pl.Float32)

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
        return float32((float(value) * self.unit - self.start) * self.scale)


@dataclass(frozen=True, kw_only=True)
class Normalized(_Scaled):
    """`Normalize`, fitted."""

    mean: float
    std: float

    @property
    def start(self) -> float:
        return self.mean

    @property
    def scale(self) -> float:
        return 1.0 / self.std if self.std > _SMALLEST else 1.0


@dataclass(frozen=True, kw_only=True)
class Ranged(_Scaled):
    """`NormalizeMinMax`, fitted."""

    low: float
    high: float

    @property
    def unit(self) -> float:
        return 0.5 if math.isinf(self.high - self.low) else 1.0

    @property
    def start(self) -> float:
        return self.low * self.unit

    @property
    def scale(self) -> float:
        span = self.high * self.unit - self.low * self.unit
        return 1.0 / span if span > _SMALLEST else 1.0


def _range(frame: pl.LazyFrame, low: pl.Expr, high: pl.Expr) -> pl.LazyFrame:
    return frame.select(one_zero(low.min()).alias("min"), one_zero(high.max()).alias("max"))
