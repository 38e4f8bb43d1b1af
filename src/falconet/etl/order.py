"""The order of a shuffle: rows by the upper half of their numbers' stable hash, equal ones by their numbers.

Both fit in 64 bits, so that one sort of whole numbers gives the order, without a second array to carry along.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from falconet.compute.executor import ROW
from falconet.hashing import hash_uint64, stable_hash

Numbers = NDArray[np.uint64]
LIMIT = 2**32  # rows that can be ordered at a time
BLOCK_ROWS = 131_072  # rows that PER_WORKER deals together
_HALF = np.uint64(32)
_BLOCK = 1 << 15  # numbers hashed at a time: what they need stays in the cache


def full_order(rows: int, seed: int) -> pl.Series:
    """The numbers 0 … rows - 1 (fewer than 2^32) in the order of this seed, as UInt32."""
    packed = np.empty(rows, np.uint64)
    for start, stop in _blocks(rows):
        numbers = np.arange(start, stop, dtype=np.uint64)
        packed[start:stop] = _key(numbers, seed) << _HALF | numbers
    return _lower(packed)


def places(numbers: pl.Series, seed: int) -> pl.Series:
    """Where the first, second, … row of the order of this seed stands among rows of these numbers, as UInt32."""
    given = numbers.to_numpy()
    ascending = None if bool((given[1:] > given[:-1]).all()) else np.argsort(given, kind="stable")
    if ascending is not None:
        given = given[ascending]
    packed = np.empty(len(given), np.uint64)
    for start, stop in _blocks(len(given)):
        packed[start:stop] = _key(given[start:stop], seed) << _HALF | np.arange(start, stop, dtype=np.uint64)
    order = _lower(packed)
    return order if ascending is None else pl.Series(ascending.astype(np.uint32)[order.to_numpy()])


def ranges(numbers: pl.Series, seed: int, count: int) -> Numbers:
    """Which of `count` parts of the order of this seed, about equally large, rows of these numbers lie in."""
    given = numbers.to_numpy()
    found = np.empty(len(given), np.uint64)
    for start, stop in _blocks(len(given)):
        found[start:stop] = _key(given[start:stop], seed) * np.uint64(count) >> _HALF
    return found


def numbered(start: int, rows: int) -> pl.Series:
    """The numbers of so many rows, from `start` on."""
    return pl.int_range(start, start + rows, dtype=pl.UInt64, eager=True)


def place_of(number: int, seed: int) -> int:
    """A part's or block's place in the order of this seed (a hash of its own, not that of the row of this number)."""
    return stable_hash((number, 1), seed) or 0


@dataclass(frozen=True)
class Ranges:
    """Buckets of FULL: equal ranges of its order."""

    seed: int
    count: int

    def __call__(self, rows: pl.DataFrame) -> NDArray[np.uint64]:
        return ranges(rows[ROW], self.seed, self.count)


@dataclass(frozen=True)
class Deal:
    """PER_WORKER: which file each block of rows goes to."""

    rows: int
    files: int
    block_rows: int
    file_of: tuple[int, ...]

    @classmethod
    def of(cls, rows: int, files: int, seed: int) -> Deal:
        block_rows = max(1, min(BLOCK_ROWS, -(-rows // files)))
        blocks = max(1, -(-rows // block_rows))
        file_of = [0] * blocks
        for place, block in enumerate(sorted(range(blocks), key=lambda block: place_of(block, seed))):
            file_of[block] = place % files
        return cls(rows, files, block_rows, tuple(file_of))

    def numbers(self, file: int) -> pl.Series:
        """The rows of a file, ascending."""
        blocks = [block for block, owner in enumerate(self.file_of) if owner == file]
        starts = [(block * self.block_rows, min((block + 1) * self.block_rows, self.rows)) for block in blocks]
        return pl.concat([numbered(0, 0), *(numbered(a, b - a) for a, b in starts)])


@dataclass(frozen=True)
class Dealt:
    """Buckets of PER_WORKER: equal ranges of the order within each file."""

    deal: Deal
    seed: int
    per_file: int

    def __call__(self, rows: pl.DataFrame) -> NDArray[np.uint64]:
        block = rows[ROW].to_numpy() // np.uint64(self.deal.block_rows) % np.uint64(len(self.deal.file_of))
        file = np.array(self.deal.file_of, np.uint64)[block]
        found: NDArray[np.uint64] = file * np.uint64(self.per_file) + ranges(rows[ROW], self.seed, self.per_file)
        return found


def _key(numbers: Numbers, seed: int) -> Numbers:
    return hash_uint64(numbers, seed) >> _HALF


def _lower(packed: Numbers) -> pl.Series:
    """The lower halves of these numbers, in the order of the whole ones."""
    # Polars sorts with all cores.
    return pl.Series(pl.Series(packed).sort().to_numpy().astype(np.uint32))


def _blocks(rows: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + _BLOCK, rows)) for start in range(0, rows, _BLOCK))
