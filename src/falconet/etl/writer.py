"""Features on disk: every shuffle as two maps over parts, the same rows in the same order however the work was cut."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl

from falconet.compute.exchange import Bucket, Source, Transform, spread
from falconet.compute.executor import ROW, Executor
from falconet.compute.local import LocalExecutor
from falconet.errors import ColumnNotFoundError, ConfigError
from falconet.etl.files import Chunk, OutputFile, WriteFile
from falconet.etl.hash_expr import hash_expr
from falconet.etl.types import polars_type
from falconet.hashing import stable_hash
from falconet.io.artifact import write_artifact
from falconet.progress import progress
from falconet.schema import Schema

KIND = "features"
ROW_GROUP = 131_072
FILE_ROWS = 32 * ROW_GROUP  # rows of a file where nobody said how many files
BUCKET_ROWS = 1 << 20  # rows sorted in memory at a time
BLOCK_ROWS = ROW_GROUP  # rows that PER_WORKER deals together


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
    shuffle: Shuffle = Shuffle.NONE,
    seed: int = 0,
    output_files: int | None = None,
    out_files_per_proc: int | None = None,
    row_group_size: int = ROW_GROUP,
    executor: Executor | None = None,
    overwrite: bool = False,
    parents: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write what `apply` makes of the parts to the folder `out`, whole or not at all; the folder.

    `apply` gets a part's rows with `__row__`, gives the columns of `schema`, and keeps `__row__` if it drops rows. The
    files part-00000.parquet … have about equally many rows each and the schema in their footers. Their number is
    `output_files`, or `out_files_per_proc` for each of the executor's workers, or one for every 4,194,304 rows.

    Raises ArtifactError when `out` exists and `overwrite` is false, ConfigError for settings, SchemaError and DataError
    for columns that are not what `schema` says.
    """
    executor = executor or LocalExecutor()
    shuffle = Shuffle(shuffle)
    wanted = _file_count(output_files, out_files_per_proc, executor)
    if row_group_size < 1:
        raise ConfigError(f"row_group_size={row_group_size}", hint="at least 1")
    rows = sum(part.rows for part in parts)
    with write_artifact(out, KIND, parents=parents, extra=extra, overwrite=overwrite) as draft:
        room = draft.path / ".exchange"
        if shuffle is Shuffle.PER_PARTITION:
            parts = sorted(parts, key=lambda part: _place(part.first_row, seed))
        plan = _plan(shuffle, seed, rows, wanted)
        with progress("transforming", total=rows) as task:
            found = spread(
                executor,
                parts,
                apply=_Conform(apply, schema),
                bucket=plan.bucket,
                buckets=plan.buckets,
                folder=room,
                done=task.advance,
            )
        chunks, edges = _arrange(found, plan, wanted)
        job = WriteFile(schema, plan.order, str(draft.path), str(room), row_group_size)
        files = [OutputFile(i, *_between(chunks, a, b)) for i, (a, b) in enumerate(pairwise(edges))]
        with progress("writing", total=edges[-1]) as task:
            executor.map(job, files, done=lambda file: task.advance(file.rows))
        shutil.rmtree(room)
    return Path(out)


@dataclass(frozen=True)
class _Plan:
    """Which bucket a row goes to, and the order within a bucket. Buckets in order are the data in order."""

    bucket: pl.Expr | None
    buckets: int
    order: pl.Expr | None
    files: int | None = None  # where buckets belong to files: how many


def _plan(shuffle: Shuffle, seed: int, rows: int, wanted: int | None) -> _Plan:
    key = hash_expr(pl.col(ROW), seed)
    if shuffle is Shuffle.NONE:
        return _Plan(None, 1, None)
    if shuffle is Shuffle.PER_PARTITION:
        return _Plan(None, 1, key)  # each part is a bucket of its own
    if shuffle is Shuffle.FULL:
        # Four buckets to a file, so that few are read for two files; more where they would be large.
        buckets = max(-(-rows // BUCKET_ROWS), min(4 * (wanted or 1), -(-rows // 65_536)), 1)
        return _Plan(_range(key, buckets), buckets, key)
    files = wanted or _default_files(rows)
    block_rows = max(1, min(BLOCK_ROWS, -(-rows // files)))
    blocks = max(1, -(-rows // block_rows))
    dealt = sorted(range(blocks), key=lambda block: _place(block, seed))
    file_of = [0] * blocks
    for place, block in enumerate(dealt):
        file_of[block] = place % files
    per_file = max(1, -(-rows // (files * BUCKET_ROWS)))
    block_of = ((pl.col(ROW) // block_rows) % blocks).cast(pl.UInt32)
    file = pl.lit(pl.Series(file_of, dtype=pl.UInt64)).gather(block_of)
    return _Plan(file * per_file + _range(key, per_file), files * per_file, key, files)


def _range(key: pl.Expr, count: int) -> pl.Expr:
    """Which of `count` equal ranges of UInt64 a key lies in."""
    return key // -(-(2**64) // count) if count > 1 else key * 0


def _arrange(found: Sequence[Bucket], plan: _Plan, wanted: int | None) -> tuple[list[Bucket], list[int]]:
    """The chunks one after the other, and the rows at which files begin and end in them."""
    chunks = [Bucket((piece,), 0) for piece in found[0].slices] if plan.bucket is None else list(found)
    rows = sum(chunk.rows for chunk in chunks)
    if plan.files is None:
        files = wanted or _default_files(rows)
        return chunks, [rows * i // files for i in range(files + 1)]
    ends = [chunk.first_row for chunk in chunks[:: len(chunks) // plan.files]]
    return chunks, [*ends, rows]


def _between(chunks: Sequence[Bucket], start: int, stop: int) -> tuple[tuple[Chunk, ...], int]:
    """The pieces of chunks that hold rows `start` to `stop` of all, and how many rows that is."""
    pieces, first = [], 0
    for chunk in chunks:
        a, b = max(start, first), min(stop, first + chunk.rows)
        if a < b:
            pieces.append(Chunk(chunk, a - first, b - a))
        first += chunk.rows
    return tuple(pieces) or (Chunk(chunks[0], 0, 0),), stop - start


def _place(number: int, seed: int) -> int:
    """A part's or block's place in the order of this seed (a hash of its own, not that of the row of this number)."""
    return stable_hash((number, 1), seed) or 0


def _default_files(rows: int) -> int:
    return max(1, -(-rows // FILE_ROWS))


def _file_count(output_files: int | None, out_files_per_proc: int | None, executor: Executor) -> int | None:
    if output_files is not None and out_files_per_proc is not None:
        raise ConfigError("both output_files and out_files_per_proc are set", hint="leave one of them out")
    for name, value in (("output_files", output_files), ("out_files_per_proc", out_files_per_proc)):
        if value is not None and value < 1:
            raise ConfigError(f"{name}={value}", hint="at least 1, or None")
    return output_files if out_files_per_proc is None else out_files_per_proc * executor.workers


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
