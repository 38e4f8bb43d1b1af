"""Vectors in a quarter of their memory, for a first look at large catalogues: reading them is what a search waits for.

Every dimension is cut into 255 steps of its own, but for the one of the widest range, often a bias, which stays as it
is; a query into 255 steps of one width. Products of both are whole numbers, and how far the scores may be off is
bounded: by the distances between the vectors and their steps, and between the query and its steps (Cauchy-Schwarz).

Shapes: N items, D width of the vectors.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Numbers = npt.NDArray[np.float32]

_STEPS = 127
_LEAST = 2**20  # numbers; smaller tables are read in no time as they are
_SAMPLE = 65_536  # items that both ways are timed on
_FASTER = 1.3  # so many times, or it is not worth its memory
_ROUNDING = 2.0**-21  # of the float32 operations at the end, relative to the largest numbers in them
_TINY = 2.0**-120  # and where these are too small for that


class Narrow:
    """Scores of one query with all items, and how far they may be off."""

    def __init__(self, vectors_ND: Tensor) -> None:
        ranges_D = vectors_ND.abs().amax(0).double()
        self._wide = int(ranges_D.argmax())
        self._wide_N = vectors_ND[:, self._wide].numpy().copy()
        self._widest = float(ranges_D[self._wide])
        step_D = ranges_D / _STEPS
        step_D[self._wide] = 0.0
        self._step_D = step_D.numpy()
        self._steps_ND = torch.empty(vectors_ND.shape, dtype=torch.int8)
        self._off = self._longest = 0.0
        """The length of the longest row of what is lost, and of what is kept, in steps."""
        for part, to in zip(torch.split(vectors_ND, _SAMPLE), torch.split(self._steps_ND, _SAMPLE), strict=True):
            exact = part.double() / step_D.where(step_D > 0, 1.0)
            exact[:, self._wide] = 0.0
            steps = exact.round().clamp_(-_STEPS, _STEPS)
            to.copy_(steps)
            self._off = max(self._off, float(torch.linalg.vector_norm(exact - steps, dim=1).max()))
            self._longest = max(self._longest, float(torch.linalg.vector_norm(steps, dim=1).max()))

    @classmethod
    def where_it_pays(cls, vectors_ND: Tensor) -> Narrow | None:
        """For large tables on processors that multiply bytes quickly, as is tried; None elsewhere."""
        if vectors_ND.device.type != "cpu" or vectors_ND.numel() < _LEAST or _product is None:
            return None
        some_ND = vectors_ND[:_SAMPLE]
        narrow, query_D = cls(some_ND), some_ND[0]
        times: tuple[list[float], list[float]] = ([], [])
        ways: list[Callable[[], object]] = [lambda: narrow.scores(query_D.numpy()), lambda: some_ND.mv(query_D)]
        for _ in range(7):  # in turn, and the least counts: what else the machine does only adds
            for way, taken in zip(ways, times, strict=True):
                start = time.perf_counter()
                way()
                taken.append(time.perf_counter() - start)
        exact_N = some_ND.double() @ query_D.double()
        near_N, error, step = narrow.scores(query_D.numpy())
        right = bool(np.all(np.abs(near_N - exact_N.numpy() / step) <= error))
        return cls(vectors_ND) if right and min(times[0]) * _FASTER < min(times[1]) else None

    def scores(self, query_D: Numbers) -> tuple[Numbers, float, float]:
        """Scores [N] in steps, the most that one of them may be off, and how large a step is, which is above 0."""
        weights_D = query_D.astype(np.float64)
        wide = float(weights_D[self._wide])
        weights_D *= self._step_D
        step = float(np.abs(weights_D).max()) / _STEPS or 1.0
        weights_D /= step
        steps_D = weights_D.round()
        product_N1 = _product(self._steps_ND, torch.from_numpy(steps_D.astype(np.int8)).unsqueeze(1))
        scores_N: Numbers = product_N1.numpy().ravel().astype(np.float32)
        scores_N += self._wide_N * np.float32(wide / step)
        lost = _length(weights_D) * self._off + _length(weights_D - steps_D) * self._longest
        largest = _length(steps_D) * self._longest + abs(wide / step) * self._widest + lost
        return scores_N, lost + _ROUNDING * largest + _TINY / step, step


def _length(x_D: npt.NDArray[np.float64]) -> float:
    return math.sqrt(float(x_D @ x_D))


_product: Any = getattr(torch, "_int_mm", None)
"""Bytes by bytes as int32. Underscored, so its absence is no error here and its answer is checked before it is used."""
