"""Times: the same weeks and seconds for any way of writing them, and no more bars than a chart can show."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import polars as pl
import pytest

from falconet.recipe.config import ColumnsConfig
from falconet.recipe.times import seconds_of
from falconet.recipe.weeks import by_week

COLUMNS = ColumnsConfig(user="u", item="i", time="t")
MOMENTS = [datetime(2024, 1, 7, 23, 59), datetime(2024, 1, 8), datetime(2024, 1, 14, 12), datetime(2024, 1, 30)]
ITEMS = [7, 8, 8, 9]
WANTED = {
    "from": "2024-01-01",
    "weeks": 1,
    "all": [1, 2, 0, 0, 1],
    "items": [
        {"title": "eight", "counts": [0, 2, 0, 0, 0]},
        {"title": "seven", "counts": [1, 0, 0, 0, 0]},
        {"title": "9", "counts": [0, 0, 0, 0, 1]},
    ],
}
SECONDS = [int(moment.replace(tzinfo=UTC).timestamp()) for moment in MOMENTS]


@pytest.mark.parametrize(
    "times",
    [
        pl.Series(SECONDS),
        pl.Series(SECONDS, dtype=pl.Float64) + 0.5,
        pl.Series(SECONDS) * 1_000,
        pl.Series(SECONDS, dtype=pl.UInt32),
        pl.Series(SECONDS) * 10**9,
        pl.Series(MOMENTS),
        pl.Series(MOMENTS).dt.replace_time_zone("Europe/Zurich"),
        pl.Series(MOMENTS).dt.date(),
    ],
)
def test_weeks_are_the_same_for_any_way_of_writing_times(times: pl.Series) -> None:
    rows = pl.DataFrame({"i": ITEMS, "t": times})
    assert by_week(rows.lazy(), COLUMNS, {7: "seven", 8: "eight"}) == WANTED
    missing = pl.concat([rows, pl.DataFrame({"i": [5], "t": [None]}, schema=rows.schema)])
    assert by_week(missing.lazy(), COLUMNS, {7: "seven", 8: "eight"}) == WANTED
    seconds = seconds_of(missing.lazy(), "t")
    assert seconds is not None
    day = 86_400 if times.dtype == pl.Date else 1
    ahead = 3_600 if isinstance(times.dtype, pl.Datetime) and times.dtype.time_zone else 0  # Zurich in winter
    found = missing.select(seconds(pl.col("t")))["t"]
    assert found.to_list() == [*(x // day * day - ahead for x in SECONDS), None]


def test_of_long_times_a_bar_is_of_several_weeks() -> None:
    days = [date(2000, 1, 3) + timedelta(weeks=n) for n in range(1_000)]
    found = by_week(pl.LazyFrame({"i": [1] * 1_000, "t": days}), COLUMNS, {})
    assert found is not None
    assert (found["from"], found["weeks"], len(found["all"])) == ("2000-01-03", 7, 143)
    assert (set(found["all"][:-1]), sum(found["all"])) == ({7}, 1_000)


@pytest.mark.parametrize("times", [pl.Series([1, 2]), pl.Series([None, None], dtype=pl.Int64), pl.Series(["a", "b"])])
def test_what_is_no_time_has_no_weeks(times: pl.Series) -> None:
    rows = pl.LazyFrame({"i": [1, 2], "t": times})
    assert by_week(rows, COLUMNS, {}) is None
    assert seconds_of(rows, "t") is None
    assert by_week(rows, ColumnsConfig(user="u", item="i", time=None), {}) is None
