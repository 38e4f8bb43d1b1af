"""FillMissing and FillMedian: a value in place of what is missing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from falconet.errors import ConfigError, SchemaError
from falconet.etl import moments, quantiles
from falconet.etl.op import OPS, FrameOp, Group, StatOp
from falconet.etl.rowwise import OnRow, Row
from falconet.etl.types import column_of, element, polars_type, value_of
from falconet.schema import Column


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class FillMissing(FrameOp):
    """`fill_val` in place of nulls and NaN; in lists in place of null elements, and null lists become empty.

    The type of the column stays: a value that does not fit raises SchemaError. With `add_binary_cols` a Boolean column
    `NAME_filled` says where something was missing.
    """

    fill_val: int | float | str | bool | dt.date | dt.datetime = 0
    add_binary_cols: bool = False

    def __post_init__(self) -> None:
        if self.fill_val is None or self.fill_val != self.fill_val:
            raise ConfigError(f"FillMissing fill_val={self.fill_val!r} is itself missing")

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        flags = {f"{name}_filled": (name,) for name in columns} if self.add_binary_cols else {}
        if clash := flags.keys() & set(columns):
            raise ConfigError(f"FillMissing would add a second column `{min(clash)}`", hint="rename it first")
        return super().sources(columns) | flags

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        types = frame.select(columns).collect_schema()
        flags = [_missing(pl.col(name), types[name]).alias(f"{name}_filled") for name in columns]
        filled = [self._filled(name, types[name]) for name in columns]
        return frame.with_columns(*filled, *(flags if self.add_binary_cols else ()))

    def describe(self, inputs: Mapping[str, Column], outputs: Mapping[str, Column]) -> Mapping[str, Column]:
        return {name: replace(column, nullable=False) for name, column in outputs.items()}

    def on_row(self, names: Group, columns: Mapping[str, Column]) -> OnRow:
        made = [(name, f"{name}_filled", columns[name].is_list, self._fill(columns[name])) for name in names]

        def fill(values: Row) -> Row:
            filled: Row = {}
            for name, flag, is_list, fill in made:
                value = values[name]
                missing = value is None or value != value
                if is_list:
                    filled[name] = [fill if x is None or x != x else x for x in value or ()]
                else:
                    filled[name] = fill if missing else value
                if self.add_binary_cols:
                    filled[flag] = missing
            return filled

        return fill

    def _fill(self, column: Column) -> Any:
        return value_of(self.fill_val, element(polars_type(column)), what="FillMissing fill_val", name=column.name)

    def _filled(self, name: str, dtype: pl.DataType) -> pl.Expr:
        inner = element(dtype)
        value = pl.lit(value_of(self.fill_val, inner, what="FillMissing fill_val", name=name), dtype=inner)
        if not dtype.is_nested():
            return (pl.col(name).fill_nan(None) if dtype.is_float() else pl.col(name)).fill_null(value)
        x = pl.col(name).arr.to_list() if isinstance(dtype, pl.Array) else pl.col(name)
        each = pl.element().fill_nan(None) if inner.is_float() else pl.element()
        return x.list.eval(each.fill_null(value)).fill_null(pl.lit([], dtype=pl.List(inner)))


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class FillMedian(StatOp):
    """The median of a column in place of its nulls and NaN; in lists of null elements, and null lists become empty.

    Floats keep their type, integers and Booleans become Float64. The median is exact and the same bits for any cut of
    the data; of a column with more than a million different values it is at most 0.1 % off. A column without any value
    has none and gets 0, as scikit-learn's SimpleImputer does with `keep_empty_features`. With `add_binary_cols` a
    Boolean column `NAME_filled` says where something was missing.
    """

    add_binary_cols: bool = False

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        return self._filling(0.0).sources(columns)

    def partial(self, frame: pl.LazyFrame, group: Group) -> pl.LazyFrame:
        (name,) = group
        dtype = frame.select(name).collect_schema()[name]
        if not moments.is_summable(dtype):
            raise SchemaError(f"FillMedian needs numbers, `{name}` is {dtype}", hint="FillMissing fills other types")
        return quantiles.counts(frame, name)

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        return quantiles.merge(states)

    def finish(self, state: pl.DataFrame) -> MedianFilled:
        median = quantiles.median(state)
        return self._filling(0.0 if median is None or median != median else median)

    def _filling(self, value: float) -> MedianFilled:
        return MedianFilled(fill_val=value, add_binary_cols=self.add_binary_cols)


@dataclass(frozen=True, kw_only=True)
class MedianFilled(FillMissing):
    """`FillMedian`, fitted: what FillMissing does, with numbers as floats."""

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        types = frame.select(columns).collect_schema()
        floats = [pl.col(name).cast(_as_floats(dtype)) for name, dtype in types.items()]
        return super().apply(frame.with_columns(floats), columns)

    def on_row(self, names: Group, columns: Mapping[str, Column]) -> OnRow:
        floats = {name: column_of(name, _as_floats(polars_type(columns[name]))) for name in names}
        fill = super().on_row(names, floats)
        return lambda values: fill({name: _as_float(values[name]) for name in names})


def _as_floats(dtype: pl.DataType) -> pl.DataType:
    kind = element(dtype)
    kind = kind if kind.is_float() else pl.Float64()
    return pl.List(kind) if dtype.is_nested() else kind


def _as_float(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_float(x) for x in value]
    return None if value is None else float(value)


def _missing(x: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    return x.is_null() | x.is_nan().fill_null(False) if dtype.is_float() else x.is_null()
