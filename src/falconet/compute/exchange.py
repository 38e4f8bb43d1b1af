"""Bringing rows together that lie in different parts: two maps with files between them, one bucket in memory at a time.

buckets = spread(executor, parts, apply=f, bucket=expr, buckets=n, folder=folder)    each part → one file, by bucket
files   = exchange(..., finish=g)                                                    and each bucket through `g`
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from falconet.compute.engine import collect
from falconet.compute.executor import ROW, Executor, Part, reach, reading
from falconet.errors import DataError

BUCKET = "__bucket__"
PLAIN = pl.CompatLevel.oldest()  # strings with offsets: views bring the strings of all other rows along
Transform: TypeAlias = Callable[[pl.LazyFrame], pl.LazyFrame]
"""A part's rows (with `__row__`) to other rows. It may run twice, and anywhere."""
BucketOf: TypeAlias = pl.Expr | Callable[[pl.DataFrame], NDArray[np.unsignedinteger]]
"""Which bucket each row goes to: an expression, or a function of the rows."""


@dataclass(frozen=True)
class Slice:
    """Rows as an Arrow stream in some bytes of a file: what one part gave to a bucket."""

    path: str
    offset: int
    size: int
    rows: int

    def read(self) -> pl.DataFrame:
        with Path(self.path).open("rb") as file:
            file.seek(self.offset)
            return pl.read_ipc_stream(file.read(self.size))


@dataclass(frozen=True)
class Bucket:
    """The rows of one bucket, as slices of files in the order of the parts; `first_row` counts over the buckets.

    It stands wherever a Part does.
    """

    slices: tuple[Slice, ...]
    first_row: int

    @property
    def path(self) -> str:
        """The file of its first rows, for messages."""
        return self.slices[0].path

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.slices)

    def scan(self, *, row_numbers: bool = False) -> pl.LazyFrame:
        """The rows, in memory from now on, with the numbers in the data set stored with them if `row_numbers`."""
        with reading(f"`{self.path}`"):
            frame = pl.concat([piece.read() for piece in self.slices]).lazy()
        return frame if row_numbers else frame.drop(ROW)


Source: TypeAlias = Part | Bucket


def spread(
    executor: Executor,
    parts: Sequence[Source],
    *,
    apply: Transform,
    bucket: BucketOf | None = None,
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
        slices = [written[b] for written in pieces]
        filled = [piece for piece in slices if piece.rows]
        found.append(Bucket(tuple(filled or slices[:1]), first))
        first += found[-1].rows
    return tuple(found)


def exchange(
    executor: Executor,
    parts: Sequence[Source],
    *,
    apply: Transform,
    bucket: BucketOf,
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
    """One part to one file sorted by bucket: a slice of it for each bucket."""

    apply: Transform
    bucket: BucketOf | None
    buckets: int
    folder: str

    def __call__(self, item: tuple[int, Source]) -> tuple[Slice, ...]:
        i, part = item
        folder = reach(self.folder)
        frame = self.apply(part.scan(row_numbers=True))
        numbered = ROW in frame.collect_schema()
        if not numbered:
            frame = frame.with_row_index(ROW, offset=part.first_row).with_columns(pl.col(ROW).cast(pl.UInt64))
        if isinstance(self.bucket, pl.Expr):
            frame = frame.with_columns(self.bucket.cast(pl.UInt32).alias(BUCKET))
        with reading(f"`{part.path}`"):
            made = collect(frame)
        if not numbered and self.bucket is not None:
            _check_rows(made, part)
        offsets: tuple[int, ...] = (0, made.height)
        if self.bucket is not None:
            made, offsets = self._sorted(made, self.bucket)
        return store_slices(made, offsets, folder / f"part-{i:06d}.arrows")

    def _sorted(self, made: pl.DataFrame, bucket: BucketOf) -> tuple[pl.DataFrame, tuple[int, ...]]:
        """The rows bucket by bucket, and where each bucket begins."""
        if isinstance(bucket, pl.Expr):
            column = made.drop_in_place(BUCKET)
            if column.has_nulls() or (len(column) and int(column.max()) >= self.buckets):  # type: ignore[arg-type]
                raise DataError(f"a bucket is null or not below {self.buckets}, by the expression {bucket}")
            numbers = column.to_numpy()
        else:
            numbers = bucket(made)
        offsets = accumulate(np.bincount(numbers.astype(np.int64), minlength=self.buckets).tolist(), initial=0)
        # Numbers of 16 bits are sorted in one go over the digits.
        narrow = numbers.astype(np.uint16 if self.buckets <= 2**16 else np.uint32)
        order = np.argsort(narrow, kind="stable")
        if made.height < 2**32:
            order = order.astype(np.uint32)
        return made.rechunk()[pl.Series(order)], tuple(offsets)


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
        return _store(frame, folder / f"bucket-{i:06d}.parquet"), frame.height


def _store(frame: pl.DataFrame, path: Path) -> str:
    with _aside(path) as aside:
        frame.write_parquet(aside, compression="lz4", row_group_size=131_072, statistics=False)
    return str(path)


def store_slices(frame: pl.DataFrame, offsets: Sequence[int], path: Path) -> tuple[Slice, ...]:
    """The rows between each two `offsets` as Arrow streams one after the other in a file: each is read alone."""
    slices = []
    with _aside(path) as aside, aside.open("wb") as file:
        for start, stop in pairwise(offsets):
            begin = file.tell()
            frame[start:stop].write_ipc_stream(file, compression="uncompressed", compat_level=PLAIN)
            slices.append(Slice(str(path), begin, file.tell() - begin, stop - start))
    return tuple(slices)


@contextmanager
def _aside(path: Path) -> Iterator[Path]:
    """A name to write under, renamed at the end: the function may run a second time, or twice at once."""
    aside = path.with_name(f".tmp-{path.name}-{uuid.uuid4().hex}")
    with writing(path):
        yield aside
        aside.replace(path)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise what the system has against writing a file as a DataError that names it; also by way of Polars."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"`{path}` cannot be written: {error}", hint="is the disk full, or read-only?") from error
