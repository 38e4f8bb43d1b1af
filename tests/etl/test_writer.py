"""What is written does not depend on parts or executors, and is there whole or not at all."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal

from falconet.compute.executor import ROW, Executor
from falconet.compute.local import LocalExecutor
from falconet.errors import ArtifactError, ColumnNotFoundError, ConfigError, DataError
from falconet.etl.dataset import Dataset
from falconet.etl.types import column_of
from falconet.etl.writer import Shuffle, write
from falconet.io.artifact import read_artifact
from falconet.io.footer import read_schema, row_groups
from falconet.schema import Column, Schema, Tag

ROWS = 1000
FRAME = pl.DataFrame(
    {
        "user": pl.Series([i // 20 for i in range(ROWS)], dtype=pl.Int32),
        "item": pl.Series(range(ROWS), dtype=pl.Int32),
        "genres": pl.Series([list(range(i % 4)) for i in range(ROWS)], dtype=pl.List(pl.Int32)),
        "name": [f"name {i}" if i % 3 else None for i in range(ROWS)],
    }
)
SCHEMA = Schema(tuple(column_of(name, dtype) for name, dtype in FRAME.schema.items()))
SEEDED = [Shuffle.PER_PARTITION, Shuffle.PER_WORKER, Shuffle.FULL]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    FRAME[:450].write_parquet(folder / "a.parquet", row_group_size=128)
    FRAME[450:].write_parquet(folder / "b.parquet", row_group_size=128)
    return folder


def same(frame: pl.LazyFrame) -> pl.LazyFrame:
    return frame


def written(folder: Path) -> list[pl.DataFrame]:
    return [pl.read_parquet(path) for path in sorted(folder.glob("*.parquet"))]


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.parquet"))}


def items(folder: Path) -> list[int]:
    return pl.concat(written(folder))["item"].to_list()


@pytest.mark.parametrize("shuffle", list(Shuffle))
@pytest.mark.parametrize("files", [1, 3])
def test_every_row_is_there_once_with_its_values(source: Path, tmp_path: Path, shuffle: Shuffle, files: int) -> None:
    out = write(
        Dataset(source, part_size="4KB").parts(),
        same,
        tmp_path / "out",
        schema=SCHEMA,
        shuffle=shuffle,
        output_files=files,
    )
    frames = written(out)
    assert len(frames) == files
    assert all(250 < len(frame) < 400 for frame in frames) or files == 1
    assert_frame_equal(pl.concat(frames).sort("item"), FRAME)


@pytest.mark.parametrize("shuffle", [Shuffle.NONE, Shuffle.PER_WORKER, Shuffle.FULL])
def test_the_same_bytes_for_any_executor_and_any_parts(
    source: Path, tmp_path: Path, executor: Executor, shuffle: Shuffle
) -> None:
    want = write(
        Dataset(source).parts(), same, tmp_path / "want", schema=SCHEMA, shuffle=shuffle, seed=3, output_files=3
    )
    for size in ("3KB", "20KB"):
        got = write(
            Dataset(source, part_size=size).parts(),
            same,
            tmp_path / size,
            schema=SCHEMA,
            shuffle=shuffle,
            seed=3,
            output_files=3,
            row_group_size=100,
            executor=executor,
        )
        assert [frame["item"].to_list() for frame in written(got)] == [f["item"].to_list() for f in written(want)]
    assert digests(tmp_path / "3KB") == digests(tmp_path / "20KB")


def test_per_partition_is_the_same_for_any_executor(source: Path, tmp_path: Path, executor: Executor) -> None:
    parts = Dataset(source, part_size="3KB").parts()
    options: dict[str, Any] = {"schema": SCHEMA, "shuffle": Shuffle.PER_PARTITION, "seed": 3, "output_files": 2}
    want = write(parts, same, tmp_path / "want", **options)
    assert digests(write(parts, same, tmp_path / "got", executor=executor, **options)) == digests(want)


@pytest.mark.parametrize("shuffle", SEEDED)
def test_a_seed_is_an_order_and_another_seed_another(source: Path, tmp_path: Path, shuffle: Shuffle) -> None:
    parts = Dataset(source, part_size="3KB").parts()
    orders = [
        items(write(parts, same, tmp_path / str(i), schema=SCHEMA, shuffle=shuffle, seed=seed, output_files=2))
        for i, seed in enumerate((0, 0, 1))
    ]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert sorted(orders[2]) == list(range(ROWS)) != orders[2]


def test_none_keeps_the_order(source: Path, tmp_path: Path) -> None:
    assert items(write(Dataset(source).parts(), same, tmp_path / "out", schema=SCHEMA, output_files=3)) == list(
        range(ROWS)
    )


def test_per_partition_keeps_parts_together(source: Path, tmp_path: Path) -> None:
    parts = Dataset(source, part_size="8KB").parts()
    order = items(write(parts, same, tmp_path / "out", schema=SCHEMA, shuffle=Shuffle.PER_PARTITION, seed=1))
    part_of = [next(i for i, p in enumerate(parts) if p.first_row <= x < p.first_row + p.rows) for x in order]
    changes = sum(a != b for a, b in pairwise(part_of))
    assert changes == len(parts) - 1 > 2
    assert part_of[:: ROWS // len(parts)] != sorted(part_of[:: ROWS // len(parts)])


def test_full_mixes_rows_of_the_whole_data_in_every_file(source: Path, tmp_path: Path) -> None:
    out = write(Dataset(source).parts(), same, tmp_path / "out", schema=SCHEMA, shuffle=Shuffle.FULL, output_files=4)
    for frame in written(out):
        assert len(frame) == 250
        assert 400 < frame["item"].mean() < 600


def test_full_is_the_order_of_the_upper_half_of_the_stable_hash(source: Path, tmp_path: Path) -> None:
    from falconet.hashing import stable_hash

    out = write(Dataset(source).parts(), same, tmp_path / "out", schema=SCHEMA, shuffle=Shuffle.FULL, seed=9)
    assert items(out) == sorted(range(ROWS), key=lambda row: (stable_hash(row, 9) >> 32, row))


def test_files_per_worker_are_counted(source: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"schema": SCHEMA, "shuffle": Shuffle.PER_WORKER, "seed": 2}
    parts = Dataset(source).parts()
    two = write(parts, same, tmp_path / "a", out_files_per_proc=2, executor=LocalExecutor(workers=2), **options)
    assert digests(two) == digests(write(parts, same, tmp_path / "b", output_files=4, **options))


@pytest.mark.parametrize("shuffle", list(Shuffle))
def test_rows_may_go_and_the_order_of_the_rest_stays(source: Path, tmp_path: Path, shuffle: Shuffle) -> None:
    def odd(frame: pl.LazyFrame) -> pl.LazyFrame:
        return frame.filter((pl.col("item") >= 450) & (pl.col("item") % 2 == 1))

    orders = []
    for size in ("3KB", "256MB"):
        parts = Dataset(source, part_size=size).parts()
        out = write(parts, odd, tmp_path / size, schema=SCHEMA, shuffle=shuffle, seed=5, output_files=2)
        orders.append(items(out))
        assert sorted(orders[-1]) == list(range(451, ROWS, 2))
    if shuffle is not Shuffle.PER_PARTITION:
        assert orders[0] == orders[1]


@pytest.mark.parametrize("shuffle", list(Shuffle))
@pytest.mark.parametrize("files", [None, 2])
def test_no_rows_are_files_with_types(tmp_path: Path, shuffle: Shuffle, files: int | None) -> None:
    parts = Dataset(FRAME[:0]).parts()
    out = write(parts, same, tmp_path / "out", schema=SCHEMA, shuffle=shuffle, output_files=files)
    frames = written(out)
    assert len(frames) == (files or 1)
    assert all(frame.schema == FRAME.schema and frame.is_empty() for frame in frames)
    assert read_schema(out) == SCHEMA


def test_lists_that_are_all_empty_or_null_keep_their_type(tmp_path: Path) -> None:
    for name, values in (("empty", [[], []]), ("null", [None, None])):
        frame = pl.DataFrame({"x": pl.Series(values, dtype=pl.List(pl.Null))})
        schema = Schema((Column(name="x", dtype="int32", list="ragged"),))
        (got,) = written(write(Dataset(frame).parts(), same, tmp_path / name, schema=schema, shuffle=Shuffle.FULL))
        assert got.schema == {"x": pl.List(pl.Int32)}
        assert got["x"].to_list() == values


def test_lists_of_one_length_keep_it(tmp_path: Path) -> None:
    schema = Schema((Column(name="x", dtype="float32", list=2),))
    frame = pl.DataFrame({"x": [[1.0, 2.0], [3.0, 4.0]]})
    (got,) = written(write(Dataset(frame).parts(), same, tmp_path / "out", schema=schema))
    assert got.schema == {"x": pl.Array(pl.Float32, 2)}
    assert got["x"].to_list() == [[1.0, 2.0], [3.0, 4.0]]


def test_the_schema_is_in_every_footer_and_types_conform_to_it(source: Path, tmp_path: Path) -> None:
    schema = Schema((Column(name="item", dtype="int64", nullable=False, tags=frozenset({Tag.ITEM, Tag.ID})),))
    out = write(Dataset(source).parts(), same, tmp_path / "out", schema=schema, output_files=3)
    for path in sorted(out.glob("*.parquet")):
        assert Schema.from_json(pq.read_metadata(path).metadata[b"falconet.schema"]) == schema
        assert pl.read_parquet_schema(path) == {"item": pl.Int64}


def test_row_groups_have_the_size_asked_for(source: Path, tmp_path: Path) -> None:
    out = write(
        Dataset(source, part_size="3KB").parts(),
        same,
        tmp_path / "out",
        schema=SCHEMA,
        output_files=2,
        row_group_size=200,
    )
    assert [group.rows for group in row_groups(out)] == [200, 200, 100, 200, 200, 100]


def test_the_folder_is_a_checked_artefact(source: Path, tmp_path: Path) -> None:
    parts = Dataset(source).parts()
    out = write(
        parts, same, tmp_path / "out", schema=SCHEMA, output_files=2, parents={"workflow": "ab"}, extra={"step": "s"}
    )
    manifest = read_artifact(out, "features")
    assert sorted(manifest.files) == ["part-00000.parquet", "part-00001.parquet"]
    assert (manifest.parents, manifest.extra) == ({"workflow": "ab"}, {"step": "s"})
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_an_existing_folder_is_refused_and_overwriting_leaves_no_old_files(source: Path, tmp_path: Path) -> None:
    parts = Dataset(source).parts()
    out = write(parts, same, tmp_path / "out", schema=SCHEMA, output_files=4)
    with pytest.raises(ArtifactError, match=r"out` exists already[\s\S]*overwrite=True"):
        write(parts, same, out, schema=SCHEMA)
    write(parts, same, out, schema=SCHEMA, output_files=2, overwrite=True)
    assert sum(len(frame) for frame in written(out)) == ROWS
    assert len(written(out)) == 2


def test_nulls_where_the_schema_has_none_are_named_and_the_old_folder_stays(source: Path, tmp_path: Path) -> None:
    parts = Dataset(source).parts()
    out = write(parts, same, tmp_path / "out", schema=SCHEMA)
    before = digests(out)
    strict = Schema((Column(name="name", dtype="string", nullable=False),))
    with pytest.raises(DataError, match=r"column `name` has \d+ nulls[\s\S]*FillMissing"):
        write(parts, same, out, schema=strict, overwrite=True)
    assert digests(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source"]


def test_a_column_the_transform_does_not_give_is_named(source: Path, tmp_path: Path) -> None:
    schema = Schema((Column(name="itm", dtype="int32"),))
    with pytest.raises(ColumnNotFoundError, match=r"has no column `itm`[\s\S]*did you mean `item`"):
        write(Dataset(source).parts(), same, tmp_path / "out", schema=schema)


def test_rows_that_vanish_with_their_numbers_are_an_error(source: Path, tmp_path: Path) -> None:
    def lose(frame: pl.LazyFrame) -> pl.LazyFrame:
        return frame.filter(pl.col("item") > 3).drop(ROW)

    with pytest.raises(DataError, match="without numbers"):
        write(Dataset(source).parts(), lose, tmp_path / "out", schema=SCHEMA, shuffle=Shuffle.FULL)
    out = write(Dataset(source).parts(), lose, tmp_path / "out", schema=SCHEMA)
    assert items(out) == list(range(4, ROWS))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output_files": 0}, "output_files=0"),
        ({"out_files_per_proc": -1}, "out_files_per_proc=-1"),
        ({"output_files": 1, "out_files_per_proc": 1}, "leave one of them out"),
        ({"row_group_size": 0}, "row_group_size=0"),
    ],
)
def test_settings_are_checked_before_work(source: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        write(Dataset(source).parts(), same, tmp_path / "out", schema=SCHEMA, **options)


SLOW = """
import sys, time
from itertools import pairwise
from pathlib import Path
from falconet.etl.dataset import Dataset
from falconet.etl.types import column_of
from falconet.etl.writer import write, Shuffle
from falconet.schema import Schema

data = Dataset(sys.argv[1], part_size="3KB")
schema = Schema(tuple(column_of(name, dtype) for name, dtype in data.schema.items()))

def slow(frame):
    if (Path(sys.argv[2]).parent / "go").exists():
        Path(sys.argv[2]).parent.joinpath("inside").touch()
        time.sleep(60)
    Path(sys.argv[2]).parent.joinpath("go").touch()
    return frame

write(data.parts(), slow, sys.argv[2], schema=schema, shuffle=Shuffle.FULL, overwrite=True)
"""


def test_a_killed_write_leaves_the_old_folder_and_the_next_one_cleans_up(source: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    out = write(Dataset(source).parts(), same, place / "out", schema=SCHEMA)
    before = digests(out)
    process = subprocess.Popen([sys.executable, "-c", SLOW, str(source), str(out)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (place / "inside").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert (place / "inside").exists()
    (left,) = place.glob(".tmp-out-*")
    assert (left / ".exchange" / "part-000000.arrows").exists()
    assert digests(out) == before
    read_artifact(out, "features")
    write(Dataset(source).parts(), same, out, schema=SCHEMA, shuffle=Shuffle.FULL, overwrite=True)
    assert not list(place.glob(".tmp-*"))
    assert sorted(items(out)) == list(range(ROWS))
