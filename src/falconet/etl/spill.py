"""States of a pass over the data, merged in memory while they fit; then cut by the hash of their keys, on disk.

A statistic whose states can be cut says by which columns (`StatOp.slice_by`). Each part's state is then cut into slices
that go to files; the slices are merged one by one, and put together in the order of their keys. The result is the same
frame, bit for bit: equal keys are in one slice, and `merge` does not mind in which order it is given states.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TypeAlias

import polars as pl
import pyarrow as pa

from falconet.compute.exchange import PLAIN, Slice, Source, store_slices, writing
from falconet.compute.executor import Executor, reach
from falconet.etl.op import Group, StatOp
from falconet.progress import note

ROW_BYTES = 64  # of states, for each row of data: where the budget has that much there is no need to look
BATCH = 32  # parts that are merged before one looks how large their states have become
SHARE = 8  # of the budget, for what is merged at once: Polars takes that many times its size to do it
SLICES = 4096  # and there are at the most so many
SAMPLE = 256  # values of a merged slice that say where to cut it again
_SLICE = "__slice__"
States: TypeAlias = list[pl.DataFrame]
"""The states of all statistics of a pass, in one order everywhere."""


def learn(
    one: Callable[[Source], States],
    of: Sequence[tuple[StatOp, Group]],
    parts: Sequence[Source],
    executor: Executor,
    folder: Path,
) -> States:
    """The merged states of all parts. `of` says whose they are; `folder` is free for files, and may go afterwards.

    Where merged states outgrow their share of the executor's budget, those that can be cut go through files. Of these
    the result is a file as well, seen as memory, when it is larger than half of the budget.
    """
    merge = _Merge(tuple(op for op, _ in of))
    by = {i: columns for i, (op, group) in enumerate(of) if (columns := op.slice_by(group))}
    rows = sum(part.rows for part in parts)
    if not by:
        return executor.map_reduce(one, parts, merge)
    batch = executor.workers if rows * ROW_BYTES * len(by) > executor.budget else max(BATCH, executor.workers)
    states = executor.map_reduce(one, parts[:batch], merge)
    taken = min(batch, len(parts))
    while taken < len(parts):
        size = sum(int(states[i].estimated_size()) for i in by)
        if size > executor.budget // SHARE:
            seen = max(1, sum(part.rows for part in parts[:taken]))
            return _spilled(one, of, by, parts[taken:], executor, folder, states, size * rows // seen)
        batch = max(executor.workers, executor.budget // SHARE // (size // taken + 1))
        states = merge([states, executor.map_reduce(one, parts[taken : taken + batch], merge)])
        taken += batch
    return states


def _spilled(
    one: Callable[[Source], States],
    of: Sequence[tuple[StatOp, Group]],
    by: Mapping[int, tuple[str, ...]],
    parts: Sequence[Source],
    executor: Executor,
    folder: Path,
    states: States,
    expected: int,
) -> States:
    """The merged states, given those of the parts that were read, and the bytes that they may reach in the end."""
    count = _slices(expected, executor.budget)
    note(f"fitting: statistics of about {expected / 1e6:,.0f} MB go through files, in {count} slices")
    folder.mkdir(parents=True, exist_ok=True)
    cut = _Cut(one, by, count, str(folder))
    held = [cut.of_states(states)]  # from before the cut
    states.clear()  # they are in files now
    merge = _MergeHeld(_Merge(tuple(op for op, _ in of)))
    whole = merge([*held, executor.map_reduce(cut, parts, merge)])
    work = [
        _ToMerge(of[i][0], columns[0], tuple(piece[j] for piece in whole.cut[i]))
        for i, columns in by.items()
        for j in range(count)
    ]
    merged = executor.map(_MergeSlice(str(folder)), work)
    for path in {piece.path for i in by for pieces in whole.cut[i] for piece in pieces}:
        Path(path).unlink()
    found = dict(enumerate(whole.states))
    for place, i in enumerate(by):
        found[i] = _together(merged[place * count : (place + 1) * count], by[i], executor.budget // 2, folder)
    return [found[i] for i in range(len(of))]


def _slices(size: int, budget: int) -> int:
    """How many slices so many bytes are cut into."""
    return min(SLICES, max(2, -(-size * SHARE // budget)))


@dataclass(frozen=True)
class _Merge:
    """Lists of states to one list."""

    ops: tuple[StatOp, ...]

    def __call__(self, many: Sequence[States]) -> States:
        return [op.merge(states) for op, *states in zip(self.ops, *many, strict=True)]


@dataclass(frozen=True)
class _Held:
    """States of parts: those that are not cut merged (of the others no rows), and the files of the others."""

    states: States
    cut: Mapping[int, tuple[tuple[Slice, ...], ...]]


@dataclass(frozen=True)
class _MergeHeld:
    merge: _Merge

    def __call__(self, many: Sequence[_Held]) -> _Held:
        cut = {i: tuple(pieces for held in many for pieces in held.cut[i]) for i in many[0].cut}
        return _Held(self.merge([held.states for held in many]), cut)


@dataclass(frozen=True)
class _Cut:
    """The states of a part, those that can be cut as slices in a file each."""

    one: Callable[[Source], States]
    by: Mapping[int, tuple[str, ...]]
    count: int
    folder: str

    def __call__(self, part: Source) -> _Held:
        return self.of_states(self.one(part))

    def of_states(self, states: States) -> _Held:
        files = {i: (self._sliced(states[i], by),) for i, by in self.by.items()}
        return _Held([state.clear() if i in files else state for i, state in enumerate(states)], files)

    def _sliced(self, state: pl.DataFrame, by: tuple[str, ...]) -> tuple[Slice, ...]:
        # Polars' hash is the same for equal values, -0.0 and 0.0 included; of another version it need not be.
        number = (pl.struct(by).hash(0) % self.count).cast(pl.UInt16).alias(_SLICE)
        ordered = state.with_columns(number).sort(_SLICE, maintain_order=True)
        found = dict(ordered[_SLICE].value_counts().iter_rows())
        edges = tuple(accumulate((found.get(j, 0) for j in range(self.count)), initial=0))
        return store_slices(ordered.drop(_SLICE), edges, reach(self.folder) / f"{uuid.uuid4().hex}.arrows")


@dataclass(frozen=True)
class _ToMerge:
    """One slice of a statistic, what all parts gave to it, and the first column by which it was cut."""

    op: StatOp
    first: str
    pieces: tuple[Slice, ...]


@dataclass(frozen=True)
class _Merged:
    """A slice that was merged, in a file of its own, and some values of the first column by which it was cut."""

    piece: Slice
    sample: pl.Series


@dataclass(frozen=True)
class _MergeSlice:
    folder: str

    def __call__(self, item: _ToMerge) -> _Merged:
        path = reach(self.folder) / f"{uuid.uuid4().hex}.arrow"
        filled = [piece for piece in item.pieces if piece.rows] or item.pieces[:1]
        merged = item.op.merge([piece.read() for piece in filled])
        (piece,) = store_slices(merged, (0, merged.height), path)
        return _Merged(piece, merged[item.first].gather_every(max(1, merged.height // SAMPLE)))


def _together(slices: Sequence[_Merged], by: Sequence[str], budget: int, folder: Path) -> pl.DataFrame:
    """Merged slices as one frame, sorted by some columns. What is larger than the budget is a file seen as memory."""
    size = sum(merged.piece.size for merged in slices)
    if size <= budget:
        whole = pl.concat([merged.piece.read() for merged in slices]).sort(by, maintain_order=True)
    else:
        whole = _sorted_on_disk(slices, by, _slices(size, budget), folder)
    for merged in slices:
        Path(merged.piece.path).unlink()
    return whole


def _sorted_on_disk(slices: Sequence[_Merged], by: Sequence[str], ranges: int, folder: Path) -> pl.DataFrame:
    """The slices cut again, in ranges of the first column, and each range sorted and appended to a file."""
    sample = pl.concat([merged.sample for merged in slices]).sort()
    borders = sample.gather([len(sample) * i // ranges for i in range(1, ranges)])
    cut = [_cut_at(merged.piece, by, borders, folder) for merged in slices]
    path = folder / f"{uuid.uuid4().hex}.arrow"
    with writing(path), pa.OSFile(str(path), "wb") as sink, ExitStack() as stack:
        writer = None
        for pieces in zip(*cut, strict=True):
            table = (
                pl.concat([piece.read() for piece in pieces]).sort(by, maintain_order=True).to_arrow(compat_level=PLAIN)
            )
            writer = writer or stack.enter_context(pa.ipc.new_stream(sink, table.schema))
            writer.write_table(table)
    for pieces in cut:
        Path(pieces[0].path).unlink()
    with pa.memory_map(str(path)) as mapped:
        whole = pl.from_arrow(pa.ipc.open_stream(mapped).read_all(), rechunk=False)
    if os.name != "nt":  # a file that is mapped stays until it is not; Windows keeps its name as well
        path.unlink()
    assert isinstance(whole, pl.DataFrame)
    return whole


def _cut_at(piece: Slice, by: Sequence[str], borders: pl.Series, folder: Path) -> tuple[Slice, ...]:
    state = piece.read().sort(by, maintain_order=True)
    edges = [0, *state[by[0]].search_sorted(borders).to_list(), state.height]
    return store_slices(state, edges, folder / f"{uuid.uuid4().hex}.arrows")
