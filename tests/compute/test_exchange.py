"""Rows that belong together come together, from any cut, in any executor, and none is lost or doubled."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from falconet.compute.exchange import Bucket, exchange, spread
from falconet.compute.executor import ROW, Executor, Part
from falconet.compute.local import LocalExecutor
from falconet.errors import DataError

FRAME = pl.DataFrame({"key": [i * 7 % 10 for i in range(60)], "x": range(60)})
MOD = pl.col("key") % 3
LOCAL = LocalExecutor()


def parts_of(folder: Path, *edges: int) -> list[Part]:
    FRAME.write_parquet(folder / "data.parquet", row_group_size=16)
    cuts = [0, *edges, 60]
    return [Part(str(folder / "data.parquet"), a, b - a, a) for a, b in pairwise(cuts)]


@pytest.mark.parametrize("edges", [(), (20, 40), (0, 1, 1, 59)], ids=str)
def test_a_bucket_has_all_its_rows_in_the_order_of_the_data(
    executor: Executor, tmp_path: Path, edges: tuple[int, ...]
) -> None:
    found = spread(
        executor, parts_of(tmp_path, *edges), apply=lambda f: f, bucket=MOD, buckets=3, folder=tmp_path / "room"
    )
    whole = FRAME.with_row_index(ROW).with_columns(pl.col(ROW).cast(pl.UInt64))
    assert [bucket.rows for bucket in found] == [24, 18, 18]
    assert [bucket.first_row for bucket in found] == [0, 24, 42]
    for i, bucket in enumerate(found):
        assert_frame_equal(bucket.scan(row_numbers=True).collect(), whole.filter(MOD.eq(i)))
        assert bucket.scan().collect_schema() == FRAME.schema


def test_nothing_is_left_beside_the_files(tmp_path: Path) -> None:
    room = tmp_path / "room"
    spread(LOCAL, parts_of(tmp_path, 30), apply=lambda f: f, bucket=MOD, buckets=3, folder=room)
    assert sorted(path.name for path in room.iterdir()) == ["part-000000.arrows", "part-000001.arrows"]


def test_a_bucket_without_rows_keeps_the_types(tmp_path: Path) -> None:
    found = spread(LOCAL, parts_of(tmp_path, 9), apply=lambda f: f, bucket=MOD * 2, buckets=5, folder=tmp_path / "room")
    assert [bucket.rows for bucket in found] == [24, 0, 18, 0, 18]
    assert found[1].scan().collect().schema == FRAME.schema


def test_an_exchange_sees_each_bucket_once_and_whole(executor: Executor, tmp_path: Path) -> None:
    def running_sum(frame: pl.LazyFrame) -> pl.LazyFrame:
        return frame.sort(ROW).with_columns(total=pl.col("x").cum_sum().over("key"))

    def run(*edges: int) -> pl.DataFrame:
        found = exchange(
            executor,
            parts_of(tmp_path, *edges),
            apply=lambda f: f.filter(pl.col("x") > 3),
            bucket=MOD,
            buckets=3,
            finish=running_sum,
            folder=tmp_path / f"room{len(edges)}",
        )
        assert [part.first_row for part in found] == [0, found[0].rows, found[0].rows + found[1].rows]
        return pl.concat([part.scan(row_numbers=True).collect() for part in found]).sort(ROW)

    kept = FRAME.with_row_index(ROW).with_columns(pl.col(ROW).cast(pl.UInt64)).filter(pl.col("x") > 3)
    want = kept.with_columns(total=pl.col("x").cum_sum().over("key"))
    assert_frame_equal(run(), want)
    assert_frame_equal(run(11, 13, 50), want)


def test_buckets_can_be_spread_again(tmp_path: Path) -> None:
    first = spread(LOCAL, parts_of(tmp_path, 30), apply=lambda f: f, bucket=MOD, buckets=3, folder=tmp_path / "one")
    again = spread(LOCAL, first, apply=lambda f: f, bucket=pl.col(ROW) // 20, buckets=3, folder=tmp_path / "two")
    assert [bucket.scan().collect()["x"].sort().to_list() for bucket in again] == [
        list(range(20)),
        list(range(20, 40)),
        list(range(40, 60)),
    ]


def test_a_transform_that_keeps_all_rows_may_leave_the_numbers_out(tmp_path: Path) -> None:
    room = tmp_path / "room"
    (found,) = spread(
        LOCAL, parts_of(tmp_path, 7), apply=lambda f: f.select("x"), bucket=pl.col(ROW) * 0, buckets=1, folder=room
    )
    assert found.scan(row_numbers=True).collect()[ROW].to_list() == list(range(60))


def test_lost_numbers_are_an_error(tmp_path: Path) -> None:
    def drop(frame: pl.LazyFrame) -> pl.LazyFrame:
        return frame.filter(pl.col("x") != 5).select("key", "x")

    with pytest.raises(DataError, match=r"gave 59 rows without numbers for the 60 of a part[\s\S]*`__row__`"):
        spread(LOCAL, parts_of(tmp_path), apply=drop, bucket=MOD, buckets=3, folder=tmp_path / "room")


def test_a_row_without_a_bucket_is_an_error(tmp_path: Path) -> None:
    for bucket in (pl.lit(3), pl.lit(None, dtype=pl.Int64)):
        with pytest.raises(DataError, match="null or not below 3"):
            spread(LOCAL, parts_of(tmp_path), apply=lambda f: f, bucket=bucket, buckets=3, folder=tmp_path / "room")


def test_done_hears_of_all_rows(executor: Executor, tmp_path: Path) -> None:
    heard: list[int] = []
    spread(executor, parts_of(tmp_path, 20, 45), apply=lambda f: f, folder=tmp_path / "room", done=heard.append)
    assert sorted(heard) == [15, 20, 25]


def test_a_bucket_stands_where_a_part_does(tmp_path: Path) -> None:
    part = parts_of(tmp_path)[0]
    bucket = Bucket((part,), 5)
    assert (bucket.rows, bucket.first_row) == (60, 5)
