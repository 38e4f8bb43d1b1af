"""The order of the rows of an epoch, and who takes which: a pure function of row counts and settings.

Memory, mode and the number of processes are not among its inputs, so none of them can change the order.

With several lanes the row groups are dealt to so many lanes, the largest first, each to the lane with the fewest rows
so far; that depends on the data alone. Every lane has an order of its own, and a global batch takes from each lane as
many rows as is its share of the data: row t of a lane of n rows comes at the place (2t + 1) / 2n of the epoch, rows of
one place by lane. A process takes whole lanes, so it reads their row groups alone.

Random numbers are the raw 64-bit words of Philox4x64-10 with key (seed, 0) and counter (0, 0, epoch, stream): stream 0
orders the row groups, stream 1 + w the rows of window w, the windows counted lane after lane. A permutation of n things
sorts the numbers 0 … n−1 by the top 64 − b bits of the first n words, b = bits of n − 1, ties by number. Nothing in
this depends on a version of NumPy.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from falconet.errors import ConfigError

WINDOW = 1_048_576
"""Rows of a window by default."""

_BLOCK = 1 << 16  # numbers that are made at a time, to spare memory
Int64 = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Window:
    """Row groups that are shuffled together: positions `first` … `first + rows − 1` of their lane's order."""

    index: int
    lane: int
    first: int
    rows: int
    groups: tuple[int, ...]


class Span(NamedTuple):
    """Positions `start` … `stop` − 1 of a lane's order; may be none."""

    lane: int
    start: int
    stop: int


@dataclass(frozen=True)
class Share:
    """What one process takes of a global batch: its rows from row `first` on, lane by lane."""

    first: int
    spans: tuple[Span, ...]

    @property
    def rows(self) -> int:
        return sum(span.stop - span.start for span in self.spans)


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """One epoch over row groups of `group_rows` rows, in steps of `batch_size` rows over all processes.

    >>> plan = EpochPlan(group_rows=(10, 3, 7, 1, 6), batch_size=4)
    >>> plan.steps, plan.share(step=6, rank=1, world=2).spans
    (7, (Span(lane=0, start=25, stop=27),))

    Raises ConfigError for settings out of range, and for more lanes than row groups that have rows.
    """

    group_rows: tuple[int, ...]
    batch_size: int
    seed: int = 0
    epoch: int = 0
    window: int = WINDOW
    shuffle: bool = True
    drop_last: bool = False
    lanes: int = 1

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("window", 1), ("lanes", 1), ("seed", 0), ("epoch", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**64:
                raise ConfigError(f"`{name}` must be a whole number of at least {least}, not {value!r}")
        for name in ("shuffle", "drop_last"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"`{name}` must be True or False, not {getattr(self, name)!r}")
        if self.lanes > 1 and self.lanes > (groups := sum(rows > 0 for rows in self.group_rows)):
            raise ConfigError(
                f"`lanes` is {self.lanes}, but the data has {groups} row groups with rows to deal to them",
                hint="fewer lanes, or files with smaller row groups",
            )

    @cached_property
    def rows(self) -> int:
        return sum(self.group_rows)

    @property
    def steps(self) -> int:
        """Steps of the epoch, the same on every rank."""
        whole, rest = divmod(self.rows, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def batch_rows(self, step: int) -> int:
        """Rows of global batch `step`."""
        return min(self.batch_size, self.rows - step * self.batch_size)

    def lanes_of(self, rank: int, world: int) -> range:
        """The lanes that `rank` of `world` takes rows from. Raises ConfigError where lanes cannot be shared evenly."""
        if self.lanes == 1:
            return range(1)
        if self.lanes % world:
            raise ConfigError(
                f"{self.lanes} lanes cannot be shared evenly by {world} processes",
                hint=f"`lanes` must be 1 or a multiple of the number of processes, such as {2 * world}",
            )
        each = self.lanes // world
        return range(rank * each, (rank + 1) * each)

    def share(self, step: int, rank: int, world: int) -> Share:
        """What `rank` of `world` takes in a step: a part of the only lane, or all of its own lanes; may be no rows."""
        first, n = step * self.batch_size, self.batch_rows(step)
        own = self.lanes_of(rank, world)
        if self.lanes == 1:
            low, high = rank * n // world, (rank + 1) * n // world
            return Share(low, (Span(0, first + low, first + high),))
        spans = [
            Span(lane, *ends) for lane, ends in enumerate(zip(self._taken(first), self._taken(first + n), strict=True))
        ]
        before = sum(span.stop - span.start for span in spans[: own.start])
        return Share(before, tuple(spans[own.start : own.stop]))

    def _taken(self, total: int) -> list[int]:
        """How many of the first `total` rows of the epoch are those of each lane."""
        rows = self.lane_rows
        # Up to the place (total − lanes / 2) / rows there are no more than `total` rows; then one after the other.
        taken = [max(0, (n * (2 * total - self.lanes) + self.rows) // (2 * self.rows)) for n in rows]
        following = [(Fraction(2 * t + 1, 2 * n), lane) for lane, (t, n) in enumerate(zip(taken, rows, strict=True))]
        heapq.heapify(following)
        for _ in range(total - sum(taken)):
            lane = following[0][1]
            taken[lane] += 1
            heapq.heapreplace(following, (Fraction(2 * taken[lane] + 1, 2 * rows[lane]), lane))
        return taken

    @cached_property
    def _lane_of(self) -> tuple[int, ...]:
        """The lane of every row group."""
        lanes = [0] * len(self.group_rows)
        rows = [0] * self.lanes
        for group in sorted(range(len(lanes)), key=lambda group: -self.group_rows[group]):
            lanes[group] = rows.index(min(rows))
            rows[lanes[group]] += self.group_rows[group]
        return tuple(lanes)

    @cached_property
    def lane_rows(self) -> tuple[int, ...]:
        """Rows of every lane."""
        rows = [0] * self.lanes
        for lane, count in zip(self._lane_of, self.group_rows, strict=True):
            rows[lane] += count
        return tuple(rows)

    def groups_of(self, lanes: Sequence[int]) -> tuple[int, ...]:
        """The row groups of the given lanes, in the order of the files."""
        return tuple(group for group, lane in enumerate(self._lane_of) if lane in lanes)

    @cached_property
    def windows(self) -> tuple[tuple[Window, ...], ...]:
        """Per lane its row groups in this epoch's order, cut after every group with which a window has its rows.

        The windows of all lanes together have at least `window` rows.
        """
        count = len(self.group_rows)
        order = permutation(count, self.seed, self.epoch, 0) if self.shuffle else np.arange(count)
        enough = -(-self.window // self.lanes)
        by_lane: list[list[int]] = [[] for _ in range(self.lanes)]
        for group in order.tolist():
            by_lane[self._lane_of[group]].append(group)
        made: list[tuple[Window, ...]] = []
        for lane, lane_groups in enumerate(by_lane):
            index = sum(map(len, made))
            made.append(tuple(self._cut(lane, lane_groups, index, enough)))
        return tuple(made)

    def _cut(self, lane: int, lane_groups: Sequence[int], index: int, enough: int) -> Iterator[Window]:
        groups: list[int] = []
        first = rows = 0
        for group in lane_groups:
            groups.append(group)
            rows += self.group_rows[group]
            if rows >= enough:
                yield Window(index, lane, first, rows, tuple(groups))
                groups, first, rows, index = [], first + rows, 0, index + 1
        if rows:
            yield Window(index, lane, first, rows, tuple(groups))

    def window_at(self, lane: int, position: int) -> int:
        """Which of a lane's windows holds a position of its order."""
        return bisect_right(self.windows[lane], position, key=lambda window: window.first) - 1

    def order(self, window: Window, room: Words | None = None) -> Int64:
        """The order of a window's rows: numbers into its row groups laid one after the other, perhaps in `room`."""
        if not self.shuffle:
            return np.arange(window.rows)
        return permutation(window.rows, self.seed, self.epoch, 1 + window.index, room)


def permutation(count: int, seed: int, epoch: int, stream: int, room: Words | None = None) -> Int64:
    """The numbers 0 … count − 1 in the order of a stream of random words (see the top of this file).

    `room`: at least `count` words that the answer may take.
    """
    key, counter = np.array([seed, 0], np.uint64), np.array([0, 0, epoch, stream], np.uint64)
    generator = np.random.Philox(key=key, counter=counter)
    words = (np.empty(count, np.uint64) if room is None else room)[:count]
    low = np.uint64((1 << (count - 1).bit_length()) - 1) if count else np.uint64(0)
    for start in range(0, count, _BLOCK):
        numbers = np.arange(start, min(start + _BLOCK, count), dtype=np.uint64)
        words[start : start + _BLOCK] = (generator.random_raw(len(numbers)) & ~low) | numbers
    words.sort()  # the number is in the low bits, so no two are equal and every sort gives one answer
    words &= low
    return words.view(np.int64)
