"""Operators over the events of a key in order: DifferenceLag, TimeSince, Position, Session.

They see all events of a key together, however the data is cut, sorted by time and, where times are equal, by row
number. A null time comes first. Rows whose key is null (or NaN, or null in part) belong to nobody: they get nulls.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import polars as pl

from falconet.compute.executor import ROW
from falconet.errors import ConfigError, SchemaError
from falconet.etl.op import OPS, KeyedOp, as_tuple, freeze
from falconet.etl.table import one_value
from falconet.schema import Column, Tag

_NANOSECONDS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
_LARGEST = 2**63 - 1
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s|m|h|d)")


@dataclass(frozen=True, kw_only=True)
class _OfEvents(KeyedOp):
    """What the operators share: the key, the columns they read beside the selected ones, and who has none."""

    partition_cols: str | Sequence[str]

    def __post_init__(self) -> None:
        freeze(self, partition_cols=as_tuple(self.partition_cols))
        if not self.partition_cols:
            raise ConfigError(f"{type(self).__name__} has no `partition_cols`", hint="name the column of users")

    @property
    def key(self) -> tuple[str, ...]:
        return as_tuple(self.partition_cols)

    @property
    def also(self) -> tuple[str, ...]:
        """The columns that are read beside the selected ones."""
        return tuple(dict.fromkeys((*self.key, *self.order)))

    def checked(self, frame: pl.LazyFrame) -> pl.Schema:
        """The types of the columns that are read, each with one value per row."""
        one_value(frame, self.also, type(self).__name__)
        return frame.select(self.also).collect_schema()

    def of_somebody(self, x: pl.Expr, types: pl.Schema) -> pl.Expr:
        """`x` where the key is known, else null."""
        return pl.when(pl.all_horizontal(_known(name, types[name]) for name in self.key)).then(x)


@dataclass(frozen=True, kw_only=True)
class _Adds(_OfEvents):
    """Those that add columns to the selected ones."""

    @property
    @abstractmethod
    def adds(self) -> tuple[str, ...]:
        """The new columns."""

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        for name in self.adds:
            if name in columns or name in self.also:
                raise ConfigError(
                    f"{type(self).__name__} would add a second column `{name}`", hint="choose another `name`"
                )
        return {name: (name,) for name in columns} | dict.fromkeys(self.adds, self.also)

    def untouched(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        return columns


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class DifferenceLag(_OfEvents):
    """x minus the x of `shift` rows before among the rows of the same key; a negative shift looks ahead.

    Each selected column gives `<column>_difference_lag_<shift>` for each shift; selected `partition_cols` come out as
    they are. Rows are in the order of `sort_cols`, then of their row numbers. Null where the key has no such row or one
    of the two values is null.

    Float64 for floats (NaN stays NaN). Int64 for everything else, so no digit is lost: times differ by whole numbers of
    their unit (days for dates), and a difference beyond 64 bits is null.
    """

    shift: int | Sequence[int] = 1
    sort_cols: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        shifts = tuple(self.shift) if isinstance(self.shift, Sequence) else (self.shift,)
        if not shifts or len(set(shifts)) < len(shifts) or any(type(s) is not int or s == 0 for s in shifts):
            raise ConfigError(f"DifferenceLag shift={self.shift!r}", hint="whole numbers other than 0, each once")
        freeze(self, shift=shifts, sort_cols=as_tuple(self.sort_cols))

    @property
    def shifts(self) -> tuple[int, ...]:
        return (self.shift,) if isinstance(self.shift, int) else tuple(self.shift)

    @property
    def order(self) -> tuple[str, ...]:
        return as_tuple(self.sort_cols)

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        made = {
            f"{name}_difference_lag_{s}": tuple(dict.fromkeys((name, *self.also)))
            for s in self.shifts
            for name in columns
            if name not in self.key
        }
        return {name: (name,) for name in self.untouched(columns)} | made

    def untouched(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in columns if name in self.key)

    def describe(self, inputs: Mapping[str, Column], outputs: Mapping[str, Column]) -> Mapping[str, Column]:
        return {name: c if name in inputs else _continuous(c) for name, c in outputs.items()}

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        keys, own = self.checked(frame), [name for name in columns if name not in self.key]
        one_value(frame, own, "DifferenceLag")
        types = frame.select(own).collect_schema()
        return frame.with_columns(
            self.of_somebody(_difference(name, types[name], pl.col(name).shift(s).over(self.key)), keys).alias(
                f"{name}_difference_lag_{s}"
            )
            for s in self.shifts
            for name in own
        )


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class TimeSince(_Adds):
    """The time since the key's event before this one, as the column `name`.

    With `item` also the time since the key's event before this one with the same item, as `<name>_<item>`. Events of
    one time are in the order of their row numbers, so a tied later row is 0 away from the earlier one. Null for a first
    event, and for rows whose time (or item) is null or NaN, which are no events.

    Int64 in the unit of the time column (days for dates), Float64 where times are floats.
    """

    time: str
    item: str | None = None
    name: str = "time_since"

    @property
    def order(self) -> tuple[str, ...]:
        return (self.time,)

    @property
    def also(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*super().also, *as_tuple(self.item))))

    @property
    def adds(self) -> tuple[str, ...]:
        return (self.name,) if self.item is None else (self.name, f"{self.name}_{self.item}")

    def describe(self, inputs: Mapping[str, Column], outputs: Mapping[str, Column]) -> Mapping[str, Column]:
        return {name: c if name in inputs else _continuous(c) for name, c in outputs.items()}

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        types = self.checked(frame)
        since = _since(self.time, types[self.time])
        made = {self.name: since.over(self.key)}
        if self.item is not None:
            of_pair = since.over(*self.key, self.item)
            made[f"{self.name}_{self.item}"] = pl.when(_known(self.item, types[self.item])).then(of_pair)
        return frame.with_columns(self.of_somebody(x, types).alias(name) for name, x in made.items())


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class Position(_Adds):
    """Which of its key's rows this one is, from 1 on, as the Int64 column `name`.

    Rows are in the order of `sort_cols`, then of their row numbers. With `partition_cols=["user", "item"]` it is one
    more than how often the user met the item before.
    """

    sort_cols: str | Sequence[str] | None = None
    name: str = "position"

    def __post_init__(self) -> None:
        super().__post_init__()
        freeze(self, sort_cols=as_tuple(self.sort_cols))

    @property
    def order(self) -> tuple[str, ...]:
        return as_tuple(self.sort_cols)

    @property
    def adds(self) -> tuple[str, ...]:
        return (self.name,)

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        types = self.checked(frame)
        place = pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(self.key)
        return frame.with_columns(self.of_somebody(place, types).alias(self.name))


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class Session(_Adds):
    """Events of a key with no more than `gap` between one and the next, as two columns.

    `<name>` (Int64) counts the sessions of a key from 1 on. `<name>_id` (UInt64, tags session and id) is the number of
    the session's first row in the data set, so no two sessions of it share one, whoever they belong to.

    `gap` is a number in the unit of the time column where times are numbers; for dates and datetimes it is a timedelta
    or a text such as "30m" or "1.5h" (ns, us, ms, s, m, h, d). Rows whose time is null or NaN are in no session: null.
    """

    time: str
    gap: int | float | str | dt.timedelta
    name: str = "session"

    def __post_init__(self) -> None:
        super().__post_init__()
        gap = self.gap
        if isinstance(gap, dt.timedelta):
            gap = f"{gap // dt.timedelta(microseconds=1)}us"
            freeze(self, gap=gap)
        if isinstance(gap, str):
            legal = _DURATION.fullmatch(gap) is not None
        else:
            legal = not isinstance(gap, bool) and 0 <= gap < math.inf
        if not legal:
            raise ConfigError(f"Session gap={self.gap!r}", hint='a number of at least 0, a timedelta, or "30m"')

    @property
    def order(self) -> tuple[str, ...]:
        return (self.time,)

    @property
    def adds(self) -> tuple[str, ...]:
        return (self.name, f"{self.name}_id")

    def describe(self, inputs: Mapping[str, Column], outputs: Mapping[str, Column]) -> Mapping[str, Column]:
        made = outputs[f"{self.name}_id"]
        return {**outputs, made.name: replace(made, tags=made.tags | {Tag.SESSION, Tag.ID})}

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        types = self.checked(frame)
        dtype = types[self.time]
        since, known = _since(self.time, dtype), _known(self.time, dtype)
        first = known & (since.is_null() | (since > self._limit(dtype)))
        number = pl.when(known).then(first.cast(pl.Int64).cum_sum())
        id = pl.when(known).then(pl.when(first).then(pl.col(ROW)).forward_fill())
        made = {self.name: number, f"{self.name}_id": id}
        return frame.with_columns(self.of_somebody(x.over(self.key), types).alias(name) for name, x in made.items())

    def _limit(self, dtype: pl.DataType) -> int | float:
        """The gap in the unit of the time column."""
        if dtype != pl.Null and isinstance(self.gap, str) != dtype.is_temporal():
            hint = 'a timedelta or a text such as "30m"' if dtype.is_temporal() else "a number in the column's unit"
            raise SchemaError(f"Session gap={self.gap!r} does not fit `{self.time}`, which is {dtype}", hint=hint)
        if isinstance(self.gap, (int, float)):
            return self.gap if dtype.is_float() else min(math.floor(self.gap), _LARGEST)
        found = _DURATION.fullmatch(str(self.gap))
        assert found is not None
        unit = "d" if dtype == pl.Date else getattr(dtype, "time_unit", "ns")
        return min(int(Fraction(found[1]) * _NANOSECONDS[found[2]] / _NANOSECONDS[unit]), _LARGEST)


def _known(name: str, dtype: pl.DataType) -> pl.Expr:
    """Whether there is a value: neither null nor NaN."""
    x = pl.col(name)
    return x.is_not_null() & x.is_not_nan() if dtype.is_float() else x.is_not_null()


def _since(time: str, dtype: pl.DataType) -> pl.Expr:
    """The time since the row before, to be taken `over` a key; null where one of the two has no time."""
    since = _difference(time, dtype, pl.col(time).shift(1))
    return since.fill_nan(None) if dtype.is_float() else since


def _difference(name: str, dtype: pl.DataType, other: pl.Expr) -> pl.Expr:
    """A column minus `other`, which has its type: Float64 for floats, else Int64."""
    if not (dtype.is_numeric() or dtype.is_temporal() or dtype in (pl.Boolean, pl.Null)):
        raise SchemaError(f"`{name}` is {dtype}, which has no difference", hint="numbers, Booleans and times have")
    if dtype.is_float():
        return pl.col(name).cast(pl.Float64) - other.cast(pl.Float64)
    # In 128 bits, since two Int64 (or UInt64) may lie further apart than 64 bits reach.
    wide = (x.to_physical().cast(pl.Int128) for x in (pl.col(name), other))
    return (next(wide) - next(wide)).cast(pl.Int64, strict=False)


def _continuous(column: Column) -> Column:
    return replace(column, tags=column.tags | {Tag.CONTINUOUS})
