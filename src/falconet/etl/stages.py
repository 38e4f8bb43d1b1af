"""Keyed operators over parts: where one stands in a plan, the rows go through files, and the plan goes on from there.

A stage is the data as it stands between two keyed operators. The first is the data itself; each next one is made by an
exchange that brings the rows of a key together, and a second one that puts them back in their order. Memory holds one
bucket at a time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from falconet.compute.engine import collect
from falconet.compute.exchange import Source, Transform, exchange
from falconet.compute.executor import ROW, Executor, Part, reading
from falconet.etl.op import KeyedOp
from falconet.etl.plan import Bound, Described, Given, Plan, Ref, Step, apply, asks_row, label, run
from falconet.etl.table import plain
from falconet.io.private import private_folder
from falconet.progress import progress
from falconet.schema import Column

BUCKET_ROWS = 1 << 20  # rows that are sorted in memory at a time, if no key has more


@dataclass(frozen=True)
class Stage:
    """Rows in parts, and which columns of a plan they have."""

    parts: tuple[Source, ...]
    given: Given

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    def plan(self, plan: Plan, refs: tuple[Ref, ...]) -> Plan:
        """What is left of a plan to make some columns of what is here."""
        return plan.part_of(refs, self._made)

    def rest(self, plan: Plan) -> Plan:
        """What is left of a plan to make its outputs."""
        return replace(self.plan(plan, tuple(ref for _, ref in plan.outputs)), outputs=plan.outputs)

    @property
    def _made(self) -> tuple[Ref, ...]:
        return tuple(self.given.columns) if self.given.labelled else ()


@dataclass(frozen=True)
class TransformPart:
    """A part's rows (with `__row__`) to the outputs of a plan (with `__row__`), for what a stage was `given`."""

    plan: Plan
    bound: Mapping[int, Bound]
    given: Given

    def __call__(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        return run(self.plan, self.bound, plain(frame), self.given).select(self.plan.outputs)

    @property
    def reads(self) -> tuple[str, ...] | None:
        """The columns it needs, if it makes each row of that row alone; None where it drops or adds rows."""
        if any(step.op.rows != "same" for step in self.plan.steps):
            return None
        return tuple(self.given.name(ref) for ref in self.plan.given)

    @property
    def asks_row(self) -> bool:
        """Whether its operators need row numbers."""
        return asks_row(op for step in self.plan.steps for _, op in self.bound[step.id])


@contextmanager
def stage_folder() -> Iterator[Path]:
    """Where the files of the stages are, until what needs them is done."""
    folder = private_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def pass_by(
    plan: Plan,
    step: Step,
    needed: Sequence[Ref],
    bound: Mapping[int, Bound],
    stage: Stage,
    executor: Executor,
    folder: Path,
) -> Stage:
    """The stage after a keyed step, with the columns that are `needed` after it and were there or are made by it."""
    op = step.op
    assert isinstance(op, KeyedOp)
    made = {(step.id, name) for name in step.makes}
    carried = () if op.rows == "other" else tuple(ref for ref in needed if ref not in made)
    before = stage.plan(plan, tuple(dict.fromkeys((*carried, *step.reads))))
    rehearsed = run(before, bound, stage.given.empty.with_columns(_NO_ROW), stage.given)
    after = apply(rehearsed, step, bound[step.id], set(needed))
    keys = [label(next(ref for ref in step.reads if ref[1] == name)) for name in op.key]
    with progress(f"grouping for {type(op).__name__}", total=stage.rows) as task:
        parts = bring_together(
            stage.parts,
            executor,
            before=TransformPart(before, bound, stage.given),
            keys=keys,
            finish=_Apply(step, bound[step.id], rehearsed.columns, frozenset(needed)),
            folder=folder / str(step.id),
            done=task.advance,
        )
    return Stage(parts, Given({ref: column for ref, column in after.columns.items() if ref in needed}, labelled=True))


def bring_together(
    parts: Sequence[Source],
    executor: Executor,
    *,
    before: Transform,
    keys: Sequence[str],
    finish: Transform,
    folder: Path,
    done: Callable[[int], None] | None = None,
) -> tuple[Part, ...]:
    """`before` on every part, then `finish` on frames that have all rows of their keys; the rows in order of `__row__`.

    Both see `__row__` and keep it.
    """
    rows = sum(part.rows for part in parts)
    buckets = max(1, -(-rows // BUCKET_ROWS)) if keys else 1
    # Which bucket a key goes to does not matter for any result, so Polars' own hash will do within a run.
    bucket = pl.struct(keys).hash(0) % buckets if buckets > 1 else pl.lit(0, dtype=pl.UInt32)
    found = exchange(
        executor, parts, apply=before, bucket=bucket, buckets=buckets, finish=finish, folder=folder / "keys", done=done
    )
    if buckets == 1:
        return found
    last = max(executor.map(_last_row, found))
    width = max(1, -(-(last + 1) // buckets))
    ordered = exchange(
        executor,
        found,
        apply=_same,
        bucket=pl.col(ROW) // width,
        buckets=buckets,
        finish=_in_order,
        folder=folder / "rows",
    )
    for part in found:
        Path(part.path).unlink()
    return ordered


_NO_ROW = pl.lit(0, dtype=pl.UInt64).alias(ROW)


def _same(frame: pl.LazyFrame) -> pl.LazyFrame:
    return frame


def _in_order(frame: pl.LazyFrame) -> pl.LazyFrame:
    return frame.sort(ROW)


def _last_row(part: Part) -> int:
    with reading(f"`{part.path}`"):
        last = collect(part.scan().select(pl.col(ROW).max())).item()
    return 0 if last is None else int(last)


@dataclass(frozen=True)
class _Apply:
    """All rows of some keys through a keyed step."""

    step: Step
    bound: Bound
    columns: Mapping[Ref, Column]
    needed: frozenset[Ref]

    def __call__(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        return apply(Described(frame, self.columns, has_row=True), self.step, self.bound, set(self.needed)).frame
