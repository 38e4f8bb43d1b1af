"""Groupby: one row for each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import polars as pl

from falconet.compute.executor import ROW
from falconet.errors import ColumnNotFoundError, ConfigError, SchemaError, suggest
from falconet.etl import moments, quantiles
from falconet.etl.op import OPS, KeyedOp, Rows, as_tuple, freeze
from falconet.etl.table import one_value, one_zero
from falconet.schema import Column, Tag

AGGS = ("list", "first", "last", "count", "nunique", "sum", "mean", "std", "var", "median", "min", "max")
_SQUARES = {"std", "var"}
_SUMS = {"sum", "mean"} | _SQUARES
_OF_ANY = {"first", "last"}  # of lists, too
_FIRST = "__first__"


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class Groupby(KeyedOp):
    """One row for each key, in the order in which the keys first appear: the key, and `<column>_<agg>` of its rows.

    `aggs` are for all selected columns that are not part of the key, or a mapping has them by column. Rows are in the
    order of `sort_cols` (from the largest down with `ascending=False`), then of their row numbers; a null comes before
    all values (after them with `ascending=False`). Null is a key of its own, and so is NaN.

    list         all values in order, nulls too
    first, last  the value of the first and of the last row, also where it is null; of lists, too
    count        Int64    how many values there are
    nunique      Int64    how many different ones
    sum          Int64 for integers and Booleans (DataError where it does not fit), Float64 for floats
    mean, std, var   Float64; std and var have ddof 1 and are null for a single value
    median, q25, q99.5, ...   Float64: what half, or so many percent, of the values are below (as numpy's quantiles)
    min, max     of the column's own type

    For all but the first two lines nulls and NaN are no values; a key without values gets nulls (counts: 0). Sums are
    exact and each result is rounded once, so it is the same bits however the data was cut.
    """

    groupby_cols: str | Sequence[str]
    sort_cols: str | Sequence[str] | None = None
    aggs: str | Sequence[str] | Mapping[str, str | Sequence[str]] = "list"
    name_sep: str = "_"
    ascending: bool = True

    def __post_init__(self) -> None:
        freeze(self, groupby_cols=as_tuple(self.groupby_cols), sort_cols=as_tuple(self.sort_cols))
        if isinstance(self.aggs, Mapping):
            freeze(self, aggs={name: as_tuple(aggs) for name, aggs in self.aggs.items()})
        else:
            freeze(self, aggs=as_tuple(self.aggs))
        if not self.groupby_cols:
            raise ConfigError("Groupby has no `groupby_cols`", hint="name the columns of the key")
        for aggs in self.aggs.values() if isinstance(self.aggs, Mapping) else [self.aggs]:
            for agg in aggs:
                if agg not in AGGS and quantiles.share_of(agg) is None:
                    raise ConfigError(
                        f"Groupby has no aggregation `{agg}`", hint=suggest(agg, (*AGGS, *quantiles.EXAMPLES))
                    )
            if not aggs or len(set(aggs)) < len(aggs):
                raise ConfigError(f"Groupby aggs={list(aggs)}", hint="name each aggregation of a column once")

    @property
    def rows(self) -> Rows:
        return "other"

    @property
    def key(self) -> tuple[str, ...]:
        return as_tuple(self.groupby_cols)

    @property
    def order(self) -> tuple[str, ...]:
        return as_tuple(self.sort_cols)

    @property
    def also(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.key, *self.order)))

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        for name in self.aggs if isinstance(self.aggs, Mapping) else ():
            if name not in columns:
                raise ColumnNotFoundError.of(name, columns, where="Groupby (`aggs`)")
        made: dict[str, tuple[str, ...]] = {name: (name,) for name in self.key}
        for column, aggs in self._aggs(columns).items():
            for agg in aggs:
                name = self._name(column, agg)
                if name in made:
                    raise ConfigError(f"Groupby makes two columns `{name}`", hint="choose another `name_sep`")
                made[name] = (column,)
        return made

    def _aggs(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        """The aggregations of each column, in the order of the columns."""
        if not isinstance(self.aggs, Mapping):
            return {name: as_tuple(self.aggs) for name in columns if name not in self.key}
        return {name: as_tuple(self.aggs[name]) for name in columns if name in self.aggs}

    def _name(self, column: str, agg: str) -> str:
        return f"{column}{self.name_sep}{agg}"

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        one_value(frame, self.also, "Groupby")
        aggs = self._aggs(columns)
        types = frame.select(list(dict.fromkeys((*aggs, *self.key)))).collect_schema()
        for name, asked in aggs.items():
            _check(name, types[name], asked)
        if not self.ascending and self.order:
            down = [True] * len(self.order)
            frame = frame.sort(*self.order, ROW, descending=[*down, False], nulls_last=[*down, False])
        # A key's first row number stands for the key: one integer, whatever the key is.
        rows = frame.with_columns(pl.col(ROW).min().over(self.key).alias(_FIRST))
        keys = [
            one_zero(pl.col(name).first()).alias(name) if types[name].is_float() else pl.col(name).first()
            for name in self.key
        ]
        plain = {
            self._name(name, agg): _aggregated(_value(name, types[name], agg), agg)
            for name, asked in aggs.items()
            for agg in asked
            if agg not in _SUMS
        }
        made = rows.group_by(_FIRST, maintain_order=True).agg(*keys, **plain)
        for name, asked in aggs.items():
            if wanted := [agg for agg in asked if agg in _SUMS]:
                integer = "sum" in wanted and moments.is_integer(types[name])
                found = _summed(rows, name, integer=integer, squares=bool(_SQUARES & set(wanted)))
                named = found.select(_FIRST, *(pl.col(agg).alias(self._name(name, agg)) for agg in wanted))
                made = made.join(named, on=_FIRST, how="left", maintain_order="left")
        return made.select(*self.sources(columns), pl.col(_FIRST).alias(ROW))

    def describe(self, inputs: Mapping[str, Column], outputs: Mapping[str, Column]) -> Mapping[str, Column]:
        described = dict(outputs)
        for column, aggs in self._aggs(tuple(inputs)).items():
            for agg in aggs:
                if (name := self._name(column, agg)) in outputs:
                    described[name] = _described(agg, inputs[column], outputs[name])
        return described


def _check(name: str, dtype: pl.DataType, aggs: Sequence[str]) -> None:
    """Raise SchemaError for an aggregation that the type does not have."""
    for agg in aggs:
        if dtype.is_nested() and agg not in _OF_ANY:
            raise SchemaError(f"Groupby cannot make the {agg} of `{name}`, which is {dtype}", hint="first and last can")
        if _is_number(agg) and not moments.is_summable(dtype):
            raise SchemaError(f"Groupby cannot make the {agg} of `{name}`, which is {dtype}", hint="cast it to numbers")


def _value(name: str, dtype: pl.DataType, agg: str) -> pl.Expr:
    """The column, with null for NaN where those are no values, and 0.0 for -0.0."""
    if agg in ("list", *_OF_ANY) or not dtype.is_float():
        return pl.col(name)
    return one_zero(pl.col(name).fill_nan(None))


def _aggregated(x: pl.Expr, agg: str) -> pl.Expr:
    if agg == "count":
        return x.count().cast(pl.Int64)
    if agg == "nunique":
        return x.drop_nulls().n_unique().cast(pl.Int64)
    if (share := quantiles.share_of(agg)) is not None:
        number = x.cast(pl.Float64)
        low, high = number.quantile(share, "lower"), number.quantile(share, "higher")
        return quantiles.between(agg, low, high, (x.count() - 1) * share % 1)
    return {"list": x, "first": x.first(), "last": x.last(), "min": x.min(), "max": x.max()}[agg]


def _is_number(agg: str) -> bool:
    return agg in _SUMS or quantiles.share_of(agg) is not None


def _summed(rows: pl.LazyFrame, name: str, *, integer: bool, squares: bool) -> pl.LazyFrame:
    """Per key sum (an integer, or a float), mean and, of squares, variance and deviation, all exact."""
    state = moments.sums(rows.select(_FIRST, name), name, [_FIRST], squares=squares)
    finish = partial(moments.finish, by=[_FIRST], integer=integer, where=f"a sum of `{name}`")
    return state.map_batches(finish, schema=moments.found(state.collect_schema(), [_FIRST], integer=integer))


def _described(agg: str, column: Column, made: Column) -> Column:
    """What an aggregation of a column is: values of the same kind, or a number."""
    if agg in ("count", "nunique"):
        return replace(made, nullable=False, tags=made.tags | {Tag.CONTINUOUS})
    if _is_number(agg):
        return replace(made, tags=made.tags | {Tag.CONTINUOUS})
    tags = column.tags - {Tag.ID} | {Tag.SEQUENCE} if agg == "list" else column.tags
    nullable = column.nullable and agg != "list"
    return replace(column, name=made.name, dtype=made.dtype, list=made.list, tags=tags, nullable=nullable)
