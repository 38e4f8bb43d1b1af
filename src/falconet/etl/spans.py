"""Many sorted runs of values in one array, each from a start to an end: searched all at once, and laid in a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from falconet.compute.engine import collect
from falconet.etl.table import matching

Ints = NDArray[np.int64]


def spans(keys: pl.Series) -> pl.DataFrame:
    """Where the values of each key are, whose equal values lie together: `key`, `start`, `end`."""
    counted = keys.alias("key").to_frame().lazy().group_by("key", maintain_order=True)
    end = pl.col("count").cum_sum()
    sized = counted.agg(count=pl.len().cast(pl.Int64))
    return collect(sized.select("key", start=end - pl.col("count"), end=end))


def spans_of(frame: pl.DataFrame, name: str, known: pl.DataFrame) -> tuple[Ints, Ints]:
    """From where to where the values of each row's key are, of `known` spans; 0 to 0 for a key that is in none."""
    asked = frame.lazy().select(key=matching(pl.col(name), frame.schema[name], known.schema["key"], name))
    found = collect(asked.join(known.lazy(), on="key", how="left", maintain_order="left"))
    return found["start"].fill_null(0).to_numpy(), found["end"].fill_null(0).to_numpy()


def bisect(start: Ints, end: Ints, before: Callable[[Ints], NDArray[np.bool_]]) -> Ints:
    """Where in each span the places end for which `before` holds: it does for the first ones of a span, then no more.

    `before` is asked for one place in each span at a time. A span without places gives its start.
    """
    low, left = start.copy(), end - start
    last = int(end.max(initial=1)) - 1
    for _ in range(int(left.max(initial=0)).bit_length()):
        half = left >> 1
        further = before(np.minimum(low + half, last)) & (left > 0)
        low += further * (half + 1)
        left = np.where(further, left - half - 1, half)
    return low


def ranges(start: Ints, length: Ints) -> NDArray[np.uint32]:
    """start[0], start[0] + 1, ... (length[0] of them), start[1], ...; Polars counts places in 32 bits."""
    offset = np.cumsum(length) - length
    places = np.arange(int(length.sum()), dtype=np.uint32)
    places += np.repeat((start - offset).astype(np.uint32), length)  # modulo 2^32, so a difference may be negative
    return places


def numbers(times: pl.Series) -> NDArray[Any]:
    """Times as numbers in their own order; null as 0, which no one looks at."""
    physical = times.to_physical()
    return physical.cast(pl.Float64 if physical.dtype.is_float() else pl.Int64).fill_null(0).to_numpy()


def comparable(given: pl.DataType, known: pl.DataType) -> bool:
    """Whether times of these types can be compared as `numbers`."""
    return given in (known, pl.Null()) or (given.is_numeric() and known.is_numeric())
