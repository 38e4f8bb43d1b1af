"""Counts, sums, means and variances that are the same bits however the data was cut: exact, rounded once at the end.

A finite float is an integer times a power of two. A state has, behind the columns of a key, one row per `exponent`: how
many values there are (`count`) and the sums of their integers (`number`) and, where variances are wanted, of their
squares (in halves: `high2`, `cross`, `low2`). Exponents are 10 apart, so that most columns have one or two; integers
have 0. Infinities are counted in rows of their own. Every sum is an Int128, stored as two Int64 that every
reader of Parquet knows: top * 2^62 + bottom.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from falconet.compute.engine import collect
from falconet.errors import DataError, SchemaError
from falconet.etl.table import flatten
from falconet.etl.types import element

Integers = NDArray[Any]
"""Python's own, which have no end."""
INFINITE = 1 << 14
"""Under this exponent positive infinities are counted, under its negative the negative ones."""
_HALF = 1 << 32
_WINDOW = 10  # the 53 binary digits of a float, moved by up to 9 places, fit an Int64
_NEAR_ONE = -55  # of the numbers from 1/8 to 128, with which zeros stand
_PRODUCTS = ("high2", "cross", "low2")


def is_summable(dtype: pl.DataType) -> bool:
    """Whether values of this type (elements, for lists) can be summed: numbers, Booleans, and nulls alone."""
    kind = element(dtype)
    return kind.is_numeric() or kind in (pl.Boolean, pl.Null)


def is_integer(dtype: pl.DataType) -> bool:
    """Whether the sum of such values is an integer."""
    kind = element(dtype)
    return kind.is_integer() or kind == pl.Boolean


def sums(
    frame: pl.LazyFrame, name: str, by: Sequence[str] = (), *, squares: bool = False, where: str = "a sum"
) -> pl.LazyFrame:
    """The state of one part: the values of a column, of the elements of its lists; nulls and NaN are no values.

    `by` are the columns of a key, whose nulls are a key of their own. Raises SchemaError for what are no numbers.
    """
    dtype = frame.select(name).collect_schema()[name]
    if not is_summable(dtype):
        raise SchemaError(f"{where} needs numbers, `{name}` is {dtype}", hint="cast it, or Categorify it")
    kind, x = element(dtype), flatten(pl.col(name), dtype)
    if kind.is_integer() or kind == pl.Boolean:
        integer = x.cast(pl.UInt64 if kind == pl.UInt64 else pl.Int64).alias("number")
        values = frame.select(*by, integer).drop_nulls("number")
        values = values.with_columns(pl.lit(0, dtype=pl.Int32).alias("exponent"))
    else:
        values = frame.select(*by, x.cast(pl.Float64).fill_nan(None).alias("number")).drop_nulls("number")
        values = values.with_columns(_exponent(pl.col("number")).alias("exponent"))
        values = values.with_columns(_integer(pl.col("number"), pl.col("exponent")))
    names = _names(squares)
    summed = _halves(values, by, squares).group_by(*by, "exponent")
    counted = summed.agg(pl.len().cast(pl.Int64).alias("count"), pl.col(columns(squares=squares)[2:]).sum())
    whole = [_whole(name, _HALF).alias(name) for name in names]
    return _stored(counted.select(*by, "exponent", "count", *whole), by, names)


def columns(*, squares: bool = False) -> list[str]:
    """The columns of a state, those of a key apart."""
    return ["exponent", "count", *(f"{name}_{end}" for name in _names(squares) for end in ("top", "bottom"))]


def merge(states: Sequence[pl.DataFrame], by: Sequence[str] = ()) -> pl.DataFrame:
    """One state from many. Associative and commutative."""
    names = _names("high2_top" in states[0].columns)
    whole = [_whole(name, 1 << 62).sum().alias(name) for name in names]
    summed = pl.concat(states).lazy().group_by(*by, "exponent").agg(pl.col("count").sum(), *whole)
    return collect(_stored(summed, by, names))


def finite(state: pl.LazyFrame) -> pl.LazyFrame:
    """A state without its infinities."""
    return state.filter(pl.col("exponent").abs() != INFINITE)


def found(state: pl.Schema, by: Sequence[str] = (), *, integer: bool = False) -> pl.Schema:
    """The columns that `finish` gives for states with these columns."""
    names = ("mean", "var", "std") if "high2_top" in state else ("mean",)
    numbers = {
        "count": pl.Int64(),
        "sum": pl.Int64() if integer else pl.Float64(),
        **dict.fromkeys(names, pl.Float64()),
    }
    return pl.Schema({**{name: state[name] for name in by}, **numbers})


def finish(state: pl.DataFrame, by: Sequence[str] = (), *, integer: bool = False, where: str = "a sum") -> pl.DataFrame:
    """Per key, sorted by it: its columns, `count`, `sum`, `mean` and, of squares, `var` and `std`.

    Each is the exact value rounded once (`std`: the root of the rounded variance). The sum is Float64, of `integer`
    columns Int64: DataError where it does not fit. Variance and deviation have ddof 1 and are null for a single value.
    With an infinity sum and mean are infinite (null with both infinities), variance and deviation null.
    """
    squares = "high2_top" in state.columns
    schema = found(state.schema, by, integer=integer)
    names = [name for name in schema if name not in (*by, "count")]
    if state.is_empty():
        return schema.to_frame()
    exponent = pl.when(pl.col("exponent").abs() != INFINITE).then("exponent").otherwise(0)
    rows = state.with_columns(at=exponent.cast(pl.Int64)).sort(*by, "at")
    per_key = (
        pl.len().cast(pl.Int64).alias("rows"),
        pl.col("count").sum(),
        pl.col("at").first().alias("least"),
        (pl.col("exponent") == INFINITE).any().alias("plus"),
        (pl.col("exponent") == -INFINITE).any().alias("minus"),
    )
    groups = rows.group_by(by, maintain_order=True).agg(per_key) if by else rows.select(per_key)
    first = (groups["rows"].cum_sum() - groups["rows"]).to_numpy()
    least = groups["least"].to_numpy()
    shift = (rows["at"].to_numpy() - np.repeat(least, groups["rows"].to_numpy())).astype(object)
    up, down = np.maximum(least, 0).astype(object), np.maximum(-least, 0).astype(object)
    count = groups["count"].to_numpy().astype(object)
    total = np.add.reduceat(_integers(rows, "number") << shift, first)
    made: dict[str, pl.Series] = {"mean": _each(_ratio, total << up, count << down)}
    made["sum"] = _sum(total, where) if integer else _each(_ratio, total << up, count**0 << down)
    if squares:
        square = (_integers(rows, "high2") << 64) + (_integers(rows, "cross") << 33) + _integers(rows, "low2")
        over = (np.add.reduceat(square << 2 * shift, first) * count - total * total) << 2 * up
        under = count * (count - 1) << 2 * down
        made["var"], made["std"] = _each(_ratio, over, under), _each(_root, over, under)
    return groups.with_columns(**made).select(*by, "count", *(names if integer else map(_reached, names)))


def _reached(name: str) -> pl.Expr:
    """A statistic where there are infinities."""
    plus, minus = pl.col("plus"), pl.col("minus")
    end = pl.when(plus & minus).then(None).when(plus).then(math.inf).otherwise(-math.inf)
    reached = end if name in ("sum", "mean") else None
    return pl.when(plus | minus).then(reached).otherwise(name).alias(name)


def _exponent(x: pl.Expr) -> pl.Expr:
    """The power of two under which a float is counted."""
    biased = (x.reinterpret(dtype=pl.Int64) // 2**52) & 2047
    window = (pl.max_horizontal(biased, 1) - 1075 - _NEAR_ONE) // _WINDOW * _WINDOW + _NEAR_ONE
    infinite = pl.when(x > 0).then(INFINITE).otherwise(-INFINITE)
    return pl.when(x == 0).then(_NEAR_ONE).when(biased == 2047).then(infinite).otherwise(window).cast(pl.Int32)


def _integer(x: pl.Expr, exponent: pl.Expr) -> pl.Expr:
    """The float as an integer times two to the power of `exponent`; infinities as 0.

    The exponent is taken off the one in the float's bits, which rounds nothing.
    """
    bits = x.reinterpret(dtype=pl.Int64) - exponent.cast(pl.Int64) * 2**52
    tiny = x * 2.0**540 * 2.0**535  # numbers below 2^-1022 have no exponent in their bits; theirs here is -1075
    moved = pl.when(x.abs() < 2.0**-1022).then(tiny).otherwise(bits.reinterpret(dtype=pl.Float64))
    return pl.when(exponent.abs() == INFINITE).then(0).otherwise(moved.cast(pl.Int64, strict=False)).alias("number")


def _halves(values: pl.LazyFrame, by: Sequence[str], squares: bool) -> pl.LazyFrame:
    """`number`, and the products of its halves, each as top * 2^32 + bottom in Int64, whose sums fit for 2^31 rows."""
    split = values.with_columns(high=pl.col("number") // _HALF, low=pl.col("number") & (_HALF - 1))
    high, low = pl.col("high"), pl.col("low")
    halves = [high.cast(pl.Int64).alias("number_top"), low.cast(pl.Int64).alias("number_bottom")]
    if squares:
        unsigned = low.cast(pl.UInt64)
        for name, product in zip(_PRODUCTS, (high * high, high * low, unsigned * unsigned), strict=True):
            halves.append((product // _HALF).cast(pl.Int64).alias(f"{name}_top"))
            halves.append((product & (_HALF - 1)).cast(pl.Int64).alias(f"{name}_bottom"))
    return split.select(*by, "exponent", *halves)


def _names(squares: bool) -> tuple[str, ...]:
    return ("number", *(_PRODUCTS if squares else ()))


def _whole(name: str, base: int) -> pl.Expr:
    return pl.col(f"{name}_top").cast(pl.Int128) * base + pl.col(f"{name}_bottom").cast(pl.Int128)


def _stored(summed: pl.LazyFrame, by: Sequence[str], names: Sequence[str]) -> pl.LazyFrame:
    """Each Int128 as two Int64, in order."""
    halves = []
    for name in names:
        top = pl.col(name) // 2**62
        halves.append(top.cast(pl.Int64).alias(f"{name}_top"))
        halves.append((pl.col(name) - top * 2**62).cast(pl.Int64).alias(f"{name}_bottom"))
    return summed.select(*by, "exponent", "count", *halves).sort(*by, "exponent")


def _integers(state: pl.DataFrame, name: str) -> Integers:
    top, bottom = (state[f"{name}_{end}"].to_numpy().astype(object) for end in ("top", "bottom"))
    whole: Integers = (top << 62) + bottom
    return whole


def _sum(total: Integers, where: str) -> pl.Series:
    if any(not -(2**63) <= value < 2**63 for value in total):
        raise DataError(f"{where} does not fit 64 bits", hint="cast the column to floats first")
    return pl.Series(total.tolist(), dtype=pl.Int64)


def _each(f: Callable[[int, int], float | None], over: Integers, under: Integers) -> pl.Series:
    return pl.Series([f(a, b) for a, b in zip(over.tolist(), under.tolist(), strict=True)], dtype=pl.Float64)


def _ratio(over: int, under: int) -> float | None:
    """Correctly rounded, as Python divides integers; infinite where it is too large, None for a division by 0."""
    if under == 0:
        return None
    try:
        return over / under
    except OverflowError:
        return math.inf if over > 0 else -math.inf


def _root(over: int, under: int) -> float | None:
    """The square root, also of what is too large or too small for a float."""
    if under == 0 or over == 0:
        return None if under == 0 else 0.0
    half = (over.bit_length() - under.bit_length()) // 2
    return math.ldexp(math.sqrt((over << max(-2 * half, 0)) / (under << max(2 * half, 0))), half)
