"""Bucketize: numbers to the intervals they are in."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, isfinite
from typing import Any

import polars as pl

from falconet.errors import ColumnNotFoundError, ConfigError, SchemaError
from falconet.etl import quantiles
from falconet.etl.codes import FIRST, code_type, coded, coded_value, describe_codes
from falconet.etl.op import OPS, ColumnOp, Group, StatOp, freeze
from falconet.schema import Column

Number = int | float
Boundaries = tuple[Number, ...]
_STATE = ("", "_binned", "_count")
"""What the columns of a state are called, behind the name of its column."""


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class Bucketize(StatOp):
    """2 + the number of boundaries that are at most x, as Int32; null and NaN are 1, so that 0 stays padding.

    With boundaries 10 and 20 a number below 10 is 2, from 10 to below 20 is 3, from 20 on is 4; the infinities are in
    the first and the last bucket. Lists element by element: an empty list stays empty, a null list becomes [1].
    Cardinality = 3 + boundaries.

    `boundaries` is ascending numbers; or how many buckets of about equally many values there shall be: then the
    quantiles of the fitted data are the boundaries (numpy's, exact up to a million distinct values, above that within
    0.1 %), of which equal ones count once. A mapping gives either per column.
    """

    boundaries: int | Sequence[Number] | Mapping[str, int | Sequence[Number]] = field(kw_only=False)

    def __post_init__(self) -> None:
        if isinstance(self.boundaries, Mapping):
            freeze(self, boundaries={name: _checked(given, name) for name, given in self.boundaries.items()})
        else:
            freeze(self, boundaries=_checked(self.boundaries))

    def settled(self, columns: tuple[str, ...] | None) -> Bucketize:
        if columns is not None and isinstance(self.boundaries, Mapping):
            for name in self.boundaries:
                if name not in columns:
                    raise ColumnNotFoundError.of(name, columns, where="Bucketize (`boundaries`)")
        return self

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        for name in columns:
            if isinstance(self.boundaries, Mapping) and name not in self.boundaries:
                raise ConfigError(f"Bucketize has no boundaries for `{name}`", hint="name it, or leave the column out")
        return super().sources(columns)

    def partial(self, frame: pl.LazyFrame, group: Group) -> pl.LazyFrame:
        (name,) = group
        dtype = frame.select(name).collect_schema()[name]
        inner = dtype.inner if isinstance(dtype, (pl.List, pl.Array)) else dtype
        if not (inner.is_numeric() or inner == pl.Null):
            raise SchemaError(f"Bucketize needs numbers, `{name}` is {dtype}", hint="cast it first")
        counted = quantiles.counts(frame.head(0) if self.is_given(group) else frame, name)
        return counted.select(pl.all().name.map(lambda plain: name + _STATE[_PLAIN.index(plain)]))

    def is_given(self, group: Group) -> bool:
        return not isinstance(self._of(group[0]), int)

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        names = states[0].columns
        merged = quantiles.merge([state.rename(dict(zip(names, _PLAIN, strict=True))) for state in states])
        return merged.rename(dict(zip(_PLAIN, names, strict=True)))

    def finish(self, state: pl.DataFrame) -> Bucketized:
        given = self._of(state.columns[0])
        if not isinstance(given, int):
            return Bucketized(boundaries=given)
        counted = state.rename(dict(zip(state.columns, _PLAIN, strict=True)))
        found = quantiles.quantiles(counted, [i / given for i in range(1, given)])
        return Bucketized(boundaries=tuple(dict.fromkeys(found)))

    def _of(self, name: str) -> int | Boundaries:
        given = self.boundaries[name] if isinstance(self.boundaries, Mapping) else self.boundaries
        return given if isinstance(given, int) else tuple(given)


_PLAIN = ("value", "binned", "count")


@dataclass(frozen=True, kw_only=True)
class Bucketized(ColumnOp):
    """`Bucketize`, fitted."""

    boundaries: Boundaries

    def expr(self, x: pl.Expr, column: Column) -> pl.Expr:
        return coded(x, column, self._code, self._type)

    def _code(self, x: pl.Expr, dtype: pl.DataType) -> pl.Expr:
        if dtype.is_integer():
            known: pl.DataType = pl.UInt64() if dtype == pl.UInt64 else pl.Int64()
            low, high = (0, 2**64 - 1) if dtype == pl.UInt64 else (-(2**63), 2**63 - 1)
            # A whole number is at least b where it is at least b rounded up, which compares without rounding x.
            least = [b if not isfinite(b) else ceil(b) for b in self.boundaries]
            below = sum(b < low for b in least)
            boundaries = pl.Series([b for b in least if low <= b <= high], dtype=known)
        else:
            known, below, boundaries = pl.Float64(), 0, pl.Series(self.boundaries, dtype=pl.Float64)
        if not len(boundaries):
            return pl.lit(FIRST + below, dtype=self._type)
        return (pl.lit(boundaries).search_sorted(x.cast(known), side="right") + (FIRST + below)).cast(self._type)

    @property
    def _cardinality(self) -> int:
        return FIRST + len(self.boundaries) + 1

    @property
    def _type(self) -> pl.DataType:
        return code_type(self._cardinality)

    def describe(self, column: Column) -> Column:
        return describe_codes(column, self._cardinality)

    def row(self, values: dict[str, Any], columns: Mapping[str, Column]) -> dict[str, Any]:
        return {name: coded_value(value, columns[name], self._code_value) for name, value in values.items()}

    def _code_value(self, value: Any) -> int:
        return FIRST + bisect_right(self.boundaries, value)


def _checked(given: Any, name: str | None = None) -> int | Boundaries:
    where = f"Bucketize boundaries={given!r}{f' of `{name}`' if name else ''}"
    if isinstance(given, int) and not isinstance(given, bool):
        if given < 2:
            raise ConfigError(where, hint="a number of buckets is at least 2; a single boundary is a list of one")
        return given
    numbers = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else None
    if not numbers or any(isinstance(b, bool) or not isinstance(b, (int, float)) or not isfinite(b) for b in numbers):
        raise ConfigError(where, hint="finite numbers in ascending order, or how many buckets there shall be")
    if any(b <= a for a, b in pairwise(numbers)):
        raise ConfigError(f"{where} are not ascending", hint="sort them, each once")
    return numbers
