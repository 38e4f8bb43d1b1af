"""Events become rows like those of the raw files: ids, times, ratings, and what is left out."""

from __future__ import annotations

import shutil
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from falconet.errors import ArtifactError, ColumnNotFoundError, ConfigError, DataError
from falconet.progress import set_quiet
from falconet.recipe.collect import as_rows, chosen, collect, ids_like
from falconet.recipe.config import ColumnsConfig
from falconet.serve.events import Event
from falconet.serve.export import export_events
from falconet.serve.stores.sqlite import SqliteStore

COLUMNS = ColumnsConfig(user="u", item="i", time="t", rating="r")
T = 1_700_000_000_000_000  # 2023-11-14 22:13:20, in microseconds


def events(*rows: tuple[Any, ...]) -> pl.DataFrame:
    """(user, item, type, value, seconds after T)."""
    names = ("user_id", "item_id", "type", "value", "time")
    frame = pl.DataFrame([dict(zip(names, (*row[:4], T + row[4] * 10**6), strict=True)) for row in rows])
    return frame.with_row_index("event_id").cast({"event_id": pl.String, "value": pl.Float64})


def raw(times: pl.Series, **types: Any) -> pl.LazyFrame:
    frame = pl.DataFrame({"u": [1], "i": [1], "t": times, "r": [1.0]})
    return frame.cast(types).lazy()


SECONDS = pl.Series([1_600_000_000])


def test_several_events_of_one_item_are_one_row_with_the_last_rating() -> None:
    some = events((1, 9, "view", 7.0, 3), (1, 8, "click", None, 2), (1, 9, "rating", 4.0, 5), (1, 9, "like", None, 6))
    rows = as_rows(some, raw(SECONDS, u=pl.Int32, r=pl.Float32), COLUMNS)
    assert rows.rows() == [(1, 8, T + 2_000_000, T // 10**6 + 2, None), (1, 9, T + 6_000_000, T // 10**6 + 6, 4.0)]
    assert rows.schema["u"] == pl.Int32


@pytest.mark.parametrize("dtype", [pl.Int64, pl.Int8, pl.Float32])
def test_ratings_that_the_raw_files_cannot_have_are_none(dtype: type[pl.DataType]) -> None:
    some = events((1, 9, "rating", 1e300, 3), (1, 8, "rating", 4.0, 4), (1, 7, "view", None, 5))
    assert as_rows(some, raw(SECONDS, r=dtype), COLUMNS)["r"].to_list() == [None, 4, None]


@pytest.mark.parametrize(
    ("times", "want"),
    [
        (SECONDS, T // 10**6),
        (SECONDS * 10**3, T // 10**3),
        (SECONDS * 10**6, T),
        (SECONDS * 10**9, T * 10**3),
        (SECONDS + 0.5, T / 10**6),
        (pl.Series([date(2020, 1, 1)]), date(2023, 11, 14)),
        (pl.Series([datetime(2020, 1, 1)]), datetime(2023, 11, 14, 22, 13, 20)),
        (pl.Series([datetime(2020, 1, 1, tzinfo=UTC)]), datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
    ],
    ids=["seconds", "ms", "us", "ns", "float", "date", "datetime", "utc"],
)
def test_times_are_in_the_unit_of_the_raw_files(times: pl.Series, want: object) -> None:
    rows = as_rows(events((1, 9, "view", None, 0)), raw(times), COLUMNS)
    assert rows["t"].to_list() == [want]


@pytest.mark.parametrize(
    "times",
    [SECONDS.cast(pl.Int32), SECONDS * 10**9, pl.Series([datetime(2020, 1, 1)], dtype=pl.Datetime("ns"))],
    ids=["32 bits", "ns", "datetime ns"],
)
def test_an_event_of_the_far_future_is_left_out(times: pl.Series, capsys: pytest.CaptureFixture[str]) -> None:
    set_quiet(False)
    some = events((1, 9, "view", None, 0), (2, 9, "view", None, 9_000_000_000_000))
    rows = as_rows(some, raw(times), COLUMNS)
    assert rows["u"].to_list() == [1]
    assert "1 of 2 events have times that the raw files cannot have: left out" in capsys.readouterr().err


def test_times_that_are_none_since_1970_are_refused() -> None:
    with pytest.raises(DataError, match=r"the latest `t` of the raw files is 17, which is no time since 1970"):
        as_rows(events((1, 9, "view", None, 0)), raw(pl.Series([17])), COLUMNS)


def test_ids_are_those_of_the_raw_files_or_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    some = events(("7", "1", "view", None, 0), ("07", "2", "view", None, 1), ("x", "3", "view", None, 2))
    assert as_rows(some, raw(SECONDS), COLUMNS)["u"].to_list() == [7]
    said = "2 of 3 events have ids that the raw files cannot have (`u` is Int64 and `i` is Int64): left out"
    assert said in capsys.readouterr().err
    texts = as_rows(some, raw(SECONDS, u=pl.String, i=pl.String), COLUMNS)
    assert texts["u"].to_list() == ["7", "07", "x"]
    numbers = as_rows(events((7, 2**40, "view", None, 0)), raw(SECONDS, u=pl.String, i=pl.Int32), COLUMNS)
    assert numbers.is_empty()
    assert ids_like([7, "8", "x"], pl.Int64()).to_list() == [7, 8, None]


def test_ids_beyond_signed_64_bits_come_as_texts() -> None:
    large = 2**63 + 5
    some = events((str(large), "9", "view", None, 0), (str(2**64), "9", "view", None, 1))
    rows = as_rows(some, raw(SECONDS, u=pl.UInt64), COLUMNS)
    assert rows["u"].to_list() == [large]


def test_some_types_count_and_hide_never_does_by_itself() -> None:
    rows = ((1, 1, "view", None, 0), (1, 2, "hide", None, 1), (None, 3, "view", None, 2), (1, 4, "like", None, 3))
    some = events(*rows).lazy()
    assert chosen(some, (), "here").collect()["item_id"].to_list() == [1, 4]
    assert chosen(some, ("like", "hide"), "here").collect()["item_id"].to_list() == [2, 4]
    with pytest.raises(ConfigError, match=r"(?s)`refresh\.types` has `liked`, no event of `here`.*did you mean `like`"):
        chosen(some, ("liked",), "here")


def test_a_store_and_what_was_exported_from_it_hold_the_same(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "events.db")
    store.add_events([Event(event_id=f"e{i}", user_id=i, item_id=i * 2, type="view", time=T + i) for i in range(5)])
    store.put_item(4, features={"year": 1999})
    store.put_item(5, hidden=True)
    store.put_user(1, {"age": 3})
    export_events(store, tmp_path / "exported")
    found, exported = collect(str(tmp_path / "events.db")), collect(str(tmp_path / "exported"))
    store.close()
    assert found.events.collect().equals(exported.events.collect())
    for one in (found, exported):
        assert (one.items, one.users) == ([(4, {"year": 1999})], [(1, {"age": 3})])
    shutil.copytree(tmp_path / "exported", tmp_path / "bare")
    (tmp_path / "bare/manifest.json").unlink()  # Parquet files that anybody may have put there
    bare = collect(str(tmp_path / "bare"))
    assert bare.events.collect().equals(found.events.collect())
    assert (bare.items, bare.users) == ((), ())


def test_what_holds_no_events_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"(?s)no events at `.*nowhere`.*falconet serve"):
        collect(str(tmp_path / "nowhere"))
    pl.DataFrame({"user": [1]}).write_parquet(tmp_path / "other.parquet")
    with pytest.raises(ColumnNotFoundError, match=r"which should hold events, has no column `event_id`"):
        collect(str(tmp_path / "other.parquet"))
    events((1, 9, "view", None, 0)).cast({"time": pl.String}).write_parquet(tmp_path / "times.parquet")
    with pytest.raises(DataError, match=r"which should hold events, has `time` as String"):
        collect(str(tmp_path / "times.parquet"))
    (tmp_path / "text.db").write_text("no store at all, but some text that is long enough")
    with pytest.raises(ArtifactError, match="cannot be used as a store of events"):
        collect(str(tmp_path / "text.db"))
