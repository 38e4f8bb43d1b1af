"""Quantiles that merge: how often each value was seen, or each bin of values where there are too many of them.

A state has the columns `value` (Float64), `binned` and `count`, ascending, behind the columns of a key where there is
one. Up to `EXACT` distinct values (per key) it holds the values themselves and every quantile is exact; above that it
holds the middles of fixed bins, which a value's own bits name: its sign, exponent and first 9 binary digits. A bin is
2^-9 of its value wide, so that its middle is at most 0.1 % away (of numbers too small for the usual precision, below
2.3e-308, it becomes 0). Nothing but counts is kept, so a state is the same however the data was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import isinf

import numpy as np
import polars as pl

from falconet.compute.engine import collect
from falconet.etl.table import flatten, one_zero

COLUMNS = ("value", "binned", "count")
EXACT = 1_000_000
_BIN = 1 << 43  # what the 9 digits after a number's first leave of its 52 digits
_SMALLEST = 2.0**-1022


def counts(frame: pl.LazyFrame, name: str, by: Sequence[str] = ()) -> pl.LazyFrame:
    """The state of one part: the values of a column of numbers or Booleans, of the elements of its lists.

    Nulls and NaN are no values; the infinities are. `by` are the columns of a key, whose nulls are a key of their own.
    """
    x = flatten(pl.col(name), frame.select(name).collect_schema()[name])
    values = frame.select(*by, x.cast(pl.Float64).fill_nan(None).alias("value")).drop_nulls("value")
    plain = values.with_columns(one_zero(pl.col("value")).alias("value"))
    counted = plain.group_by(*by, "value").agg(pl.len().cast(pl.Int64).alias("count"))
    state = counted.select(*by, "value", pl.lit(False).alias("binned"), "count").sort(*by, "value")
    return state.map_batches(partial(_bounded, by=by), schema=state.collect_schema())


def merge(states: Sequence[pl.DataFrame], by: Sequence[str] = ()) -> pl.DataFrame:
    """One state from many. Associative and commutative."""
    return _bounded(_sum(pl.concat(states), by), by)


def quantiles(state: pl.DataFrame, shares: Sequence[float]) -> list[float]:
    """The values below which these shares (0 to 1) of all lie; none where there are no values.

    Between two values linearly, as numpy's `quantile` does (Hyndman and Fan's definition 7).
    """
    if state.is_empty():
        return []
    values, ends = state["value"].to_numpy(), state["count"].cum_sum().to_numpy()
    found = []
    for share in shares:
        place = float(ends[-1] - 1) * share
        before = int(place)
        low, high = values[np.searchsorted(ends, [before, min(before + 1, ends[-1] - 1)], side="right")]
        found.append(_between(float(low), float(high), place - before))
    return found


def median(state: pl.DataFrame) -> float | None:
    """The middle value, or the mean of the two in the middle; None where there are no values."""
    found = medians(state)
    return found["median"].item() if len(found) else None


def medians(state: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """The middle value of each key of a state: its columns and `median` (Float64), in the order of the state."""
    total = pl.col("count").sum().alias("rows")
    keys = state.group_by(by, maintain_order=True).agg(total) if by else state.select(total).head(len(state))
    rows, values = keys["rows"].to_numpy(), state["value"].to_numpy()
    before = np.cumsum(rows) - rows
    ends = np.cumsum(state["count"].to_numpy())  # counted from 0, a value has the rows below its end
    middle = (values[np.searchsorted(ends, before + place, side="right")] for place in ((rows - 1) // 2, rows // 2))
    both = keys.with_columns(pl.Series(name, side) for name, side in zip(("low", "high"), middle, strict=True))
    low, high = pl.col("low"), pl.col("high")
    found = pl.when(low == high).then(low).when((low + high).is_infinite()).then(low / 2 + high / 2)
    return both.select(*by, found.otherwise((low + high) / 2).alias("median"))


def _between(low: float, high: float, share: float) -> float:
    """numpy's interpolation, bit for bit; two equal infinities are that infinity."""
    if low == high or share == 0:
        return low
    if isinf(high - low):
        return low * (1 - share) + high * share
    return low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)


def _bounded(state: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Bins in place of the values of the keys that have too many, or have bins already."""
    too_many = ((pl.len() > EXACT) | pl.col("binned").any()).alias("binned")
    if len(state) <= EXACT and not state["binned"].any():
        return state
    if by and not state.group_by(by).agg(too_many)["binned"].any():
        return state
    marked = state.with_columns(too_many.over(by) if by else too_many)
    value = pl.when("binned").then(_middle(pl.col("value"))).otherwise("value")
    return _sum(marked.with_columns(value), by)


def _sum(state: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    summed = state.lazy().group_by(*by, "value").agg(pl.col("binned").any(), pl.col("count").sum())
    return collect(summed.sort(*by, "value").select(*by, *COLUMNS))


def _middle(x: pl.Expr) -> pl.Expr:
    """The middle of a number's bin. It lies in the bin itself, so binning twice changes nothing."""
    middle = ((x.reinterpret(dtype=pl.Int64) & -_BIN) | (_BIN // 2)).reinterpret(dtype=pl.Float64)
    return pl.when(x.is_infinite()).then(x).when(x.abs() < _SMALLEST).then(0.0).otherwise(middle)
