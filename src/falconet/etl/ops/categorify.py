"""Categorify: values to codes, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import polars as pl

from falconet.errors import ColumnNotFoundError, ConfigError, SchemaError
from falconet.etl.op import OPS, ColumnOp, Group, StatOp
from falconet.etl.table import flatten, matching
from falconet.etl.types import polars_type
from falconet.schema import Column, Tag

NULL, OOV, FIRST = 1, 2, 3
"""Code 0 is padding and never emitted, 1 is null, 2 is out of vocabulary, the vocabulary starts at 3."""
_SIZE = "_size"


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class Categorify(StatOp):
    """Values to codes: 0 padding (never emitted), 1 null or NaN, 2 out of vocabulary, then the most frequent first.

    Ties go by ascending value (strings by their UTF-8 bytes). Lists are coded element by element: an empty list stays
    empty, a null list becomes [1]. The columns of a nested list, `[["user", "friend"]]`, share one vocabulary and one
    domain, `user_friend`. Values seen fewer than `freq_threshold` times are out of vocabulary; a mapping gives it per
    domain (a single column's name). Cardinality = 3 + values. Codes are Int32 (Int64
    where that is too small).

    `finish` gives `Categories`, whose `inverse` turns codes into values.
    """

    freq_threshold: int | Mapping[str, int] = 0

    def __post_init__(self) -> None:
        given = self.freq_threshold.values() if isinstance(self.freq_threshold, Mapping) else [self.freq_threshold]
        if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in given):
            raise ConfigError(
                f"Categorify freq_threshold={self.freq_threshold!r}", hint="a number of rows, or one per column"
            )

    def groups(self, columns: Sequence[Group]) -> list[Group]:
        names = ["_".join(group) for group in columns]
        if isinstance(self.freq_threshold, Mapping):
            for name in self.freq_threshold:
                if name not in names:
                    raise ColumnNotFoundError.of(name, names, where="Categorify (`freq_threshold`)")
        return list(columns)

    def partial(self, frame: pl.LazyFrame, group: Group) -> pl.LazyFrame:
        domain = "_".join(group)
        types = frame.select(group).collect_schema()
        self._check_types(types)
        values = pl.concat(
            [frame.select(_widest(flatten(pl.col(name), types[name]), types[name]).alias(domain)) for name in group],
            how="vertical_relaxed",
        )
        return values.drop_nulls().group_by(domain).agg(pl.len().cast(pl.Int64).alias(domain + _SIZE)).sort(domain)

    def _check_types(self, types: pl.Schema) -> None:
        """Raise SchemaError where values of one vocabulary could not be equal."""
        first: dict[str, str] = {}
        for name, dtype in types.items():
            if (family := _family(dtype)) != "Null":
                first.setdefault(family, name)
        if len(first) > 1:
            (_, a), (_, b), *_ = first.items()
            raise SchemaError(
                f"Categorify cannot give `{a}` ({types[a]}) and `{b}` ({types[b]}) one vocabulary",
                hint="cast one of them, or take them out of the nested list",
            )

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        domain, size = states[0].columns
        return pl.concat(states, how="vertical_relaxed").group_by(domain).agg(pl.col(size).sum()).sort(domain)

    def finish(self, state: pl.DataFrame) -> Categories:
        domain, size = state.columns
        threshold = self.freq_threshold
        least = threshold.get(domain, 0) if isinstance(threshold, Mapping) else threshold
        kept = state.filter(pl.col(size) >= least).sort([size, domain], descending=[True, False])
        return Categories(domain=domain, values=kept[domain])


@dataclass(frozen=True, kw_only=True, eq=False)
class Categories(ColumnOp):
    """`Categorify`, fitted: `values` in the order of their codes, from 3 on."""

    domain: str
    values: pl.Series

    @property
    def cardinality(self) -> int:
        """The number of codes, those for padding, null and out of vocabulary included."""
        return FIRST + len(self.values)

    def expr(self, x: pl.Expr, column: Column) -> pl.Expr:
        dtype = polars_type(column)
        if isinstance(dtype, pl.Array):
            x, dtype = x.arr.to_list(), pl.List(dtype.inner)
        if not isinstance(dtype, pl.List):
            return self._code(x, dtype, column.name)
        inner = dtype.inner if isinstance(dtype.inner, pl.DataType) else dtype.inner()
        null_row = pl.lit([NULL], dtype=pl.List(self._codes.dtype))
        return x.list.eval(self._code(pl.element(), inner, column.name)).fill_null(null_row)

    def _code(self, x: pl.Expr, dtype: pl.DataType, name: str) -> pl.Expr:
        missing = x.is_null() | x.is_nan() if dtype.is_float() else x.is_null()
        if len(self.values) == 0:
            known = pl.lit(OOV, dtype=self._codes.dtype)
        else:
            value = matching(x, dtype, self.values.dtype, name)
            known = value.replace_strict(self.values, self._codes, default=OOV, return_dtype=self._codes.dtype)
        return pl.when(missing).then(pl.lit(NULL, dtype=self._codes.dtype)).otherwise(known)

    def describe(self, column: Column) -> Column:
        return replace(
            column,
            tags=column.tags - {Tag.CONTINUOUS} | {Tag.CATEGORICAL},
            nullable=False,
            cardinality=self.cardinality,
            oov=1,
            domain=self.domain,
            min=None,
            max=None,
        )

    def inverse(self, x: pl.Expr) -> pl.Expr:
        """The values of a column of codes; null for padding, null, out of vocabulary and codes there are not."""
        return x.replace_strict(self._codes, self.values, default=None, return_dtype=self.values.dtype)

    def row(self, values: dict[str, Any], columns: Mapping[str, Column]) -> dict[str, Any]:
        coded: dict[str, Any] = {}
        for name, value in values.items():
            if not columns[name].is_list:
                coded[name] = self._code_value(value)
            else:
                coded[name] = [NULL] if value is None else [self._code_value(x) for x in value]
        return coded

    def _code_value(self, value: Any) -> int:
        return NULL if value is None or value != value else self._code_of.get(value, OOV)

    @cached_property
    def _codes(self) -> pl.Series:
        dtype = pl.Int32 if self.cardinality < 2**31 else pl.Int64
        return pl.int_range(FIRST, self.cardinality, dtype=dtype, eager=True)

    @cached_property
    def _code_of(self) -> dict[Any, int]:
        return {value: code for code, value in enumerate(self.values.to_list(), FIRST)}


def _family(dtype: pl.DataType) -> str:
    inner = dtype.inner if isinstance(dtype, (pl.List, pl.Array)) else dtype
    kind = inner if isinstance(inner, pl.DataType) else inner()
    return "integer" if kind.is_integer() else "float" if kind.is_float() else str(kind)


def _widest(x: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Integers as Int64 (or UInt64), floats as Float64, so that files of other widths meet; NaN is null."""
    family = _family(dtype)
    inner = dtype.inner if isinstance(dtype, (pl.List, pl.Array)) else dtype
    if family == "integer":
        return x if inner == pl.UInt64 else x.cast(pl.Int64)
    if family == "float":
        return x.cast(pl.Float64).fill_nan(None)
    if inner in (pl.Boolean, pl.String, pl.Null) or (isinstance(inner, pl.DataType) and inner.is_temporal()):
        return x
    raise SchemaError(f"Categorify cannot code values of type {inner}", hint="strings, numbers, Booleans and times")
