"""DataStats: what is in the columns that pass by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from falconet.compute.engine import collect
from falconet.etl import keys, moments
from falconet.etl.op import OPS, ColumnOp, Group, StatOp
from falconet.etl.table import flatten, one_zero
from falconet.etl.types import column_of, element
from falconet.schema import Column

_ROWS = ("dtype", "row_count", "value_count", "present", "min", "max", "shortest", "longest")
_SUMS = tuple(moments.columns(squares=True))
_DISTINCT = ("distinct",)


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class DataStats(StatOp):
    """Learns what is in its columns, which come out as they are; `DataStats.of(fitted)` says it.

    Sums are exact, so that every number is the same bits however the data was cut. Counting different values needs the
    memory of the values themselves.
    """

    @staticmethod
    def of(fitted: Any) -> dict[str, ColumnStats]:
        """What a fitted workflow learned, by column; where several DataStats saw a name, the last one's."""
        found = {}
        for step in fitted.plan.steps:
            if isinstance(step.op, DataStats):
                found.update({group[0]: step.op.finish(fitted.states[(step.id, group)]) for group in step.states})
        return found

    def partial(self, frame: pl.LazyFrame, group: Group) -> pl.LazyFrame:
        (name,) = group
        dtype = frame.select(name).collect_schema()[name]
        kind = element(dtype)
        x, lists = flatten(pl.col(name), dtype), pl.col(name)
        lists = lists.arr.to_list() if isinstance(dtype, pl.Array) else lists
        values = frame.select((one_zero(x.fill_nan(None)) if kind.is_float() else x).alias("value"))
        measured = values.select(_measured(pl.col("value"), kind))
        lengths = lists.list.len().cast(pl.Int64) if dtype.is_nested() else pl.lit(None, dtype=pl.Int64)
        said = pl.lit(column_of(name, dtype).dtype)
        rows = [
            frame.select(said.alias("dtype"), pl.len().cast(pl.Int64).alias("row_count")),
            measured.select(
                pl.len().cast(pl.Int64).alias("value_count"),
                pl.col("value").count().cast(pl.Int64).alias("present"),
                pl.col("value").min().alias("min"),
                pl.col("value").max().alias("max"),
            ),
            frame.select(lengths.min().alias("shortest"), lengths.max().alias("longest")),
        ]
        states = [pl.concat(rows, how="horizontal")]
        if _is_summed(kind):
            states.append(moments.sums(measured, "value", squares=True))
        if not kind.is_float():
            states.append(values.select(pl.col("value").alias("distinct")).drop_nulls().unique().sort("distinct"))
        return keys.bundle(states)

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        merged = []
        for part, columns in enumerate(_parts(states[0])):
            own = [keys.part_of(state, part, columns) for state in states]
            if columns is _ROWS:
                merged.append(
                    pl.concat(own).select(
                        pl.col("dtype").first(),
                        pl.col("row_count", "value_count", "present").sum(),
                        pl.col("min").min(),
                        pl.col("max").max(),
                        pl.col("shortest").min(),
                        pl.col("longest").max(),
                    )
                )
            else:
                merged.append(moments.merge(own) if columns is _SUMS else pl.concat(own).unique().sort("distinct"))
        return collect(keys.bundle([state.lazy() for state in merged]))

    def finish(self, state: pl.DataFrame) -> ColumnStats:
        found: dict[str, Any] = {}
        for part, columns in enumerate(_parts(state)):
            own = keys.part_of(state, part, columns)
            if columns is _ROWS:
                found |= own.row(0, named=True)
            elif columns is _DISTINCT:
                found["cardinality"] = len(own)
            else:
                found |= next(moments.finish(own).select("mean", "std").iter_rows(named=True), {})
        return ColumnStats(**found)


@dataclass(frozen=True, kw_only=True)
class ColumnStats(ColumnOp):
    """`DataStats`, fitted: what is in one column; of lists, what is in their elements.

    Nulls and NaN are no values. Of strings (and bytes) `min`, `max`, `mean` and `std` (ddof 1) are of their lengths,
    in characters; times have no `mean` and `std`, floats no `cardinality` (how many different values there are).
    `shortest` and `longest` are the lengths of lists. What there is nothing to say about is None.
    """

    dtype: str
    row_count: int
    value_count: int
    present: int
    min: Any
    max: Any
    shortest: int | None
    longest: int | None
    mean: float | None = None
    std: float | None = None
    cardinality: int | None = None

    @property
    def null_share(self) -> float:
        """The share of rows (of elements, for lists) that are null or NaN."""
        return 1 - self.present / self.value_count if self.value_count else 0.0

    def expr(self, x: pl.Expr, column: Column) -> pl.Expr:
        return x

    def row(self, values: dict[str, Any], columns: Mapping[str, Column]) -> dict[str, Any]:
        return values


def _parts(state: pl.DataFrame) -> list[tuple[str, ...]]:
    """The states in a state, each as its columns."""
    return [columns for columns in (_ROWS, _SUMS, _DISTINCT) if columns[0] in state.columns]


def _measured(x: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """Strings and bytes as their lengths."""
    if kind == pl.String:
        return x.str.len_chars().cast(pl.Int64)
    return x.bin.size().cast(pl.Int64) if kind == pl.Binary else x


def _is_summed(kind: pl.DataType) -> bool:
    return moments.is_summable(kind) or kind in (pl.String, pl.Binary)
