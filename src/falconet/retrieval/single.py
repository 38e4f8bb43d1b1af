"""The search of one query, as a server has it: the bits of a search of many.

In numpy, whose steps begin several times as fast as torch's: there are many of them, of few numbers each.

Shapes: N items, D width of the vectors, P candidates, k results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from falconet.retrieval.best import near_best_of_one

Numbers = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]
Look = Callable[[], tuple[Numbers, float]]
"""Coarse scores of all items, [N], times some number above 0, and how far these may be off."""

FEW = 16
"""Where a filter leaves less than an Nth of the items, these alone are scored."""
_MANY = 8
"""So many candidates for each result are worth a more precise look."""
_BLOCK_ROWS = 2**16


def search_one(
    vectors_ND: Numbers, query_D: Numbers, k: int, looks: Iterable[Look], hidden: Places, allowed: Places | None
) -> tuple[Numbers, Places]:
    """Scores and places of the best k items, both [k], best first, equal scores by place; -inf and -1 at the end.

    `looks`: the quickest first; of the last all candidates are taken. `hidden`, `allowed`: places, N for none.
    """
    items = len(vectors_ND)
    places = _few(items, hidden, allowed)
    if places is None:
        out_N = hidden[hidden < items] if allowed is None else ~_left(items, hidden, allowed)
        for look in looks:
            near_N, error = look()
            near_N[out_N] = -np.inf
            places = near_best_of_one(near_N, k, 2 * error)
            if len(places) <= _MANY * k:
                break
    assert places is not None
    scores_P = _dots(vectors_ND, places, query_D)
    order = np.argsort(-scores_P, kind="stable")[:k]  # stable: ties stay by place
    scores_k, places_k = np.full(k, -np.inf, np.float32), np.full(k, -1, np.int64)
    scores_k[: len(order)], places_k[: len(order)] = scores_P[order], places[order]
    return scores_k, places_k


def _few(items: int, hidden: Places, allowed: Places | None) -> Places | None:
    """The places that may come, ascending, where these are few."""
    if allowed is None or len(allowed) * FEW >= items:
        return None
    return np.flatnonzero(_left(items, hidden, allowed))


def _left(items: int, hidden: Places, allowed: Places) -> npt.NDArray[np.bool_]:
    """Whether each item may come."""
    left = np.zeros(items + 1, np.bool_)
    left[allowed] = True
    left[hidden] = False
    return left[:-1]


def _dots(vectors_ND: Numbers, places: Places, query_D: Numbers) -> Numbers:
    """The scores of items: [P]. The sums of exact.py's `_dot`, in the same order."""
    factors_D1 = query_D.astype(np.float64)[:, None]
    blocks = [_sums(vectors_ND.take(places[i : i + _BLOCK_ROWS], 0), factors_D1) for i in _starts(len(places))]
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def _starts(length: int) -> range:
    return range(0, max(length, 1), _BLOCK_ROWS)


def _sums(vectors_PD: Numbers, factors_D1: npt.NDArray[np.float64]) -> Numbers:
    sums: Any = vectors_PD.T.astype(np.float64, order="C")
    sums *= factors_D1
    while (width := len(sums)) > 1:
        half = (width + 1) // 2
        sums[: width - half] += sums[half:]
        sums = sums[:half]
    total: Numbers = np.add.reduce(sums, axis=0, initial=0.0).astype(np.float32)
    return total
