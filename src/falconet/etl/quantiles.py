"""Quantiles that merge: how often each value was seen, or each bin of values where there are too many of them.

A state has the columns `value` (Float64), `binned` and `count`, ascending, behind the columns of a key where there is
one. Up to `EXACT` distinct values (per key) it holds the values themselves and every quantile is exact; above that it
holds the middles of fixed bins, which a value's own bits name: its sign, exponent and first 9 binary digits. A bin is
2^-9 of its value wide, so that its middle is at most 0.1 % away (of numbers too small for the usual precision, below
2.3e-308, it becomes 0). Nothing but counts is kept, so a state is the same however the data was cut.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import polars as pl

from falconet.compute.engine import collect
from falconet.etl.table import flatten, one_zero

COLUMNS = ("value", "binned", "count")
EXACT = 1_000_000
MEDIAN = "median"
EXAMPLES = ("q25", "q99.5")  # of names of quantiles
_NAMED = re.compile(r"q(\d{1,2}(?:\.\d+)?|100)")
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
    """The values below which these shares (0 to 1) of all lie; none where there are no values."""
    return [value for row in of_keys(state, {str(share): share for share in shares}).rows() for value in row]


def median(state: pl.DataFrame) -> float | None:
    """The middle value, or the mean of the two in the middle; None where there are no values."""
    found = of_keys(state, {MEDIAN: 0.5})
    return found[MEDIAN].item() if len(found) else None


def share_of(statistic: str) -> float | None:
    """The share that the name of a statistic stands for: of "median", "q25", "q99.5"; None for other names."""
    if statistic == MEDIAN:
        return 0.5
    return float(found[1]) / 100 if (found := _NAMED.fullmatch(statistic)) else None


def of_keys(state: pl.DataFrame, shares: Mapping[str, float], by: Sequence[str] = ()) -> pl.DataFrame:
    """Quantiles of each key of a state: its columns, and a Float64 by the name of each share, in the state's order.

    Between two values linearly, as numpy's `quantile` does (Hyndman and Fan's definition 7); what is called "median" is
    their mean, as of numpy's `median`.
    """
    total = pl.col("count").sum().alias("rows")
    keys = state.group_by(by, maintain_order=True).agg(total) if by else state.select(total).head(len(state))
    rows, values = keys["rows"].to_numpy(), state["value"].to_numpy()
    before = np.cumsum(rows) - rows
    ends = np.cumsum(state["count"].to_numpy())  # counted from 0, a value has the rows below its end
    found = []
    for name, share in shares.items():
        place = (rows - 1) * share
        low, high = (
            values[np.searchsorted(ends, before + side.astype(np.int64), side="right")]
            for side in (np.floor(place), np.ceil(place))
        )
        beside = pl.DataFrame({"low": low, "high": high, "rest": place % 1})
        found.append(beside.select(between(name, *map(pl.col, beside.columns)).alias(name)))
    return pl.concat([keys.select(by), *found], how="horizontal")


def between(name: str, low: pl.Expr, high: pl.Expr, rest: pl.Expr) -> pl.Expr:
    """The quantile of this name between two neighbours of which the first is `rest` (0 to 1) away.

    numpy's, bit for bit; two equal infinities are that infinity.
    """
    gap = high - low
    if name == MEDIAN:
        sum_ = low + high
        apart = pl.when(sum_.is_infinite()).then(low / 2 + high / 2).otherwise(sum_ / 2)
    else:
        far = low * (1 - rest) + high * rest
        near = pl.when(rest < 0.5).then(low + gap * rest).otherwise(high - gap * (1 - rest))
        apart = pl.when(gap.is_infinite()).then(far).otherwise(near)
    return pl.when((low == high) | (rest == 0)).then(low).otherwise(apart)


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
