"""Sums and means without rounding errors, so that figures are the same bits for any order of the values."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt


def total(values: npt.NDArray[np.float64]) -> float:
    """The sum, correctly rounded (Shewchuk 1997, Python's `math.fsum`)."""
    return math.fsum(values.tolist())


def mean(values: npt.NDArray[np.float64]) -> float:
    """The mean; NaN of none."""
    return total(values) / len(values) if len(values) else math.nan
