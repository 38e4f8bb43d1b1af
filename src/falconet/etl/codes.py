"""What all codes have in common: 0 is padding and never made, 1 is null or NaN, what there is starts at 2.

A list is coded element by element: a null element is 1, an empty list stays empty, a null list becomes [1] (unknown is
not none).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from falconet.etl.types import polars_type
from falconet.schema import Column, Tag

NULL, FIRST = 1, 2
_BLOCK = 1 << 20  # counts that are sorted at a time


def code_type(cardinality: int) -> pl.Int32 | pl.Int64:
    """Int32, or Int64 where that is too small."""
    return pl.Int32() if cardinality < 2**31 else pl.Int64()


def missing(x: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Whether a value is null or NaN."""
    return x.is_null() | x.is_nan() if dtype.is_float() else x.is_null()


def coded(
    x: pl.Expr, column: Column, code: Callable[[pl.Expr, pl.DataType], pl.Expr], out: pl.DataType | type[pl.DataType]
) -> pl.Expr:
    """The codes of a column, as `out`. `code` gives those of values of one type; what it says of nulls is ignored."""

    def one(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
        return pl.when(missing(value, dtype)).then(pl.lit(NULL, dtype=out)).otherwise(code(value, dtype))

    dtype = polars_type(column)
    if isinstance(dtype, pl.Array):
        x, dtype = x.arr.to_list(), pl.List(dtype.inner)
    if not isinstance(dtype, pl.List):
        return one(x, dtype)
    inner = dtype.inner if isinstance(dtype.inner, pl.DataType) else dtype.inner()
    return x.list.eval(one(pl.element(), inner)).fill_null(pl.lit([NULL], dtype=pl.List(out)))


def coded_value(value: Any, column: Column, code: Callable[[Any], int]) -> Any:
    """`coded` for one row in plain Python."""
    if column.is_list:
        return [NULL] if value is None else [NULL if x is None or x != x else code(x) for x in value]
    return NULL if value is None or value != value else code(value)


def describe_codes(column: Column, cardinality: int, *, oov: int | None = None, domain: str | None = None) -> Column:
    """The column once it holds codes below `cardinality`."""
    return replace(
        column,
        tags=column.tags - {Tag.CONTINUOUS} | {Tag.CATEGORICAL},
        nullable=False,
        cardinality=cardinality,
        oov=oov,
        domain=domain,
        min=None,
        max=None,
    )


def shared_tags(inputs: Mapping[str, Column]) -> frozenset[str]:
    """The tags of a column of combinations: those that all members have, except what says how a value is to be read."""
    shared = frozenset.intersection(*(column.tags for column in inputs.values()))
    return shared - {Tag.ID, Tag.EMBEDDING, Tag.TIME, Tag.TEXT, Tag.CONTINUOUS}


def by_count(counts: pl.Series) -> pl.Series:
    """The places of counts, the largest first, equal ones in their order.

    A counting sort, block by block: Polars' stable sort takes several times the memory of a large vocabulary.
    """
    sizes = counts.value_counts(name="places").sort(counts.name, descending=True)
    least_first = sizes[counts.name].reverse().to_numpy()
    ends = sizes["places"].cast(pl.Int64).cum_sum().to_numpy()
    starts = np.concatenate([[0], ends[:-1]])  # where the next place with each count goes
    order = np.empty(len(counts), np.uint32 if len(counts) < 2**32 else np.uint64)
    for first in range(0, len(counts), _BLOCK):
        block = counts[first : first + _BLOCK].to_numpy()
        rank = len(sizes) - 1 - np.searchsorted(least_first, block)
        local = np.argsort(rank, kind="stable")
        rank = rank[local]
        begins = np.flatnonzero(np.diff(rank, prepend=-1))
        length = np.diff(begins, append=len(rank))
        order[starts[rank] + np.arange(len(rank)) - np.repeat(begins, length)] = first + local
        starts[rank[begins]] += length
    return pl.Series(order)
