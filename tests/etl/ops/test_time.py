"""Parts of times, points of circles, ages."""

from __future__ import annotations

import datetime as dt
import math
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import falconet as fl
from falconet import ops
from falconet.errors import ConfigError, SchemaError
from falconet.testing.contracts import OpContract
from plain_rows import same_on_rows

PARTS = ("year", "quarter", "month", "week", "day", "day_of_year", "weekday", "hour", "minute", "second")
DAYS = PARTS[:7]
MOMENTS = [
    dt.datetime(2020, 2, 29, 23, 59, 59, 999_999),
    dt.datetime(1969, 12, 31, 0, 0, 1),
    dt.datetime(2024, 12, 30),
    None,
]
TIMES = pl.DataFrame(
    {
        "us": pl.Series(MOMENTS, dtype=pl.Datetime("us")),
        "ns": pl.Series(MOMENTS, dtype=pl.Datetime("ns")),
        "ms": pl.Series(MOMENTS, dtype=pl.Datetime("ms")),
        "there": pl.Series(MOMENTS, dtype=pl.Datetime("us", "America/New_York")),
        "epoch": [1_600_000_000, -1, 2**62, None],
    }
)
moments = st.lists(st.none() | st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)), max_size=6)


class TestTimeParts(OpContract):
    op = ops.TimeParts(parts=PARTS)
    frame = TIMES


class TestTimePartsOfDates(OpContract):
    op = ops.TimeParts(DAYS)
    frame = TIMES.select(day=pl.col("us").dt.date())


class TestCyclicTime(OpContract):
    op = ops.CyclicTime()
    frame = TIMES


class TestAge(OpContract):
    op = ops.Age(dt.datetime(2024, 1, 1))
    frame = TIMES


class TestAgeAtAnEvent(OpContract):
    op = ops.Age("us", per="hour")
    frame = TIMES


class TestAgeAtAnEventBeside(OpContract):
    op = ops.Age("us")
    frame = TIMES
    columns = ("ns", "epoch")


def apply(node: object, frame: pl.DataFrame) -> pl.DataFrame:
    return fl.Workflow(node).fit(fl.Dataset(frame)).transform(frame)


@given(moments)
@settings(max_examples=30, deadline=None)
def test_parts_are_those_of_the_standard_library(times: list[dt.datetime | None]) -> None:
    frame = pl.DataFrame({"t": times}, schema={"t": pl.Datetime("us")})
    got = ops.TimeParts(PARTS).apply(frame.lazy(), ("t",)).drop("t").collect()
    assert got.rows() == [
        (None,) * 10
        if t is None
        else (
            t.year,
            math.ceil(t.month / 3),
            t.month,
            t.isocalendar().week,
            t.day,
            t.timetuple().tm_yday,
            t.isoweekday(),
            t.hour,
            t.minute,
            t.second,
        )
        for t in times
    ]
    same_on_rows(ops.TimeParts(PARTS), frame)
    same_on_rows(ops.TimeParts(PARTS), frame.cast(pl.Datetime("ms")))
    same_on_rows(ops.TimeParts(DAYS), frame.cast(pl.Date))


@given(
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**33), 2**33), max_size=8),
    st.sampled_from(["s", "ms", "us", "ns"]),
)
@settings(max_examples=30, deadline=None)
def test_integers_that_count_one_at_a_time(counts: list[int | None], unit: str) -> None:
    frame = pl.DataFrame({"t": counts}, schema={"t": pl.Int64})
    for op in (
        ops.TimeParts(PARTS, unit=unit),
        ops.CyclicTime(PARTS[1:], unit=unit),
        ops.Age(2**30, per="hour", unit=unit),
    ):
        same_on_rows(op, frame)


@pytest.mark.parametrize(("unit", "scale"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_integers_count_since_1970(unit: str, scale: int) -> None:
    frame = pl.DataFrame({"t": [1_600_000_000 * scale, -1, None]})
    got = apply(["t"] >> ops.TimeParts(("year", "month", "day", "hour", "second"), unit=unit), frame)
    assert got.row(0) == (2020, 9, 13, 12, 40)
    assert got.row(1) == (1969, 12, 31, 23, 59)
    assert got.row(2) == (None,) * 5


def test_integers_of_no_year_count_as_null() -> None:
    frame = pl.DataFrame({"t": pl.Series([2**64 - 1, 253_402_300_799, 253_402_300_800], dtype=pl.UInt64)})
    assert apply(["t"] >> ops.TimeParts("year"), frame)["t_year"].to_list() == [None, 9999, None]
    assert apply(["t"] >> ops.Age(253_402_300_800), frame)["t_age"].to_list()[::2] == [None, None]


def test_a_zone_has_the_parts_of_its_clock() -> None:
    winter, summer = dt.datetime(2020, 1, 1, 2, tzinfo=dt.UTC), dt.datetime(2020, 7, 1, 2, tzinfo=dt.UTC)
    frame = pl.DataFrame({"t": pl.Series([winter, summer], dtype=pl.Datetime("us", "America/New_York"))})
    fitted = fl.Workflow(["t"] >> ops.TimeParts(("day", "hour"))).fit(fl.Dataset(frame))
    assert fitted.transform(frame).rows() == [(31, 21), (30, 22)]
    online = fitted.online()
    assert (
        online({"t": winter}) == online({"t": winter.astimezone(ZoneInfo("Asia/Tokyo"))}) == {"t_day": 31, "t_hour": 21}
    )


def test_parts_are_those_of_pandas() -> None:
    stamps = pd.Series(pd.date_range("1999-12-27", periods=400, freq="37h"))
    got = apply(["t"] >> ops.TimeParts(PARTS), pl.DataFrame({"t": stamps}))
    assert got["t_week"].to_list() == stamps.dt.isocalendar().week.to_list()
    assert got["t_day_of_year"].to_list() == stamps.dt.day_of_year.to_list()
    assert got["t_weekday"].to_list() == (stamps.dt.day_of_week + 1).to_list()
    assert got["t_quarter"].to_list() == stamps.dt.quarter.to_list()


def test_the_schema_knows_what_a_part_can_be() -> None:
    schema = fl.Workflow(["us"] >> ops.TimeParts(("hour", "year"))).fit(fl.Dataset(TIMES)).schema
    assert [(c.name, c.dtype, c.min, c.max, c.source) for c in schema] == [
        ("us_hour", "int8", 0, 23, ("us",)),
        ("us_year", "int32", None, None, ("us",)),
    ]


def test_hours_stand_on_a_circle() -> None:
    hours = pl.DataFrame({"t": [dt.datetime(2020, 1, 1, h) for h in range(24)] + [None]})
    got = apply(["t"] >> ops.CyclicTime("hour"), hours)
    angles = 2 * np.pi * np.arange(24) / 24
    assert got["t_hour_sin"].to_numpy()[:24] == pytest.approx(np.sin(angles), abs=1e-7)
    assert got["t_hour_cos"].to_numpy()[:24] == pytest.approx(np.cos(angles), abs=1e-7)
    assert got.row(24) == (None, None)
    assert got.schema == {"t_hour_sin": pl.Float32, "t_hour_cos": pl.Float32}


def test_the_first_value_of_every_part_is_at_angle_zero() -> None:
    got = apply(["t"] >> ops.CyclicTime(PARTS[1:]), pl.DataFrame({"t": [dt.datetime(2018, 1, 1)]}))
    assert got.row(0) == (0.0, 1.0) * 9


def test_ages_keep_the_nanosecond() -> None:
    frame = pl.DataFrame({"t": pl.Series([1_600_000_000_000_000_001, 1_600_000_000_000_000_000])})
    got = apply(["t"] >> ops.Age(1_600_000_000_000_000_003, per="second", unit="ns"), frame)
    assert got["t_age"].to_list() == pytest.approx([2e-9, 3e-9], rel=1e-15)


def test_whole_days_are_whole_numbers() -> None:
    frame = pl.DataFrame({"t": [dt.date(2000, 1, 1), dt.date(2020, 1, 1), dt.date(2020, 1, 3), None]})
    assert apply(["t"] >> ops.Age(dt.date(2020, 1, 2)), frame)["t_age"].to_list() == [7306.0, 1.0, -1.0, None]


def test_an_age_at_the_event_of_the_row() -> None:
    frame = pl.DataFrame({"released": [dt.date(2020, 1, 1), None], "seen": [1_578_009_600, 1_578_009_600]})
    want = [2.0, None]
    assert apply(["released"] >> ops.Age("seen"), frame).to_dict(as_series=False) == {"released_age": want}
    assert apply(["released", "seen"] >> ops.Age("seen"), frame).to_dict(as_series=False) == {"released_age": want}
    fitted = fl.Workflow(["released", "seen"] >> ops.Age("seen")).fit(fl.Dataset(frame)).prune(["released_age"])
    assert set(fitted.input_columns) == {"released", "seen"}
    assert fitted.online()(frame.row(0, named=True)) == {"released_age": 2.0}


@given(moments, st.datetimes())
@settings(max_examples=30, deadline=None)
def test_ages_are_those_of_the_standard_library(times: list[dt.datetime | None], reference: dt.datetime) -> None:
    frame = pl.DataFrame({"t": times}, schema={"t": pl.Datetime("us")})
    op = ops.Age(reference, per="minute")
    got = op.apply(frame.lazy(), ("t",)).collect()["t_age"].to_list()
    assert got == [
        None if t is None else pytest.approx((reference - t) / dt.timedelta(minutes=1), rel=1e-12) for t in times
    ]
    same_on_rows(op, frame)
    same_on_rows(op, frame.with_columns(pl.col("t").dt.replace_time_zone("UTC")))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ops.TimeParts("hours"), r"(?s)TimeParts knows no part `hours`.*did you mean `hour`"),
        (lambda: ops.CyclicTime("year"), r"CyclicTime knows no part `year`"),
        (lambda: ops.TimeParts(()), r"(?s)TimeParts parts=\(\).*some of year, quarter"),
        (lambda: ops.TimeParts(("hour", "hour")), "each once"),
        (lambda: ops.TimeParts("hour", unit="h"), r"(?s)TimeParts unit='h'.*s, ms, us or ns"),
        (lambda: ops.Age(1, per="days"), r"(?s)Age per='days'.*did you mean `day`"),
        (lambda: ops.Age(None), r"Age reference=None"),
    ],
    ids=["part", "cycle", "none", "twice", "unit", "per", "reference"],
)
def test_settings_that_mean_nothing_are_refused(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]


def test_what_is_no_time_is_refused() -> None:
    for values in (["2020-01-01"], [1.5], [[1]]):
        with pytest.raises(SchemaError, match=r"(?s)`t` holds no times, it is .*hint: datetimes, dates or integers"):
            apply(["t"] >> ops.TimeParts(), pl.DataFrame({"t": values}))
    with pytest.raises(SchemaError, match="`t` holds dates, which have no hour"):
        apply(["t"] >> ops.TimeParts("hour"), pl.DataFrame({"t": [dt.date(2020, 1, 1)]}))
