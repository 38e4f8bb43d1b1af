"""The order of a shuffle: rows by the upper half of their numbers' stable hash, equal ones by their numbers.

Both fit in 64 bits, so that one sort of whole numbers gives the order, without a second array to carry along.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from falconet.hashing import hash_uint64

Numbers = NDArray[np.uint64]
LIMIT = 2**32  # rows that can be ordered at a time
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


def _key(numbers: Numbers, seed: int) -> Numbers:
    return hash_uint64(numbers, seed) >> _HALF


def _lower(packed: Numbers) -> pl.Series:
    """The lower halves of these numbers, in the order of the whole ones."""
    # Polars sorts with all cores.
    return pl.Series(pl.Series(packed).sort().to_numpy().astype(np.uint32))


def _blocks(rows: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + _BLOCK, rows)) for start in range(0, rows, _BLOCK))
