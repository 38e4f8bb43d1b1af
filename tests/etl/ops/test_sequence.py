"""Operators over the events of a key: each against a plain loop over sorted events."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import falconet as fl
from falconet import ops
from falconet.compute.executor import Executor
from falconet.errors import ConfigError, SchemaError
from falconet.testing.contracts import OpContract, same, write_parts

Row = dict[str, Any]
EVENTS = pl.DataFrame(
    {
        "user": [1, 1, 2, None, 1, 2, 1],
        "item": ["a", "b", "a", "a", "a", None, "a"],
        "time": [10, 20, 5, 1, 20, None, 90],
        "x": [1.5, 2.0, float("nan"), 4.0, None, 6.0, 7.0],
    }
)


def apply(columns: list[str], op: ops.Op, frame: pl.DataFrame) -> pl.DataFrame:
    return fl.Workflow(columns >> op).fit(fl.Dataset(frame)).transform(frame)


class TestDifferenceLag(OpContract):
    op = ops.DifferenceLag(partition_cols="user", shift=[1, -2], sort_cols="time")
    frame = EVENTS.drop("item")


class TestDifferenceLagOfTwoColumnsInFileOrder(OpContract):
    op = ops.DifferenceLag(partition_cols=["user", "item"])
    frame = EVENTS


class TestTimeSince(OpContract):
    op = ops.TimeSince(partition_cols="user", time="time", item="item")
    frame = EVENTS


class TestPosition(OpContract):
    op = ops.Position(partition_cols="user", sort_cols="time")
    frame = EVENTS


class TestSession(OpContract):
    op = ops.Session(partition_cols="user", time="time", gap=10)
    frame = EVENTS


def keyed(rows: list[Row], key: tuple[str, ...], order: tuple[str, ...] = ()) -> Iterator[list[Row]]:
    """The rows of each key that is known, in the order of the operators: nulls first, NaN last, ties by place."""

    def place(value: Any) -> tuple[int, Any]:
        return (0, 0) if value is None else (2, 0) if value != value else (1, value)

    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: [*(place(row[name]) for name in order), (1, row["row"])]):
        if all(row[name] is not None and row[name] == row[name] for name in key):
            found[tuple(row[name] for name in key)].append(row)
    yield from found.values()


def loop_lag(rows: list[Row], shift: int) -> list[Any]:
    lags = [None] * len(rows)
    for events in keyed(rows, ("user",), ("time",)):
        for i, row in enumerate(events):
            if 0 <= i - shift < len(events) and None not in (row["x"], other := events[i - shift]["x"]):
                lags[row["row"]] = row["x"] - other
    return lags


def loop_since(rows: list[Row], key: tuple[str, ...]) -> list[Any]:
    since = [None] * len(rows)
    for events in keyed(rows, key, ("time",)):
        timed = [row for row in events if row["time"] is not None]
        for before, row in pairwise(timed):
            since[row["row"]] = row["time"] - before["time"]
    return since


def loop_sessions(rows: list[Row], gap: int) -> tuple[list[Any], list[Any]]:
    number, id = [None] * len(rows), [None] * len(rows)
    for events in keyed(rows, ("user",), ("time",)):
        last, count, first = None, 0, 0
        for row in events:
            if row["time"] is None:
                continue
            if last is None or row["time"] - last > gap:
                count, first = count + 1, row["row"]
            last = row["time"]
            number[row["row"]], id[row["row"]] = count, first  # type: ignore[call-overload]
    return number, id


def loop_positions(rows: list[Row], key: tuple[str, ...]) -> list[Any]:
    places = [None] * len(rows)
    for events in keyed(rows, key, ("time",)):
        for i, row in enumerate(events, 1):
            places[row["row"]] = i  # type: ignore[call-overload]
    return places


events = st.lists(
    st.tuples(
        st.sampled_from([None, 1, 2, 3]),
        st.sampled_from([None, "a", "b"]),
        st.one_of(st.none(), st.integers(0, 12)),
        st.one_of(st.none(), st.integers(-(2**62), 2**62)),
    ),
    max_size=25,
)


def frame_of(rows: list[tuple[Any, ...]]) -> pl.DataFrame:
    schema = {"user": pl.Int32, "item": pl.String, "time": pl.Int64, "x": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


@given(events, st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_operators_give_what_a_loop_over_sorted_events_gives(rows: list[tuple[Any, ...]], seed: int) -> None:
    frame = frame_of(rows)
    dicts = frame.with_row_index("row").to_dicts()
    lazy = frame.lazy().with_row_index("__row__").with_columns(pl.col("__row__").cast(pl.UInt64))

    def made(op: Any, columns: tuple[str, ...]) -> pl.DataFrame:
        return op.apply(lazy.sort(*op.order, "__row__"), columns).sort("__row__").collect()

    lag = made(ops.DifferenceLag(partition_cols="user", shift=[seed, -seed], sort_cols="time"), ("x",))
    assert lag[f"x_difference_lag_{seed}"].to_list() == loop_lag(dicts, seed)
    assert lag[f"x_difference_lag_-{seed}"].to_list() == loop_lag(dicts, -seed)
    since = made(ops.TimeSince(partition_cols="user", time="time", item="item"), ("user", "time", "item"))
    assert since["time_since"].to_list() == loop_since(dicts, ("user",))
    assert since["time_since_item"].to_list() == loop_since(dicts, ("user", "item"))
    sessions = made(ops.Session(partition_cols="user", time="time", gap=seed), ("user", "time"))
    assert (sessions["session"].to_list(), sessions["session_id"].to_list()) == loop_sessions(dicts, seed)
    for key in (("user",), ("user", "item")):
        places = made(ops.Position(partition_cols=key, sort_cols="time"), ("user", "item"))
        assert places["position"].to_list() == loop_positions(dicts, key)


def test_parts_and_executors_change_nothing(tmp_path: Path, executor: Executor) -> None:
    frame = pl.concat([EVENTS.with_columns(pl.col("time") + 7 * i) for i in range(9)])
    lags = ["user", "time", "x"] >> ops.DifferenceLag(partition_cols="user", shift=[1, -3], sort_cols="time")
    node = ["user", "item", "time"] >> ops.TimeSince(partition_cols="user", time="time", item="item")
    node = node >> ops.Position(partition_cols=("user", "item"), sort_cols="time")
    node = node >> ops.Session(partition_cols="user", time="time", gap=10)
    workflow = fl.Workflow([node, lags[[f"{name}_difference_lag_{s}" for name in ("time", "x") for s in (1, -3)]]])
    parts = write_parts(frame, (0, 4, 4, 5, 30, 51), tmp_path)
    want = workflow.fit(fl.Dataset(frame)).transform(frame)
    same(workflow.fit(parts, executor=executor).transform(parts).collect(), want)


def test_lags_of_times_keep_every_unit_of_them() -> None:
    start = dt.datetime(2001, 1, 1)
    times = [start, start + dt.timedelta(microseconds=1), dt.datetime(2200, 1, 1)]
    days = [time.date() for time in times]
    frame = pl.DataFrame({"user": [1, 1, 1], "at": times, "day": days})
    got = apply(["at", "day", "user"], ops.DifferenceLag(partition_cols="user"), frame)
    assert got.columns == ["user", "at_difference_lag_1", "day_difference_lag_1"]
    assert got["at_difference_lag_1"].to_list() == [None, 1, (times[2] - times[1]) // dt.timedelta(microseconds=1)]
    assert got["day_difference_lag_1"].to_list() == [None, 0, (days[2] - days[0]).days]


def test_lags_of_large_integers_are_exact_or_null() -> None:
    wide = pl.Series([2**64 - 1, 2**64 - 4, 0], dtype=pl.UInt64)
    frame = pl.DataFrame({"user": [1, 1, 1], "wide": wide, "far": [-(2**63), 2**63 - 1, 2**63 - 2]})
    got = apply(["user", "wide", "far"], ops.DifferenceLag(partition_cols="user"), frame)
    assert got["wide_difference_lag_1"].to_list() == [None, -3, None]
    assert got["far_difference_lag_1"].to_list() == [None, None, -1]


def test_lags_of_small_types_do_not_wrap() -> None:
    frame = pl.DataFrame(
        {
            "user": [1, 1],
            "byte": pl.Series([200, 1], dtype=pl.UInt8),
            "half": pl.Series([0.1, 0.5], dtype=pl.Float32),
            "flag": [True, False],
        }
    )
    got = apply(["user", "byte", "half", "flag"], ops.DifferenceLag(partition_cols="user"), frame)
    assert got.row(1) == (1, -199, 0.5 - pl.Series([0.1], dtype=pl.Float32).cast(pl.Float64)[0], -1)
    assert got.dtypes[1:] == [pl.Int64, pl.Float64, pl.Int64]


def test_what_has_no_difference_is_named() -> None:
    with pytest.raises(SchemaError, match="`name` is String, which has no difference"):
        apply(["user", "name"], ops.DifferenceLag(partition_cols="user"), pl.DataFrame({"user": [1], "name": ["a"]}))
    with pytest.raises(SchemaError, match="DifferenceLag needs one value per row, `name` is List"):
        apply(["user", "name"], ops.DifferenceLag(partition_cols="user"), pl.DataFrame({"user": [1], "name": [[1]]}))


def test_a_nan_is_no_key_and_no_time() -> None:
    nan = float("nan")
    frame = pl.DataFrame({"user": [1.0, nan, 1.0, nan, 1.0], "time": [1.0, 1.0, nan, 2.0, 2.5]})
    got = apply(["user", "time"], ops.TimeSince(partition_cols="user", time="time"), frame)
    assert got["time_since"].to_list() == [None, None, None, None, 1.5]
    got = apply(["user", "time"], ops.Session(partition_cols="user", time="time", gap=1), frame)
    assert got["session"].to_list() == [1, None, None, None, 2]
    assert got["session_id"].to_list() == [0, None, None, None, 4]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize("gap", ["1.5h", "90m", dt.timedelta(minutes=90)], ids=str)
def test_a_gap_of_a_duration_fits_times_of_any_unit(gap: str | dt.timedelta, unit: str) -> None:
    start = dt.datetime(2020, 1, 1)
    times = [start, start + dt.timedelta(minutes=90), start + dt.timedelta(minutes=181)]
    frame = pl.DataFrame({"user": [1, 1, 1], "time": pl.Series(times, dtype=pl.Datetime(unit))})  # type: ignore[arg-type]
    got = apply(["user", "time"], ops.Session(partition_cols="user", time="time", gap=gap), frame)
    assert got["session"].to_list() == [1, 1, 2]


def test_a_gap_of_days_between_dates() -> None:
    days = [dt.date(2020, 1, 1), dt.date(2020, 1, 3), dt.date(2020, 1, 6)]
    frame = pl.DataFrame({"user": [1, 1, 1], "day": days})
    got = apply(["user", "day"], ops.Session(partition_cols="user", time="day", gap="2d"), frame)
    assert got["session"].to_list() == [1, 1, 2]


def test_a_gap_that_is_not_in_the_unit_of_the_times_is_refused() -> None:
    frame = pl.DataFrame({"user": [1], "second": [1], "time": [dt.datetime(2020, 1, 1)]})
    with pytest.raises(SchemaError, match=r"gap=1800 does not fit `time`, which is Datetime"):
        apply(["user", "time"], ops.Session(partition_cols="user", time="time", gap=1800), frame)
    with pytest.raises(SchemaError, match=r"gap='30m' does not fit `second`, which is Int64"):
        apply(["user", "second"], ops.Session(partition_cols="user", time="second", gap="30m"), frame)


def test_session_ids_are_of_one_session_each() -> None:
    frame = pl.DataFrame({"user": ["b", "a", "a", "b"], "time": [1, 5, 1, 100]})
    fitted = fl.Workflow(["user", "time"] >> ops.Session(partition_cols="user", time="time", gap=9)).fit(
        fl.Dataset(frame)
    )
    got = fitted.transform(frame)
    assert got["session_id"].to_list() == [0, 2, 2, 3]
    assert fitted.schema["session_id"].tags == {"session", "id"}


def test_settings_that_mean_nothing_say_so() -> None:
    with pytest.raises(ConfigError, match="Position has no `partition_cols`"):
        ops.Position(partition_cols=[])
    for shift in (0, [], [1, 1], True, 1.5):
        with pytest.raises(ConfigError, match="DifferenceLag shift="):
            ops.DifferenceLag(partition_cols="user", shift=shift)  # type: ignore[arg-type]
    for gap in (-1, float("nan"), float("inf"), True, "half an hour", "-3s"):
        with pytest.raises(ConfigError, match="Session gap="):
            ops.Session(partition_cols="user", time="time", gap=gap)
    with pytest.raises(ConfigError, match="Position would add a second column `position`"):
        apply(["position"], ops.Position(partition_cols="position"), pl.DataFrame({"position": [1]}))


def test_keys_and_times_need_not_be_selected(tmp_path: Path) -> None:
    place = ["x"] >> ops.Position(partition_cols="user", sort_cols="time", name="place")
    node = place >> ops.Session(partition_cols="user", time="time", gap=10)
    fitted = fl.Workflow(node).fit(fl.Dataset(EVENTS))
    got = fitted.transform(EVENTS)
    assert got.columns == ["x", "place", "session", "session_id"]
    assert got["place"].to_list() == [1, 2, 2, None, 3, 1, 4]
    assert got["session"].to_list() == [1, 1, 1, None, 1, None, 2]
    same(fitted.transform(write_parts(EVENTS, (2, 2, 5), tmp_path)).collect(), got)
    assert fitted.prune(["session"]).transform(EVENTS)["session"].to_list() == got["session"].to_list()
