"""How sure a mean over users is, whether two models differ, and how they do by segments of users.

Bootstrap (Efron 1979): users are drawn with replacement 1,000 times. All draws come from the seed, and values are
sorted first, so the figures are the same for any order of the users.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from falconet.errors import DataError
from falconet.metrics.exact import mean

Floats = npt.NDArray[np.float64]
RESAMPLES = 1000
_AT_ONCE = 1 << 20  # draws held in memory


def interval(values: Floats, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval (percentile) of the mean of `values`, one per user. (NaN, NaN) of none."""
    if not len(values):
        return math.nan, math.nan
    low, high = np.quantile(_means(np.asarray(values, np.float64), seed), [0.025, 0.975])
    return float(low), float(high)


@dataclass(frozen=True)
class Difference:
    """How much better one model is than another, per user: the mean, its 95 % interval, and how likely none is.

    `p`: twice the share of resamples in which the difference has the other sign or none, at least 1/500.
    """

    value: float
    low: float
    high: float
    p: float


def difference(first: Floats, second: Floats, seed: int = 0) -> Difference:
    """first − second, paired by user; NaN of no users. Raises DataError for different numbers of users."""
    if len(first) != len(second):
        raise DataError(f"figures of {len(first):,} users against those of {len(second):,}: pairs are needed")
    if not len(first):
        return Difference(math.nan, math.nan, math.nan, math.nan)
    apart = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    means, value = _means(apart, seed), mean(apart)
    low, high = np.quantile(means, [0.025, 0.975])
    other = np.mean(means <= 0 if value > 0 else means >= 0)
    return Difference(value, float(low), float(high), float(np.clip(2 * other, 2 / RESAMPLES, 1.0)))


def by_segment(values: Floats, segments: npt.NDArray[np.int64], names: Sequence[str]) -> Mapping[str, Floats]:
    """The values of the users of every segment; `segments` holds each user's, as a place in `names`.

    Raises DataError where a user has no segment.
    """
    if len(values) != len(segments):
        raise DataError(f"{len(values):,} users have figures, {len(segments):,} a segment")
    if len(segments) and not 0 <= segments.min() <= segments.max() < len(names):
        raise DataError(f"segments must be from 0 to {len(names) - 1}, not {segments.min()} to {segments.max()}")
    return {name: values[segments == place] for place, name in enumerate(names)}


def _means(values: Floats, seed: int) -> Floats:
    """The means of RESAMPLES samples as large as `values`."""
    values = np.sort(values)
    rng = np.random.Generator(np.random.Philox(seed))
    rows = max(1, _AT_ONCE // len(values))
    sizes = [min(rows, RESAMPLES - start) for start in range(0, RESAMPLES, rows)]
    return np.concatenate([values[rng.integers(0, len(values), (size, len(values)))].mean(1) for size in sizes])
