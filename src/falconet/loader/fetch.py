"""Three ways to fetch the rows of an epoch, window by window: all give the same rows in the same order."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from falconet.batch import Feature
from falconet.columns import Table
from falconet.loader.plan import EpochPlan, Span, Window, Words
from falconet.loader.source import Source

T = TypeVar("T")


class Piece(NamedTuple):
    """A window, the table that has its rows, and the table's row (int64) at each position of the window."""

    window: Window
    table: Table
    order: Tensor
    room: Words | None = None  # the memory of `order`, where it may be used again


class Fetch(Protocol):
    """A way to get at a window's rows."""

    def piece(self, plan: EpochPlan, window: Window) -> Piece: ...

    def done(self, piece: Piece) -> None:
        """Nothing of a piece is needed any more."""


class Streamed:
    """Windows read from the files, each when it is asked for, into the memory of windows that are done."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._free: list[tuple[Table, Words]] = []

    def piece(self, plan: EpochPlan, window: Window) -> Piece:
        table, words = self._free.pop() if self._free else self._room(plan)
        table.seek(0, {})
        for group in window.groups:
            self._source.fill(table, group)
        return Piece(window, table, torch.from_numpy(plan.order(window, words)), words)

    def done(self, piece: Piece) -> None:
        assert piece.room is not None
        self._free.append((piece.table, piece.room))

    def _room(self, plan: EpochPlan) -> tuple[Table, Words]:
        """For any window."""
        windows = [window for lane in plan.windows for window in lane]
        values: Counter[str] = Counter()
        for window in windows:
            values |= self._source.room(window.groups)  # the larger of both
        rows = max(window.rows for window in windows)
        return Table(self._source.fields, rows, values), np.empty(rows, np.uint64)


class Kept:
    """Row groups read when first asked for and then kept in one table, in memory or on a device."""

    def __init__(self, source: Source, groups: Sequence[int], device: torch.device) -> None:
        self._source, self._device = source, device
        self._starts: dict[int, int] = {}  # the table's row at which a row group begins
        self._values: dict[int, dict[str, int]] = {}  # and the places of its ragged columns' values
        row, values = 0, source.room(())
        for group in groups:
            self._starts[group], self._values[group] = row, dict(values)
            row += source.groups[group].rows + 1  # each with a place of its own for the end of its last list
            values += source.room([group])
        self._table = Table(source.fields, row, values, device)
        self._there: set[int] = set()
        self._filling = Lock()  # several iterations may be under way

    def piece(self, plan: EpochPlan, window: Window) -> Piece:
        with self._filling:
            for group in window.groups:
                if group not in self._there:
                    self._read(group)
                    self._there.add(group)
        rows = [np.arange(s, s + plan.group_rows[g]) for g in window.groups for s in (self._starts[g],)]
        order = torch.from_numpy(np.concatenate(rows)[plan.order(window)])
        return Piece(window, self._table, order.to(self._device))

    def done(self, piece: Piece) -> None:
        """Everything is kept."""

    def _read(self, group: int) -> None:
        self._table.seek(self._starts[group], self._values[group])
        if self._device.type == "cpu":
            self._source.fill(self._table, group)
        else:
            self._table.paste(self._source.read([group]))


def pieces(fetch: Fetch, plan: EpochPlan, spans: Sequence[Span]) -> Generator[Piece]:
    """The windows of the spans' lanes, from the spans' starts on, about in the order in which steps need them."""
    windows = [w for lane, start, _ in spans for w in plan.windows[lane][plan.window_at(lane, start) :]]
    for window in sorted(windows, key=lambda w: (w.first / plan.lane_rows[w.lane], w.lane)):
        yield fetch.piece(plan, window)


class Cursor:
    """Takes rows, forward only within each lane, out of windows that come in some order.

    `done` is told of windows that lie behind.
    """

    def __init__(self, found: Iterator[Piece], done: Callable[[Piece], None]) -> None:
        self._found, self._done = found, done
        self._held: defaultdict[int, deque[Piece]] = defaultdict(deque)

    def take(self, span: Span) -> list[dict[str, Feature]]:
        """The rows of a span, in one table or several; no rows in one."""
        taken = []
        while True:
            window, table, order, _ = self._piece(span.lane)
            end = window.first + window.rows
            if span.start < end or span.start == span.stop:
                taken.append(table.take(order[max(span.start - window.first, 0) : max(span.stop - window.first, 0)]))
            if span.stop <= end:
                return taken
            self._done(self._held[span.lane].popleft())

    def _piece(self, lane: int) -> Piece:
        while not self._held[lane]:
            piece = next(self._found)
            if piece.order.is_cuda:  # made on the stream of another thread, read on this one's
                piece.order.record_stream(torch.cuda.current_stream(piece.order.device))
            self._held[piece.window.lane].append(piece)
        return self._held[lane][0]


_END = object()


def ahead(items: Generator[T], count: int) -> Generator[T]:
    """The items of a generator, made by one thread that keeps the next `count` of them ready.

    What the generator raises is raised here. The thread is joined and the generator closed when the items end, when one
    raises, and when this generator is closed or dropped.
    """
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="falconet-loader", initializer=_work_alone) as thread:
            waiting: deque[Future[T | object]] = deque(thread.submit(next, items, _END) for _ in range(count))
            try:
                while (item := waiting.popleft().result()) is not _END:
                    waiting.append(thread.submit(next, items, _END))
                    yield item  # type: ignore[misc]
            finally:
                for future in waiting:
                    future.cancel()
    finally:
        items.close()


def _work_alone() -> None:
    """Have torch use no other threads for what this one does.

    OpenMP would start a team for it, and as soon as the teams of a process have more threads than there are cores,
    none waits for its next task awake: each operation of the training loop would first have to wake its threads, which
    makes a step up to twice as long.
    """
    others = torch.get_num_threads()
    torch.set_num_threads(1)
    with ThreadPoolExecutor(1) as passing:  # the call also says what threads begin with that come later
        passing.submit(torch.set_num_threads, others).result()
