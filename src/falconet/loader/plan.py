"""The order of the rows of an epoch, and who takes which: a pure function of row counts and settings.

Memory, mode and the number of processes are not among its inputs, so none of them can change the order.

Random numbers are the raw 64-bit words of Philox4x64-10 with key (seed, 0) and counter (0, 0, epoch, stream): stream 0
orders the row groups, stream 1 + w the rows of window w. A permutation of n things sorts the numbers 0 … n−1 by the top
64 − b bits of the first n words, b = bits of n − 1, ties by number. Nothing in this depends on a version of NumPy.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from falconet.errors import ConfigError

WINDOW = 1_048_576
"""Rows of a window by default."""

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Window:
    """Row groups that are shuffled together: positions `first` … `first + rows − 1` of the epoch's order."""

    index: int
    first: int
    rows: int
    groups: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """One epoch over row groups of `group_rows` rows, in steps of `batch_size` rows over all processes.

    >>> plan = EpochPlan(group_rows=(10, 3, 7, 1, 6), batch_size=4)
    >>> plan.steps, plan.share(step=6, rank=0, world=2), plan.share(step=6, rank=1, world=2)
    (7, (24, 25), (25, 27))
    """

    group_rows: tuple[int, ...]
    batch_size: int
    seed: int = 0
    epoch: int = 0
    window: int = WINDOW
    shuffle: bool = True
    drop_last: bool = False

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("window", 1), ("seed", 0), ("epoch", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**64:
                raise ConfigError(f"`{name}` must be a whole number of at least {least}, not {value!r}")

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

    def share(self, step: int, rank: int, world: int) -> tuple[int, int]:
        """Positions start … stop − 1 of the epoch's order that `rank` of `world` takes in `step`; may be none."""
        first, n = step * self.batch_size, self.batch_rows(step)
        return first + rank * n // world, first + (rank + 1) * n // world

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """The row groups in this epoch's order, cut after every group with which a window has `window` rows."""
        count = len(self.group_rows)
        order = permutation(count, self.seed, self.epoch, 0) if self.shuffle else np.arange(count)
        windows: list[Window] = []
        groups: list[int] = []
        first = rows = 0
        for group in order.tolist():
            groups.append(group)
            rows += self.group_rows[group]
            if rows >= self.window:
                windows.append(Window(len(windows), first, rows, tuple(groups)))
                groups, first, rows = [], first + rows, 0
        if rows:
            windows.append(Window(len(windows), first, rows, tuple(groups)))
        return tuple(windows)

    def window_at(self, position: int) -> int:
        """The index of the window that holds a position of the order."""
        return bisect_right(self.windows, position, key=lambda window: window.first) - 1

    def order(self, window: Window) -> Int64:
        """The order of a window's rows: numbers into its row groups laid one after the other."""
        if not self.shuffle:
            return np.arange(window.rows)
        return permutation(window.rows, self.seed, self.epoch, 1 + window.index)

    def dataset_rows(self, window: Window) -> Int64:
        """The row numbers of the data set, files in name order, of a window's row groups laid one after the other."""
        starts = np.concatenate([[0], np.cumsum(self.group_rows, dtype=np.int64)])
        return np.concatenate([np.arange(starts[g], starts[g + 1]) for g in window.groups])


def permutation(count: int, seed: int, epoch: int, stream: int) -> Int64:
    """The numbers 0 … count − 1 in the order of a stream of random words (see the top of this file)."""
    key, counter = np.array([seed, 0], np.uint64), np.array([0, 0, epoch, stream], np.uint64)
    words = np.random.Philox(key=key, counter=counter).random_raw(count)
    low = np.uint64((1 << (count - 1).bit_length()) - 1) if count else np.uint64(0)
    words &= ~low
    words |= np.arange(count, dtype=np.uint64)
    words.sort()  # the number is in the low bits, so no two are equal and every sort gives one answer
    words &= low
    return words.view(np.int64)
