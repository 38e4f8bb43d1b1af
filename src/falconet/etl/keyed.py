"""Keyed operators over parts: an exchange brings the rows of a key together, the new columns go back in file order."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from falconet.compute.exchange import exchange
from falconet.compute.executor import ROW, Executor, Part
from falconet.etl.op import FrameOp, KeyedOp
from falconet.etl.sources import private_folder

BUCKET_ROWS = 1 << 22  # rows of a bucket, sorted in memory at a time


@dataclass(frozen=True, eq=False)
class Made(FrameOp):
    """What a keyed operator made of a data set: `columns` in file order, put beside rows by their number."""

    op: KeyedOp
    columns: pl.DataFrame

    needs = frozenset({"row"})

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        return self.op.sources(columns)

    def untouched(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        return self.op.untouched(columns)

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        return frame.join(self.columns.lazy(), on=ROW, how="left", maintain_order="left")


def make(
    op: KeyedOp,
    names: tuple[str, ...],
    parts: Sequence[Part],
    before: Callable[[pl.LazyFrame], pl.LazyFrame],
    executor: Executor,
) -> pl.DataFrame:
    """The columns that `op` makes of `names`, with `__row__`, in file order. `before` gives `names` of a part.

    They are gathered here: a keyed operator costs the memory of the columns it makes, not of the data.
    """
    rows = sum(part.rows for part in parts)
    buckets = max(1, -(-rows // BUCKET_ROWS)) if op.key else 1
    folder = private_folder()
    try:
        found = exchange(
            executor,
            parts,
            apply=before,
            bucket=_bucket(op.key, buckets),
            buckets=buckets,
            finish=_Finish(op, names),
            folder=folder,
        )
        return pl.concat([part.scan() for part in found]).sort(ROW).collect()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _bucket(key: tuple[str, ...], buckets: int) -> pl.Expr:
    """Equal keys, equal bucket. Which one does not matter for any result, so Polars' own hash will do within a run."""
    if buckets == 1:
        return pl.lit(0, dtype=pl.UInt32)
    return pl.struct(key).hash(0) % buckets


@dataclass(frozen=True)
class _Finish:
    """A bucket, sorted for the operator, to the columns it makes."""

    op: KeyedOp
    names: tuple[str, ...]

    def __call__(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        untouched = self.op.untouched(self.names)
        made = [name for name in self.op.sources(self.names) if name not in untouched]
        return self.op.apply(frame.sort(*self.op.order, ROW), self.names).select(*made, ROW)
