"""Where work runs: the protocol of executors, and the small value that travels to them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from socket import gethostname
from typing import Protocol, TypeVar

import polars as pl

from falconet.errors import DataError, DistributedError

T = TypeVar("T")
R = TypeVar("R")
ROW = "__row__"
"""The column of row numbers (UInt64, in the whole data set). No data set has a column of its own by that name."""
_SHARED = "workers on other machines need the data, outputs and TMPDIR on a disk that all share, under the same path"
_STEP = re.compile(r"__\d+__/")  # how a plan marks the columns of its steps


@dataclass(frozen=True)
class Part:
    """`rows` rows of one Parquet file from row `offset` on; `first_row` is the number of the first in the data set.

    Parts travel, rows never do. `casts` widens columns that other files of the data set have in a wider type.
    `constants` are columns the file lacks and its folders give (name, value, type). A path may be an address in an
    object store; `storage_options` are what Polars needs to read it, and are not in the repr.
    """

    path: str
    offset: int
    rows: int
    first_row: int
    columns: tuple[str, ...] | None = None
    casts: tuple[tuple[str, pl.DataType], ...] = ()
    constants: tuple[tuple[str, object, pl.DataType], ...] = ()
    storage_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def scan(self, *, row_numbers: bool = False) -> pl.LazyFrame:
        """The rows, lazily; with `row_numbers` also their UInt64 numbers in the data set as `__row__`.

        A file that stores `__row__` itself (the buckets of an exchange do) keeps its own numbers.
        """
        options = dict(self.storage_options) or None
        frame = pl.scan_parquet(self.path, glob=False, hive_partitioning=False, storage_options=options)
        if self.constants:
            frame = frame.with_columns(pl.lit(value, dtype).alias(name) for name, value, dtype in self.constants)
        if self.columns is not None:
            frame = frame.select(self.columns)
        frame = frame.slice(self.offset, self.rows)
        if self.casts:
            frame = frame.with_columns(pl.col(name).cast(dtype) for name, dtype in self.casts)
        if row_numbers and ROW not in (self.columns or frame.collect_schema()):
            frame = frame.with_row_index(ROW, offset=self.first_row).with_columns(pl.col(ROW).cast(pl.UInt64))
        return frame


@contextmanager
def reading(source: str) -> Iterator[None]:
    """Raise what Polars finds wrong with the rows of a source as a DataError that names it."""
    try:
        yield
    except pl.exceptions.PolarsError as error:
        first = str(error).partition("\n")[0]
        raise DataError(f"{source}: {_STEP.sub('', first)}") from error
    except OSError as error:
        if "://" in source:  # what an object store says has XML in it
            raise DataError(f"{source} cannot be read: {str(error).partition(': <')[0].splitlines()[0]}") from error
        if isinstance(error, FileNotFoundError):
            raise DistributedError(f"{source} is not seen on {gethostname()}", hint=_SHARED) from error
        raise DataError(f"{source} cannot be read: {error}") from error


def reach(folder: str | Path) -> Path:
    """The folder, where this process sees it. Raises DistributedError on a machine that does not share it."""
    found = Path(folder)
    if not found.is_dir():
        raise DistributedError(f"`{found}` is not seen on {gethostname()}", hint=_SHARED)
    return found


class Executor(Protocol):
    """Runs pure functions over parts (or other small values), here or elsewhere.

    A function may run twice (a worker died), so one that writes does it aside and renames. What a function holds, such
    as the table of a join, travels once to each worker, not once for each part.
    """

    @property
    def workers(self) -> int:
        """How many functions run at once."""

    @property
    def budget(self) -> int:
        """Bytes that the states of a fit may take in one process; larger ones are cut and go through files."""

    def map(self, fn: Callable[[T], R], parts: Sequence[T], *, done: Callable[[T], None] | None = None) -> list[R]:
        """`fn` of every part, in the order of the parts. `done` is called here for each one finished, in any order."""

    def map_reduce(self, fn: Callable[[T], R], parts: Sequence[T], merge: Callable[[Sequence[R]], R]) -> R:
        """The merged states of all parts. `merge` is associative and commutative and runs where the states are."""


def tree_merge(states: Sequence[R], merge: Callable[[Sequence[R]], R], width: int = 8) -> R:
    """Merge in groups of `width`, level by level."""
    while len(states) > width:
        states = [merge(states[i : i + width]) for i in range(0, len(states), width)]
    return merge(states)
