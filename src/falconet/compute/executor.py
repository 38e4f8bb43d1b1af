"""Where work runs: the protocol of executors, and the small value that travels to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import polars as pl

R = TypeVar("R")


@dataclass(frozen=True)
class Part:
    """`rows` rows of one Parquet file from row `offset` on; `first_row` is the number of the first in the data set.

    Parts travel, rows never do.
    """

    path: str
    offset: int
    rows: int
    first_row: int
    columns: tuple[str, ...] | None = None

    def scan(self, *, row_numbers: bool = False) -> pl.LazyFrame:
        """The rows, lazily; with `row_numbers` also their UInt64 numbers in the data set as `__row__`."""
        frame = pl.scan_parquet(self.path, glob=False)
        if self.columns is not None:
            frame = frame.select(self.columns)
        frame = frame.slice(self.offset, self.rows)
        if row_numbers:
            frame = frame.with_row_index("__row__", offset=self.first_row).with_columns(
                pl.col("__row__").cast(pl.UInt64)
            )
        return frame


class Executor(Protocol):
    """Runs pure functions over parts, here or elsewhere. A function may run twice (a worker died)."""

    @property
    def workers(self) -> int:
        """How many functions run at once."""

    def map(self, fn: Callable[[Part], R], parts: Sequence[Part]) -> list[R]:
        """`fn` of every part, in the order of the parts."""

    def map_reduce(self, fn: Callable[[Part], R], parts: Sequence[Part], merge: Callable[[Sequence[R]], R]) -> R:
        """The merged states of all parts. `merge` is associative and commutative and runs where the states are."""


def tree_merge(states: Sequence[R], merge: Callable[[Sequence[R]], R], width: int = 8) -> R:
    """Merge in groups of `width`, level by level."""
    while len(states) > 1:
        states = [merge(states[i : i + width]) for i in range(0, len(states), width)]
    return merge(states)
