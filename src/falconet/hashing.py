"""The stable hash: equal values get equal hashes on every row, part, process, platform and version.

Used for out-of-vocabulary buckets, folds, splits, shuffles and A/B variants. docs/contracts.md fixes it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from falconet.errors import DataError

P = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd
MASK = (1 << 64) - 1
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB

Scalar = int | float | bool | str | dt.date | dt.datetime | None


def splitmix64(x: int) -> int:
    """Steele, Lea and Flood's finaliser (OOPSLA 2014) after adding the golden ratio."""
    x = (x + P) & MASK
    x = ((x ^ (x >> 30)) * MIX_1) & MASK
    x = ((x ^ (x >> 27)) * MIX_2) & MASK
    return x ^ (x >> 31)


def stable_hash(x: Scalar | Sequence[Scalar], seed: int = 0) -> int | None:
    """The 64-bit hash of one value, or of a tuple or list of values (several columns). Null and NaN give None.

    >>> stable_hash(1) == stable_hash(1.0) == stable_hash(True)
    True
    """
    if isinstance(x, (tuple, list)):
        hashes = [stable_hash(value, seed) for value in x]
        return None if None in hashes or not hashes else hash_tuple([h for h in hashes if h is not None])
    value = _as_uint64(x)  # type: ignore[arg-type]
    return None if value is None else splitmix64(value ^ splitmix64(seed & MASK))


def hash_tuple(hashes: Sequence[int]) -> int:
    """The hash of a tuple from the hash of each of its values, of which there is at least one."""
    h = hashes[0]
    for one in hashes[1:]:
        h = splitmix64((h * P + one) & MASK)
    return h


def _as_uint64(x: Scalar) -> int | None:
    if x is None:
        return None
    if isinstance(x, str):
        data = x.encode()
        total, power = 0, 1
        for byte in data:
            total = (total + (byte + 1) * power) & MASK
            power = (power * P) & MASK
        return total ^ len(data)
    if isinstance(x, dt.datetime):
        if x.tzinfo is None:
            x = x.replace(tzinfo=dt.UTC)
        return ((x - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)) & MASK
    if isinstance(x, dt.date):
        return (x.toordinal() - dt.date(1970, 1, 1).toordinal()) & MASK
    if isinstance(x, (float, np.floating)):
        x = float(x)
        if x != x:
            return None
        if x.is_integer() and abs(x) < 2**63:
            return int(x) & MASK
        return int(np.float64(x).view(np.uint64))
    if not isinstance(x, (int, np.integer, np.bool_)):
        raise DataError(f"{x!r} has no stable hash: it is a {type(x).__name__}")
    return int(x) & MASK


def hash_uint64(x: NDArray[np.uint64], seed: int = 0) -> NDArray[np.uint64]:
    """`stable_hash` of an array of integers given as their 64-bit patterns."""
    h = x ^ np.uint64(splitmix64(seed & MASK))
    h = h + np.uint64(P)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(MIX_1)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(MIX_2)
    return h ^ (h >> np.uint64(31))
