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
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal

from falconet.compute.executor import ROW, Executor, Part
from falconet.compute.local import LocalExecutor
from falconet.errors import ArtifactError, ColumnNotFoundError, ConfigError, DataError
from falconet.etl.dataset import Dataset
from falconet.etl.order import full_order, places, ranges
from falconet.etl.types import column_of
from falconet.etl.writer import Shuffle, write
from falconet.hashing import stable_hash
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


def paired(frame: pl.LazyFrame) -> pl.LazyFrame:
    """A list made of two narrow columns and the row number."""
    return frame.select("user", "item", pl.concat_list("item", pl.col(ROW).cast(pl.Int32)).alias("pair"), ROW)


PAIRED = Schema(
    (
        Column(name="user", dtype="int32"),
        Column(name="item", dtype="int32"),
        Column(name="pair", dtype="int32", list="ragged"),
    )
)


@pytest.mark.parametrize("shuffle", list(Shuffle))
@pytest.mark.parametrize("files", [None, 3])
def test_rows_shuffled_before_they_are_made_are_the_same_bytes(
    source: Path, tmp_path: Path, shuffle: Shuffle, files: int | None
) -> None:
    options: dict[str, Any] = {"schema": PAIRED, "shuffle": shuffle, "seed": 4, "output_files": files}
    parts = Dataset(source, part_size="3KB").parts()
    want = write(parts, paired, tmp_path / "want", row_group_size=100, **options)
    assert pl.concat(written(want))["pair"].list.get(0).to_list() == items(want)
    assert pl.concat(written(want))["pair"].list.get(1).to_list() == items(want)
    for name, executor in (
        ("memory", LocalExecutor()),
        ("files", LocalExecutor(memory="1KB")),
        ("threads", LocalExecutor(workers=3, memory="1KB")),
    ):
        got = write(
            parts,
            paired,
            tmp_path / name,
            reads=("item", "user"),
            row_group_size=100,
            executor=executor,
            **{**options, "output_files": files},
        )
        assert digests(got) == digests(want), name


@pytest.mark.parametrize("shuffle", [Shuffle.NONE, Shuffle.FULL])
def test_rows_are_made_late_on_any_executor(source: Path, tmp_path: Path, executor: Executor, shuffle: Shuffle) -> None:
    options: dict[str, Any] = {"schema": PAIRED, "shuffle": shuffle, "seed": 4, "output_files": 2}
    parts = Dataset(source, part_size="3KB").parts()
    want = write(parts, paired, tmp_path / "want", **options)
    got = write(parts, paired, tmp_path / "got", reads=("item", "user"), executor=executor, **options)
    assert digests(got) == digests(want)


def test_numbers_that_a_file_stores_are_those_of_the_order(tmp_path: Path) -> None:
    numbers = pl.Series(ROW, [900, 3, 17, 5, 1], dtype=pl.UInt64)
    pl.DataFrame([numbers, pl.Series("x", range(5))]).write_parquet(tmp_path / "data.parquet")
    part = Part(str(tmp_path / "data.parquet"), 0, 5, 0)
    schema = Schema((Column(name="x", dtype="int64"),))
    want = [numbers.to_list().index(n) for n in sorted(numbers, key=lambda n: (stable_hash(n, 2) >> 32, n))]
    for reads in (None, ("x",)):
        out = write([part], same, tmp_path / str(reads), schema=schema, reads=reads, shuffle=Shuffle.FULL, seed=2)
        assert pl.concat(written(out))["x"].to_list() == want


def test_equal_keys_are_ordered_by_number() -> None:
    rows = [i * 7 % 1000 for i in range(1000)]
    for seed in (0, 1):
        want = sorted(range(1000), key=lambda row: (stable_hash(rows[row], seed) >> 32, rows[row]))
        assert places(pl.Series(rows, dtype=pl.UInt64), seed).to_list() == want
        assert full_order(1000, seed).to_list() == sorted(range(1000), key=lambda n: (stable_hash(n, seed) >> 32, n))
        bucket = ranges(pl.Series(rows, dtype=pl.UInt64), seed, 7)
        assert bucket.tolist() == [((stable_hash(n, seed) >> 32) * 7) >> 32 for n in rows]
        assert (bucket[want][1:] >= bucket[want][:-1]).all()


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
        ({"compression": "zst"}, r"no compression `zst`[\s\S]*did you mean `zstd`"),
        ({"compression": "lz4", "compression_level": 3}, '"lz4" has no levels'),
        ({"compression_level": 23}, "compression_level=23"),
        ({"partition_on": "usr"}, r"no column `usr`[\s\S]*did you mean `user`"),
        ({"partition_on": "genres"}, "`genres` is"),
        ({"partition_on": ["user", "user"]}, "names `user` twice"),
        ({"partition_on": ["user", "item", "name"], "schema": SCHEMA.only(["user", "item", "name"])}, "leaves none"),
    ],
)
def test_settings_are_checked_before_work(source: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, ColumnNotFoundError), match=message):
        write(Dataset(source).parts(), same, tmp_path / "out", **{"schema": SCHEMA, **options})
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("compression", ["zstd", "lz4", "snappy", "none"])
def test_files_are_compressed_as_asked(source: Path, tmp_path: Path, compression: Any) -> None:
    out = write(Dataset(source).parts(), same, tmp_path / "out", schema=SCHEMA, compression=compression)
    group = pq.read_metadata(out / "part-00000.parquet").row_group(0)
    codec = {"none": "UNCOMPRESSED"}.get(compression, compression.upper())
    assert {group.column(i).compression for i in range(group.num_columns)} == {codec}
    assert_frame_equal(pl.concat(written(out)), FRAME)


def test_a_higher_level_makes_smaller_files(source: Path, tmp_path: Path) -> None:
    sizes = [
        (
            write(Dataset(source).parts(), same, tmp_path / str(level), schema=SCHEMA, compression_level=level)
            / "part-00000.parquet"
        )
        .stat()
        .st_size
        for level in (1, 22)
    ]
    assert sizes[1] < sizes[0]


VALUES = ["plain", "a/b", "100 %", "x=y", "ä", ".", "..", " ", None]


def test_partitions_are_folders_that_other_tools_read(tmp_path: Path) -> None:
    frame = pl.DataFrame({"kind": VALUES * 3, "n": range(27), "year": [1990 + i % 2 for i in range(27)]})
    schema = Schema(
        (Column(name="kind", dtype="string"), Column(name="n", dtype="int64"), Column(name="year", dtype="int32"))
    )
    out = write(Dataset(frame).parts(), same, tmp_path / "out", schema=schema, partition_on=["kind", "year"])
    want = frame.select("n", "kind", pl.col("year").cast(pl.Int64)).sort("n")
    assert all(path.relative_to(out).parts[0].startswith("kind=") for path in out.rglob("*.parquet"))
    assert (out / "kind=__HIVE_DEFAULT_PARTITION__" / "year=1990" / "part-00000.parquet").is_file()
    hive = pads.partitioning(pa.schema([("kind", pa.string()), ("year", pa.int64())]), flavor="hive")
    arrow = pads.dataset(out, format="parquet", partitioning=hive, exclude_invalid_files=True).to_table()
    assert_frame_equal(pl.from_arrow(arrow).select("n", "kind", "year").sort("n"), want)
    polars = pl.scan_parquet(out / "**/*.parquet", hive_partitioning=True).collect()
    assert_frame_equal(polars.select("n", "kind", "year").sort("n"), want)
    assert_frame_equal(Dataset(out).scan().collect().select("n", "kind", pl.col("year").cast(pl.Int64)).sort("n"), want)
    (file,) = {tuple(pl.read_parquet_schema(path)) for path in out.rglob("*.parquet")}
    assert file == ("n",)
    assert read_artifact(out, "features").extra == {"partition_on": ["kind", "year"]}
    footer = pq.read_metadata(next(iter(out.rglob("*.parquet")))).metadata[b"falconet.schema"]
    assert Schema.from_json(footer) == schema


@pytest.mark.parametrize("shuffle", list(Shuffle))
def test_rows_of_a_partition_keep_the_order_of_the_shuffle(source: Path, tmp_path: Path, shuffle: Shuffle) -> None:
    options: dict[str, Any] = {"schema": SCHEMA, "shuffle": shuffle, "seed": 1, "output_files": 2}
    parts = Dataset(source, part_size="3KB").parts()
    whole = written(write(parts, same, tmp_path / "whole", **options))
    dealt = write(parts, same, tmp_path / "dealt", partition_on="user", **options)
    for i, frame in enumerate(whole):
        for user in (0, 17, 49):
            path = dealt / f"user={user}" / f"part-{i:05d}.parquet"
            want = frame.filter(pl.col("user") == user).drop("user")
            assert_frame_equal(pl.read_parquet(path, hive_partitioning=False) if path.exists() else want[:0], want)


def test_a_value_without_a_folder_name_is_named(tmp_path: Path) -> None:
    frame = pl.DataFrame({"kind": ["a", ""], "n": [1, 2]})
    schema = Schema((Column(name="kind", dtype="string"), Column(name="n", dtype="int64")))
    with pytest.raises(DataError, match="`kind` has the value ''"):
        write(Dataset(frame).parts(), same, tmp_path / "out", schema=schema, partition_on="kind")


def test_a_disk_that_does_not_tell_folders_apart_loses_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pl.DataFrame({"kind": ["a", "A", "b"], "n": [1, 2, 3]})
    schema = Schema((Column(name="kind", dtype="string"), Column(name="n", dtype="int64")))
    real = Path.mkdir

    def mkdir(path: Path, *args: Any, **options: Any) -> None:
        real(path.with_name(path.name.lower()) if "=" in path.name else path, *args, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(DataError, match=r"`kind=A` is no folder of its own on this disk[\s\S]*upper and lower case"):
        write(Dataset(frame).parts(), same, tmp_path / "out", schema=schema, partition_on="kind")
    assert list(tmp_path.iterdir()) == []


FULL_DISK = """
import resource, sys
import polars as pl
import falconet as fl
from falconet.compute.local import LocalExecutor
from falconet.errors import DataError
from falconet.etl.dataset import Dataset
from falconet.etl.split import write_split
from falconet.etl.writer import write
from falconet.etl.types import column_of
from falconet.schema import Schema

data = Dataset(sys.argv[1])
schema = Schema(tuple(column_of(name, dtype) for name, dtype in data.schema.items()))
numbers = pl.DataFrame({"x": pl.Series(range(3000)).hash()})  # which no compression makes small
fitted = fl.Workflow(["x"] >> fl.ops.Categorify()).fit(fl.Dataset(numbers))
works = [
    lambda: fitted.save(sys.argv[2], overwrite=True),
    lambda: write_split(data, sys.argv[2], kind="random", user="user", overwrite=True),
    lambda: fl.Dataset(data.collect()),
]
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
for work in works:
    try:
        work()
    except DataError as error:
        print(str(error).replace("\\n", " "))
for shuffle in ("none", "full"):
    for reads in (None, tuple(data.schema)):
        try:
            write(data.parts(), lambda f: f, sys.argv[2], schema=schema, shuffle=shuffle, reads=reads, overwrite=True)
        except DataError as error:
            print(str(error).replace("\\n", " "))
"""


@pytest.mark.skipif(os.name == "nt", reason="no limits of file sizes")
def test_a_full_disk_is_one_clear_error_and_the_old_folder_stays(source: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    out = write(Dataset(source).parts(), same, place / "out", schema=SCHEMA)
    before = digests(out)
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(source), str(out)], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 7, done.stdout + done.stderr
    assert all("cannot be written" in line and "is the disk full" in line for line in lines), lines
    assert digests(out) == before
    assert [path.name for path in place.iterdir()] == ["out"]


AGAIN = """
import sys
from falconet.compute.local import LocalExecutor
from falconet.etl.dataset import Dataset
from falconet.etl.types import column_of
from falconet.etl.writer import write
from falconet.schema import Schema

data = Dataset(sys.argv[1], part_size="3KB")
schema = Schema(tuple(column_of(name, dtype) for name, dtype in data.schema.items()))
executor = LocalExecutor(memory="1KB")
print("ready", flush=True)
while True:
    for shuffle in ("none", "full", "per_worker"):
        for reads in (None, tuple(data.schema)):
            write(data.parts(), lambda f: f, sys.argv[2], schema=schema, shuffle=shuffle, reads=reads, seed=1,
                  output_files=3, executor=executor, overwrite=True)
"""


def test_kills_at_any_moment_leave_a_whole_folder(source: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    out = write(Dataset(source).parts(), same, place / "out", schema=SCHEMA)
    for delay in (0.03, 0.12, 0.25):
        process = subprocess.Popen(
            [sys.executable, "-c", AGAIN, str(source), str(out)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdout is not None
        with process.stdout:
            assert process.stdout.readline() == b"ready\n"
            time.sleep(delay)
            process.kill()
            process.wait()
        read_artifact(out, "features")  # which also ends a replacement that was cut off between two renames
        assert sorted(items(out)) == list(range(ROWS))
    write(Dataset(source).parts(), same, out, schema=SCHEMA, overwrite=True)
    assert [path.name for path in place.iterdir()] == ["out"]


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
