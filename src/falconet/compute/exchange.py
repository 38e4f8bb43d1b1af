"""Bringing rows together that lie in different parts: two maps with files between them, one bucket in memory at a time.

buckets = spread(executor, parts, apply=f, bucket=expr, buckets=n, folder=folder)    each part → one file, by bucket
files   = exchange(..., finish=g)                                                    and each bucket through `g`
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TypeAlias

import polars as pl

from falconet.compute.engine import collect
from falconet.compute.executor import ROW, Executor, Part, reach, reading
from falconet.errors import DataError

BUCKET = "__bucket__"
Transform: TypeAlias = Callable[[pl.LazyFrame], pl.LazyFrame]
"""A part's rows (with `__row__`) to other rows. It may run twice, and anywhere."""


@dataclass(frozen=True)
class Bucket:
    """The rows of one bucket, as slices of files in the order of the parts; `first_row` counts over the buckets.

    It stands wherever a Part does.
    """

    slices: tuple[Part, ...]
    first_row: int

    @property
    def path(self) -> str:
        """The file of its first rows, for messages."""
        return self.slices[0].path

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.slices)

    def scan(self, *, row_numbers: bool = False) -> pl.LazyFrame:
        """The rows, lazily, with the numbers in the data set that were stored with them if `row_numbers`."""
        frame = pl.concat([part.scan() for part in self.slices])
        return frame if row_numbers else frame.drop(ROW)


Source: TypeAlias = Part | Bucket


def spread(
    executor: Executor,
    parts: Sequence[Source],
    *,
    apply: Transform,
    bucket: pl.Expr | None = None,
    buckets: int = 1,
    folder: Path,
    done: Callable[[int], None] | None = None,
) -> tuple[Bucket, ...]:
    """`apply` to each part, and its rows sorted by `bucket` (whole numbers below `buckets`) into one file of `folder`.

    Within a bucket rows are in the order of the parts, and within these as `apply` left them. The files also hold
    `__row__`: `apply` may drop it if it keeps all rows in place. Without `bucket` there is one. `done` hears of rows
    read. Raises DataError when rows are lost whose numbers are needed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    task = _Spread(apply, bucket, buckets, str(folder))
    tell = None if done is None else _rows_to(done)
    pieces = executor.map(task, list(enumerate(parts)), done=tell)
    found: list[Bucket] = []
    first = 0
    for b in range(buckets):
        slices = [Part(path, offsets[b], offsets[b + 1] - offsets[b], 0) for path, offsets in pieces]
        filled = [part for part in slices if part.rows]
        found.append(Bucket(tuple(filled or slices[:1]), first))
        first += found[-1].rows
    return tuple(found)


def exchange(
    executor: Executor,
    parts: Sequence[Source],
    *,
    apply: Transform,
    bucket: pl.Expr,
    buckets: int,
    finish: Transform,
    folder: Path,
    done: Callable[[int], None] | None = None,
) -> tuple[Part, ...]:
    """`spread`, then `finish` on each whole bucket: one file, and one Part, per bucket.

    `finish` sees `__row__` and keeps it for what comes after. It sorts: the order within a bucket is that of the parts.
    """
    spread_to = folder / "spread"
    found = spread(executor, parts, apply=apply, bucket=bucket, buckets=buckets, folder=spread_to, done=done)
    written = executor.map(_Finish(finish, str(folder)), list(enumerate(found)))
    result, first = [], 0
    for path, rows in written:
        result.append(Part(path, 0, rows, first))
        first += rows
    for piece in spread_to.iterdir():
        piece.unlink()
    return tuple(result)


def _rows_to(done: Callable[[int], None]) -> Callable[[tuple[int, Source]], None]:
    return lambda item: done(item[1].rows)


@dataclass(frozen=True)
class _Spread:
    """One part to one file sorted by bucket: its path, and the offset of each bucket in it."""

    apply: Transform
    bucket: pl.Expr | None
    buckets: int
    folder: str

    def __call__(self, item: tuple[int, Source]) -> tuple[str, tuple[int, ...]]:
        i, part = item
        folder = reach(self.folder)
        frame = self.apply(part.scan(row_numbers=True))
        numbered = ROW in frame.collect_schema()
        if not numbered:
            frame = frame.with_row_index(ROW, offset=part.first_row).with_columns(pl.col(ROW).cast(pl.UInt64))
        if self.bucket is not None:
            frame = frame.with_columns(self.bucket.cast(pl.UInt32).alias(BUCKET)).sort(BUCKET, maintain_order=True)
        with reading(f"`{part.path}`"):
            made = collect(frame)
        if not numbered and self.bucket is not None:
            _check_rows(made, part)
        offsets: tuple[int, ...] = (0, made.height)
        if self.bucket is not None:
            counts = made[BUCKET].value_counts()
            count = dict(zip(counts[BUCKET], counts["count"], strict=True))
            offsets = tuple(accumulate((count.get(b, 0) for b in range(self.buckets)), initial=0))
            if offsets[-1] != made.height:
                raise DataError(f"a bucket is null or not below {self.buckets}, by the expression {self.bucket}")
            made = made.drop(BUCKET)
        group = max(1024, min(131_072, made.height // self.buckets))
        return _store(made, folder / f"part-{i:06d}.parquet", group), offsets


def _check_rows(made: pl.DataFrame, part: Source) -> None:
    """Rows without numbers can only be numbered where all of a part's are still there."""
    if made.height != part.rows or ROW in part.scan().collect_schema():
        raise DataError(
            f"a transform gave {made.height} rows without numbers for the {part.rows} of a part",
            hint=f"one that drops or moves rows keeps the column `{ROW}`",
        )


@dataclass(frozen=True)
class _Finish:
    """One bucket through a transform into one file: its path and rows."""

    finish: Transform
    folder: str

    def __call__(self, item: tuple[int, Bucket]) -> tuple[str, int]:
        i, bucket = item
        folder = reach(self.folder)
        with reading(f"`{bucket.path}`"):
            frame = collect(self.finish(bucket.scan(row_numbers=True)))
        return _store(frame, folder / f"bucket-{i:06d}.parquet", 131_072), frame.height


def _store(frame: pl.DataFrame, path: Path, group: int) -> str:
    """Written aside and renamed: the function may run a second time, or twice at once."""
    aside = path.with_name(f".tmp-{path.name}-{uuid.uuid4().hex}")
    frame.write_parquet(aside, compression="lz4", row_group_size=group, statistics=False)
    aside.replace(path)
    return str(path)
