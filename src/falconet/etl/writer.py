"""Features on disk, in the same order however the work was cut.

Where every row is made of one row alone, making rows and shuffling them can change places: the narrow columns that were
read are shuffled (in memory if they fit, else through files), and lists and other wide columns are made when a file is
written. Where rows are dropped or added, what was made of them goes through files.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from falconet.compute.engine import collect
from falconet.compute.exchange import Bucket, BucketOf, Source, Transform, spread
from falconet.compute.executor import ROW, Executor, Part, reading
from falconet.compute.local import LocalExecutor
from falconet.errors import ColumnNotFoundError, ConfigError
from falconet.etl.files import ROW_GROUP, Chunk, Compression, Layout, OutputFile, ReadChunk, ReadRows, WriteFile
from falconet.etl.names import repeated
from falconet.etl.order import LIMIT, Deal, Dealt, Ranges, full_order, numbered, place_of, places
from falconet.etl.table import plain
from falconet.etl.types import polars_type
from falconet.io.artifact import write_artifact
from falconet.progress import progress
from falconet.schema import Schema

KIND = "features"
FILE_ROWS = 32 * 131_072  # rows of a file where nobody said how many files
BUCKET_ROWS = 1 << 20  # rows sorted in memory at a time
PIECE_ROWS = 1 << 18  # rows made at a time where that is free: wide columns of few rows are in memory
LIST_BYTES = 64  # a guess of what a row's list takes in memory
WRITERS = 8  # files written at once, where there are cores and memory for it


class Shuffle(StrEnum):
    """How rows are ordered on disk; all but NONE by a seed.

    NONE keeps the order. PER_PARTITION shuffles the parts, and the rows within each (so it depends on `part_size`).
    PER_WORKER deals blocks of rows to the output files and shuffles within each. FULL is a permutation of all rows.
    Rows are ordered by the stable hash of (seed, row number): the same for any executor and, but for PER_PARTITION,
    any parts.
    """

    NONE = "none"
    PER_PARTITION = "per_partition"
    PER_WORKER = "per_worker"
    FULL = "full"


def write(
    parts: Sequence[Source],
    apply: Transform,
    out: str | Path,
    *,
    schema: Schema,
    reads: Sequence[str] | None = None,
    shuffle: Shuffle = Shuffle.NONE,
    seed: int = 0,
    output_files: int | None = None,
    out_files_per_proc: int | None = None,
    row_group_size: int = ROW_GROUP,
    compression: Compression = "zstd",
    compression_level: int | None = None,
    partition_on: str | Sequence[str] = (),
    executor: Executor | None = None,
    overwrite: bool = False,
    parents: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write what `apply` makes of the parts to the folder `out`, whole or not at all; the folder.

    `apply` gets rows with `__row__`, gives the columns of `schema`, and keeps `__row__` if it drops rows. `reads` are
    the columns it needs, where it makes each row of that row alone, one for one: then rows may be shuffled before it.
    The files part-00000.parquet … have about equally many rows each and the schema in their footers. Their number is
    `output_files`, or `out_files_per_proc` for each of the executor's workers, or one for every 4,194,304 rows.

    `partition_on` names columns that become folders, `column=value/part-00000.parquet` …, as Hive, Polars and Arrow
    read them (null: `__HIVE_DEFAULT_PARTITION__`; Arrow and pandas are to leave out manifest.json:
    `pyarrow.dataset.dataset(out, partitioning="hive", exclude_invalid_files=True)`); the rows of each of the files
    above, which are in memory together, are dealt to them in their order. The columns are in the schema, but no longer
    in the files.

    Raises ArtifactError when `out` exists and `overwrite` is false, ConfigError for settings, SchemaError and DataError
    for columns that are not what `schema` says, DataError where the disk is full.
    """
    executor = executor or LocalExecutor()
    shuffle = Shuffle(shuffle)
    wanted = _file_count(output_files, out_files_per_proc, executor)
    layout = Layout(
        row_group_size=row_group_size,
        compression=compression,
        compression_level=compression_level,
        partition_on=_partition_columns(partition_on, schema),
    )
    if layout.partition_on:
        extra = {**(extra or {}), "partition_on": list(layout.partition_on)}
    with write_artifact(out, KIND, parents=parents, extra=extra, overwrite=overwrite) as draft:
        room = draft.path / ".exchange"
        room.mkdir()
        if shuffle is Shuffle.PER_PARTITION:
            parts = sorted(parts, key=lambda part: place_of(part.first_row, seed))
        job = _Job(parts, _Conform(apply, schema), schema, reads, shuffle, seed, wanted, executor, room)
        read, files = job.whole() if job.fits else job.direct() if job.in_place else job.by_exchange()
        writer = WriteFile(schema, read, layout, str(draft.path), str(room))
        with progress("writing", total=sum(file.rows for file in files)) as task:
            job.together(files).map(writer, files, done=lambda file: task.advance(file.rows))
        shutil.rmtree(room)
    return Path(out)


Read = Callable[[Any], pl.DataFrame]


@dataclass(frozen=True)
class _Job:
    """What is to be written, and the three ways to get at it: each gives the files, and what reads their pieces."""

    parts: Sequence[Source]
    apply: Transform
    schema: Schema
    reads: Sequence[str] | None
    shuffle: Shuffle
    seed: int
    wanted: int | None
    executor: Executor
    room: Path

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def fits(self) -> bool:
        """Whether rows can be shuffled in memory before they are made: all that is read, and the order of it."""
        if self.reads is None or self.shuffle is Shuffle.NONE or not isinstance(self.executor, LocalExecutor):
            return False
        types = self._read_types()
        if ROW in types or self.rows >= LIMIT or any(_width(dtype) is None for dtype in types.values()):
            return False
        # The columns, one of them twice while they are put together, and the order while it is sorted.
        return self.rows * (sum(map(_known_width, types.values())) + 40) <= self.executor.budget

    @property
    def in_place(self) -> bool:
        """Whether files can be written from the parts as they are."""
        return self.reads is not None and self.shuffle in (Shuffle.NONE, Shuffle.PER_PARTITION)

    def whole(self) -> tuple[Read, list[OutputFile]]:
        """Everything read at once, and every file a slice of one order."""
        parts = self._narrow()
        order, edges = self._order()
        frames = []
        with progress("reading", total=self.rows) as task, reading(self._where):
            for part in sorted(parts, key=lambda part: part.first_row):
                frames.append(collect(plain(part.scan())))
                task.advance(part.rows)
        frame = pl.concat(frames)
        del frames
        # One column after the other, so that only one is there twice.
        columns = [frame.drop_in_place(name).rechunk() for name in frame.columns]
        step = max(1, PIECE_ROWS // ROW_GROUP) * ROW_GROUP
        files = [
            OutputFile(i, tuple((at, min(step, b - at)) for at in range(a, b, step)) or ((a, 0),), b - a)
            for i, (a, b) in enumerate(pairwise(edges))
        ]
        return ReadRows(pl.DataFrame(columns), order, self.apply, self._where), files

    def _order(self) -> tuple[pl.Series, list[int]]:
        """The numbers of all rows in their order, and where files begin and end in it."""
        if self.shuffle is Shuffle.FULL:
            return full_order(self.rows, self.seed), self._even(self.rows)
        if self.shuffle is Shuffle.PER_PARTITION:
            pieces = [numbered(part.first_row, part.rows) for part in self.parts]
            edges = self._even(self.rows)
        else:
            deal = Deal.of(self.rows, self.wanted or _default_files(self.rows), self.seed)
            pieces = [deal.numbers(file) for file in range(deal.files)]
            edges = [0, *np.cumsum([len(piece) for piece in pieces]).tolist()]
        return pl.concat([piece[places(piece, self.seed)].cast(pl.UInt32) for piece in pieces]), edges

    def direct(self) -> tuple[Read, list[OutputFile]]:
        """Files from the parts, with no file between."""
        seed = self.seed if self.shuffle is Shuffle.PER_PARTITION else None
        parts = self._narrow() if seed is not None else self._pieces(PIECE_ROWS)
        return ReadChunk(seed, self.apply), self._files(parts, self._even(self.rows))

    def by_exchange(self) -> tuple[Read, list[OutputFile]]:
        """Rows to buckets on disk first: those that were read, where these can be shuffled, else what was made."""
        early = self.reads is not None
        seed = None if self.shuffle is Shuffle.NONE else self.seed
        parts = self._pieces() if early else self.parts
        buckets, bucket, files = self._buckets()
        with progress("shuffling" if early else "transforming", total=self.rows) as task:
            found = spread(
                self.executor,
                parts,
                apply=plain if early else self.apply,
                bucket=bucket,
                buckets=buckets,
                folder=self.room,
                done=task.advance,
            )
        chunks = list(found) if bucket is not None else [Bucket((piece,), 0) for piece in found[0].slices]
        rows = sum(chunk.rows for chunk in chunks)
        edges = self._even(rows)
        if files is not None:  # each file has buckets of its own
            edges = [*(chunk.first_row for chunk in chunks[:: len(chunks) // files]), rows]
        return ReadChunk(seed, self.apply if early else None, self._where), self._files(chunks, edges)

    def _buckets(self) -> tuple[int, BucketOf | None, int | None]:
        """How many buckets there are, which one a row goes to, and how many files they are of, where it is not free."""
        if self.shuffle in (Shuffle.NONE, Shuffle.PER_PARTITION):
            return 1, None, None
        size = self._bucket_rows()
        if self.shuffle is Shuffle.FULL:
            # Four buckets to a file, so that few are read for two files; more where they would be large.
            count = max(-(-self.rows // size), min(4 * (self.wanted or 1), -(-self.rows // 65_536)), 1)
            return count, Ranges(self.seed, count), None
        deal = Deal.of(self.rows, self.wanted or _default_files(self.rows), self.seed)
        per_file = max(1, -(-self.rows // (deal.files * size)))
        return deal.files * per_file, Dealt(deal, self.seed, per_file), deal.files

    def together(self, files: Sequence[OutputFile]) -> Executor:
        """The executor, with as many files at once as there are cores and memory for."""
        if not isinstance(self.executor, LocalExecutor):
            return self.executor
        at_once = min(len(files), pl.thread_pool_size(), WRITERS, self.executor.budget // (4 * PIECE_ROWS * self._out))
        return replace(self.executor, workers=max(1, self.executor.workers, at_once))

    def _bucket_rows(self) -> int:
        """Rows of a bucket: of what is read and made, two are there for each file that is written."""
        writers = max(1, self.executor.workers, min(pl.thread_pool_size(), WRITERS))
        return max(ROW_GROUP, min(BUCKET_ROWS, self.executor.budget // (4 * writers * self._out)))

    def _pieces(self, most: int = 4 * BUCKET_ROWS) -> list[Source]:
        """The parts, cut where they have more than `most` rows, or more than what may be in memory at a time."""
        size = sum(_known_width(dtype) for dtype in self._read_types().values()) + 16
        limit = max(ROW_GROUP, min(most, self.executor.budget // (4 * self.executor.workers * size)))
        cut: list[Source] = []
        for part in self._narrow():
            if not isinstance(part, Part) or part.rows <= limit:
                cut.append(part)
                continue
            count = -(-part.rows // limit)
            edges = [part.rows * i // count for i in range(count + 1)]
            cut += [
                replace(part, offset=part.offset + a, rows=b - a, first_row=part.first_row + a)
                for a, b in pairwise(edges)
            ]
        return cut

    def _narrow(self) -> list[Source]:
        """The parts with the columns that are read."""
        types = self._read_types()
        return [replace(part, columns=tuple(types)) if isinstance(part, Part) else part for part in self.parts]

    def _read_types(self) -> dict[str, pl.DataType]:
        """The columns that are read, with the numbers of rows where a file stores them."""
        assert self.reads is not None
        types = self.parts[0].scan(row_numbers=False).collect_schema()
        return {name: types[name] for name in (*self.reads, *([ROW] if ROW in types else []))}

    @property
    def _out(self) -> int:
        """About how many bytes a row takes that is made."""
        return 8 + sum(_known_width(polars_type(column)) for column in self.schema)

    @property
    def _where(self) -> str:
        """The files the rows come from, for messages."""
        paths = dict.fromkeys(part.path for part in self.parts)
        first, last = next(iter(paths)), next(reversed(paths))
        return f"`{first}`" if len(paths) == 1 else f"`{first}` … `{last}`"

    def _even(self, rows: int) -> list[int]:
        """Where files of equally many rows begin and end."""
        files = self.wanted or _default_files(rows)
        return [rows * i // files for i in range(files + 1)]

    def _files(self, chunks: Sequence[Source], edges: Sequence[int]) -> list[OutputFile]:
        return [OutputFile(i, _between(chunks, a, b), b - a) for i, (a, b) in enumerate(pairwise(edges))]


def _between(chunks: Sequence[Source], start: int, stop: int) -> tuple[Chunk, ...]:
    """The pieces of chunks that hold rows `start` to `stop` of all."""
    pieces, first = [], 0
    for chunk in chunks:
        a, b = max(start, first), min(stop, first + chunk.rows)
        if a < b:
            pieces.append(Chunk(chunk, a - first, b - a))
        first += chunk.rows
    return tuple(pieces) or (Chunk(chunks[0], 0, 0),)


def _width(dtype: pl.DataType) -> int | None:
    """Bytes of a value in memory, where all have equally many."""
    if dtype == pl.Boolean:
        return 1
    if dtype.is_numeric() or dtype.is_temporal():
        return int(pl.Series([0]).cast(dtype).estimated_size())
    return None


def _known_width(dtype: pl.DataType) -> int:
    return _width(dtype) or LIST_BYTES


def _default_files(rows: int) -> int:
    return max(1, -(-rows // FILE_ROWS))


def _file_count(output_files: int | None, out_files_per_proc: int | None, executor: Executor) -> int | None:
    if output_files is not None and out_files_per_proc is not None:
        raise ConfigError("both output_files and out_files_per_proc are set", hint="leave one of them out")
    for name, value in (("output_files", output_files), ("out_files_per_proc", out_files_per_proc)):
        if value is not None and value < 1:
            raise ConfigError(f"{name}={value}", hint="at least 1, or None")
    return output_files if out_files_per_proc is None else out_files_per_proc * executor.workers


def _partition_columns(given: str | Sequence[str], schema: Schema) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    for name in names:
        if name not in schema:
            raise ColumnNotFoundError.of(name, schema.names, where="the output (`partition_on`)")
        if schema[name].list is not None or schema[name].dtype.startswith("float"):
            raise ConfigError(f"partition_on: `{name}` is {schema[name].dtype}", hint="whole numbers, strings, times")
    if twice := repeated(names):
        raise ConfigError(f"partition_on names `{twice}` twice")
    if len(names) == len(schema.names):
        raise ConfigError("partition_on names all columns, which leaves none for the files")
    return names


@dataclass(frozen=True)
class _Conform:
    """A transform whose result has the columns and types of a schema, and `__row__` where it gives it."""

    apply: Transform
    schema: Schema

    def __call__(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        made = self.apply(frame)
        found = made.collect_schema()
        for name in self.schema.names:
            if name not in found:
                raise ColumnNotFoundError.of(name, found, where="the result of the transform")
        columns = [pl.col(column.name).cast(polars_type(column)) for column in self.schema]
        return made.select(columns + [pl.col(ROW)] * (ROW in found))
