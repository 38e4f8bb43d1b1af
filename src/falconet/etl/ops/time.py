"""Operators of times: TimeParts, CyclicTime, Age.

A time is a datetime, a date (its midnight), or an integer that counts `unit`s since 1970-01-01 UTC. A datetime with a
zone has the parts its clock shows there; the others are taken as they are. Integers outside the years 1 to 9999 count
as null.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from zoneinfo import ZoneInfo

import polars as pl

from falconet.errors import ConfigError, SchemaError, suggest
from falconet.etl.op import OPS, FrameOp, Group, as_tuple, float32, freeze
from falconet.etl.rowwise import OnRow
from falconet.etl.types import column_of, polars_type
from falconet.schema import Column

Unit = Literal["s", "ms", "us", "ns"]
_NS: dict[str, int] = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_PER = {"second": _NS["s"], "minute": 60 * _NS["s"], "hour": 3_600 * _NS["s"], "day": 86_400 * _NS["s"]}
_EPOCH = dt.datetime(1970, 1, 1)
_FIRST, _LAST = -62_135_596_800, 253_402_300_799
"""The seconds of the first and the last moment of the years 1 to 9999."""


@dataclass(frozen=True)
class _Part:
    """A part of a time: its expression, the same of a Python datetime, its least and its largest value."""

    expr: Callable[[pl.Expr], pl.Expr]
    plain: Callable[[dt.datetime], int]
    least: int
    most: int
    of_day: bool = False
    """Whether a date has none."""


_PARTS = {
    "year": _Part(lambda x: x.dt.year(), lambda t: t.year, 1, 9999),
    "quarter": _Part(lambda x: x.dt.quarter(), lambda t: (t.month + 2) // 3, 1, 4),
    "month": _Part(lambda x: x.dt.month(), lambda t: t.month, 1, 12),
    "week": _Part(lambda x: x.dt.week(), lambda t: t.isocalendar().week, 1, 53),
    "day": _Part(lambda x: x.dt.day(), lambda t: t.day, 1, 31),
    "day_of_year": _Part(lambda x: x.dt.ordinal_day(), lambda t: t.timetuple().tm_yday, 1, 366),
    "weekday": _Part(lambda x: x.dt.weekday(), lambda t: t.isoweekday(), 1, 7),
    "hour": _Part(lambda x: x.dt.hour(), lambda t: t.hour, 0, 23, of_day=True),
    "minute": _Part(lambda x: x.dt.minute(), lambda t: t.minute, 0, 59, of_day=True),
    "second": _Part(lambda x: x.dt.second(), lambda t: t.second, 0, 59, of_day=True),
}


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class TimeParts(FrameOp):
    """The parts of times as integers, one column `NAME_PART` each; the time itself is not among the outputs.

    Parts: year, quarter (1 to 4), month (1 to 12), week (ISO, 1 to 53), day (1 to 31), day_of_year (1 to 366), weekday
    (Monday is 1), hour, minute, second. Nulls stay. The types are those of Polars: Int8, Int16 for day_of_year, Int32
    for year. `unit` says what integers count.

    >>> TimeParts(parts=("hour", "weekday")).sources(("time",))
    {'time_hour': ('time',), 'time_weekday': ('time',)}
    """

    parts: str | Sequence[str] = field(default=("hour", "weekday", "month"), kw_only=False)
    unit: Unit = "s"

    def __post_init__(self) -> None:
        freeze(self, parts=_checked(self.parts, _PARTS, "TimeParts"))
        _check_unit(self.unit, "TimeParts")

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        return {f"{name}_{part}": (name,) for name in columns for part in self.parts}

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        types = frame.select(columns).collect_schema()
        return frame.with_columns(
            _part(column_of(name, types[name]), part, self.unit).alias(f"{name}_{part}")
            for name in columns
            for part in self.parts
        )

    def describe(self, inputs: Mapping[str, Column], outputs: Mapping[str, Column]) -> Mapping[str, Column]:
        limits = {f"{name}_{part}": _PARTS[part] for name in inputs for part in self.parts if part != "year"}
        return {
            n: replace(c, min=limits[n].least, max=limits[n].most) if n in limits else c for n, c in outputs.items()
        }

    def on_row(self, names: Group, columns: Mapping[str, Column]) -> OnRow:
        made = [(name, _clock(column, self.unit)) for name, column in columns.items()]
        parts = [(part, _PARTS[part].plain) for part in self.parts]

        def read(values: dict[str, Any]) -> dict[str, Any]:
            found = {}
            for name, clock in made:
                time = clock(values[name])
                for part, plain in parts:
                    found[f"{name}_{part}"] = None if time is None else plain(time)
            return found

        return read


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class CyclicTime(FrameOp):
    """Parts of times as points of a circle, `NAME_PART_sin` and `NAME_PART_cos`, so that 23 h is beside 0 h.

    Float32, of the angle 2 pi (part - least) / (number of values the part can have), computed in Float64. Parts as in
    `TimeParts`, without year. Nulls stay. The time itself is not among the outputs.

    >>> CyclicTime("hour").sources(("time",))
    {'time_hour_sin': ('time',), 'time_hour_cos': ('time',)}
    """

    parts: str | Sequence[str] = field(default=("hour", "weekday"), kw_only=False)
    unit: Unit = "s"

    def __post_init__(self) -> None:
        cyclic = {name: part for name, part in _PARTS.items() if name != "year"}
        freeze(self, parts=_checked(self.parts, cyclic, "CyclicTime"))
        _check_unit(self.unit, "CyclicTime")

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        return {f"{name}_{part}_{f}": (name,) for name in columns for part in self.parts for f in ("sin", "cos")}

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        types = frame.select(columns).collect_schema()
        made = []
        for name in columns:
            for part in self.parts:
                value = _part(column_of(name, types[name]), part, self.unit).cast(pl.Int32)
                for which, points in zip(("sin", "cos"), _circle(part), strict=True):
                    point = value.replace_strict(points, return_dtype=pl.Float32)
                    made.append(point.alias(f"{name}_{part}_{which}"))
        return frame.with_columns(made)

    def describe(self, inputs: Mapping[str, Column], outputs: Mapping[str, Column]) -> Mapping[str, Column]:
        return {name: replace(column, min=-1.0, max=1.0) for name, column in outputs.items()}

    def on_row(self, names: Group, columns: Mapping[str, Column]) -> OnRow:
        made = [(name, _clock(column, self.unit)) for name, column in columns.items()]
        parts = [(part, _PARTS[part].plain, *_circle(part)) for part in self.parts]

        def read(values: dict[str, Any]) -> dict[str, Any]:
            found: dict[str, Any] = {}
            for name, clock in made:
                time = clock(values[name])
                for part, plain, sines, cosines in parts:
                    value = None if time is None else plain(time)
                    found[f"{name}_{part}_sin"] = None if value is None else sines[value]
                    found[f"{name}_{part}_cos"] = None if value is None else cosines[value]
            return found

        return read


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class Age(FrameOp):
    """How long before a reference a time was, `NAME_age`, in days or as `per` says; the time itself is no output.

    `reference` is a time (without a zone: UTC; an integer counts `unit`s) or the name of a column of times, such as
    that of the event whose item has an age. Times after it have a negative age. Float64: the difference is exact to the
    nanosecond, whole days are whole numbers. A null in either makes a null.
    """

    reference: dt.datetime | dt.date | int | str = field(kw_only=False)
    per: Literal["second", "minute", "hour", "day"] = "day"
    unit: Unit = "s"

    def __post_init__(self) -> None:
        if self.per not in _PER:
            raise ConfigError(f"Age per={self.per!r}", hint=suggest(str(self.per), _PER))
        if isinstance(self.reference, bool) or not isinstance(self.reference, (dt.date, int, str)):
            raise ConfigError(f"Age reference={self.reference!r}", hint="a time, or the name of a column")
        _check_unit(self.unit, "Age")

    @property
    def also(self) -> tuple[str, ...]:
        return (self.reference,) if isinstance(self.reference, str) else ()

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        beside = tuple(name for name in self.also if name in columns)
        return {f"{name}_age": (name, *beside) for name in columns if name not in beside}

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        types = frame.select(*columns, *(name for name in self.also if name not in columns)).collect_schema()
        described = {name: column_of(name, dtype) for name, dtype in types.items()}
        if isinstance(self.reference, str):
            reference = _nanoseconds(described[self.reference], self.unit)
        else:
            reference = pl.lit(_as_nanoseconds(self.reference, self.unit), dtype=pl.Int128)
        per = pl.lit(_PER[self.per], dtype=pl.Int128)
        ages = []
        for name, *_ in self.sources(columns).values():
            difference = reference - _nanoseconds(described[name], self.unit)
            whole, rest = (difference // per).cast(pl.Float64), (difference % per).cast(pl.Float64)
            ages.append((whole + rest * (1 / _PER[self.per])).alias(f"{name}_age"))
        return frame.with_columns(ages)

    def on_row(self, names: Group, columns: Mapping[str, Column]) -> OnRow:
        clocks = {name: _counter(column, self.unit) for name, column in columns.items()}
        per, share = _PER[self.per], 1 / _PER[self.per]
        fixed = None if isinstance(self.reference, str) else _as_nanoseconds(self.reference, self.unit)
        aged = tuple(name for name in names if name not in self.also)

        def read(values: dict[str, Any]) -> dict[str, Any]:
            now = clocks[str(self.reference)](values[str(self.reference)]) if fixed is None else fixed
            found: dict[str, Any] = {}
            for name in aged:
                time = clocks[name](values[name])
                age = None if now is None or time is None else divmod(now - time, per)
                found[f"{name}_age"] = None if age is None else float(age[0]) + float(age[1]) * share
            return found

        return read


def _checked(parts: str | Sequence[str], known: Mapping[str, Any], who: str) -> tuple[str, ...]:
    given = as_tuple(parts)
    for part in given:
        if part not in known:
            raise ConfigError(f"{who} knows no part `{part}`", hint=suggest(part, known))
    if not given or len(set(given)) != len(given):
        raise ConfigError(f"{who} parts={given!r}", hint=f"some of {', '.join(known)}, each once")
    return given


def _check_unit(unit: str, who: str) -> None:
    if unit not in _NS:
        raise ConfigError(f"{who} unit={unit!r}", hint="what integers count: s, ms, us or ns")


def _circle(part: str) -> tuple[dict[int, float], dict[int, float]]:
    """The sine and the cosine of every value of a part, as Float32 holds them."""
    least, most = _PARTS[part].least, _PARTS[part].most
    angles = {n: 2 * math.pi * (n - least) / (most - least + 1) for n in range(least, most + 1)}
    return {n: float32(math.sin(a)) for n, a in angles.items()}, {n: float32(math.cos(a)) for n, a in angles.items()}


def _part(column: Column, part: str, unit: str) -> pl.Expr:
    """A part of a time column."""
    dtype, x = _time_type(column), pl.col(column.name)
    if dtype == pl.Date and _PARTS[part].of_day:
        raise SchemaError(f"`{column.name}` holds dates, which have no {part}")
    if dtype.is_integer():
        scale = 1_000 if unit == "s" else 1
        x = (_within(x, unit).cast(pl.Int64, strict=False) * scale).cast(pl.Datetime("ms" if unit == "s" else unit))  # type: ignore[arg-type]
    return _PARTS[part].expr(x)


def _nanoseconds(column: Column, unit: str) -> pl.Expr:
    """A time column as nanoseconds since 1970, Int128."""
    dtype, x = _time_type(column), pl.col(column.name)
    if dtype.is_integer():
        return _within(x, unit).cast(pl.Int128) * _NS[unit]
    scale = _PER["day"] if dtype == pl.Date else _NS[dtype.time_unit]  # type: ignore[attr-defined]
    return x.to_physical().cast(pl.Int128) * scale


def _within(x: pl.Expr, unit: str) -> pl.Expr:
    """Integers of the years 1 to 9999, the others null."""
    second = _NS["s"] // _NS[unit]
    low, high = (pl.lit(n, dtype=pl.Int128) for n in (_FIRST * second, _LAST * second + second - 1))
    return pl.when(x.cast(pl.Int128).is_between(low, high)).then(x)


def _time_type(column: Column) -> pl.DataType:
    """The column's type. Raises SchemaError where it holds no times."""
    dtype = polars_type(column)
    if not (dtype.is_integer() or dtype == pl.Date or isinstance(dtype, pl.Datetime)):
        raise SchemaError(
            f"`{column.name}` holds no times, it is {dtype}",
            hint="datetimes, dates or integers; `LambdaOp(lambda col: col.str.to_datetime(FORMAT))` reads texts",
        )
    return dtype


def _clock(column: Column, unit: str) -> Callable[[Any], dt.datetime | None]:
    """A value of a time column as the datetime whose parts count, to the second."""
    dtype = _time_type(column)
    if dtype.is_integer():
        second = _NS["s"] // _NS[unit]

        def count(value: int | None) -> dt.datetime | None:
            seconds = None if value is None else value // second
            return None if seconds is None or not _FIRST <= seconds <= _LAST else _EPOCH + dt.timedelta(seconds=seconds)

        return count
    if dtype == pl.Date:
        return lambda value: None if value is None else dt.datetime(value.year, value.month, value.day)
    zone = dtype.time_zone  # type: ignore[attr-defined]
    if zone is None:
        return lambda value: value
    there = ZoneInfo(zone)
    return lambda value: None if value is None else _utc(value).astimezone(there)


def _counter(column: Column, unit: str) -> Callable[[Any], int | None]:
    """A value of a time column as nanoseconds since 1970."""
    if not _time_type(column).is_integer():
        return lambda value: None if value is None else _as_nanoseconds(value, unit)
    second, scale = _NS["s"] // _NS[unit], _NS[unit]
    return lambda value: None if value is None or not _FIRST <= value // second <= _LAST else value * scale


def _as_nanoseconds(time: dt.datetime | dt.date | int, unit: str) -> int:
    """A time as nanoseconds since 1970."""
    if isinstance(time, int):
        return time * _NS[unit]
    moment = time if isinstance(time, dt.datetime) else dt.datetime(time.year, time.month, time.day)
    return (_utc(moment) - _EPOCH.replace(tzinfo=dt.UTC)) // dt.timedelta(microseconds=1) * _NS["us"]


def _utc(time: dt.datetime) -> dt.datetime:
    """With a zone; without one it is UTC."""
    return time.replace(tzinfo=dt.UTC) if time.tzinfo is None else time
