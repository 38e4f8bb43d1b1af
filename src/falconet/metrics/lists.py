"""What lists of recommendations are like, apart from being right.

With the share s(i) of training interactions that fell on item i:

    coverage@k    the share of the catalogue that is in anybody's list        Herlocker et al. 2004
    novelty@k     mean over a list's items of −log2 s(i)                      Zhou et al., PNAS 2010
    popularity@k  mean over a list's items of s(i) times the catalogue's size: 1 for items drawn evenly
    gini@k        how unequal items' places in lists are: 0 where all are    Fleder and Hosanagar 2009
                  in equally many, towards 1 where one item takes all
    diversity@k   1 − the mean cosine of all pairs of a list's items          Ziegler et al., WWW 2005
                  (with item vectors; a list of one item has none)

Items that training never saw count as seen half a time. Means over users are sums without rounding errors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from falconet.errors import ConfigError, DataError
from falconet.metrics.exact import mean

State = dict[str, Tensor]
"""Per user, float64: `novelty@k`, `popularity@k`, `diversity@k` (NaN without one); `shown@k`, int64 [1, items]: in how
many lists each item is. Of two processes, one after the other."""

_HALF = 0.5


class ListMetrics:
    """Coverage, novelty, popularity, Gini and diversity at every k of `ks`.

    `codes_N`: the codes of the catalogue; `counts_N`: how often each occurred in training; `vectors_ND`: what diversity
    compares, the attributes of items or vectors of a model that is not judged here. Raises ConfigError and DataError.
    """

    def __init__(self, ks: Sequence[int], codes_N: Tensor, counts_N: Tensor, vectors_ND: Tensor | None = None) -> None:
        if not ks or any(isinstance(k, bool) or not isinstance(k, int) or k < 1 for k in ks):
            raise ConfigError(f"`ks` must be whole numbers of at least 1, not {ks!r}")
        if not len(codes_N) or counts_N.shape != codes_N.shape:
            raise DataError(f"{len(counts_N):,} counts for {len(codes_N):,} items of a catalogue")
        if vectors_ND is not None and len(vectors_ND) != len(codes_N):
            raise DataError(f"{len(vectors_ND):,} vectors for {len(codes_N):,} items of a catalogue")
        self.ks = tuple(sorted(set(ks)))
        self._codes_N, order_N = codes_N.long().sort()
        counts_N = counts_N[order_N].double().clamp(min=_HALF)
        self._share_N = counts_N / counts_N.sum()
        self._vectors_ND = None
        if vectors_ND is not None:
            self._vectors_ND = torch.nn.functional.normalize(vectors_ND[order_N].double(), dim=1)

    @property
    def names(self) -> tuple[str, ...]:
        kinds = ["coverage", "novelty", "popularity", "gini"]
        kinds += [] if self._vectors_ND is None else ["diversity"]
        return tuple(f"{kind}@{k}" for k in self.ks for kind in kinds)

    def partial(self, top_codes: Tensor) -> State:
        """The state of some users' lists: [users, K] int64, best first, -1 where there is no more.

        Raises DataError for a code outside the catalogue.
        """
        top_UK = top_codes.cpu().long()
        places_UK = torch.searchsorted(self._codes_N, top_UK.clamp(min=0)).clamp(max=len(self._codes_N) - 1)
        held_UK = top_UK >= 0
        wrong = held_UK & (self._codes_N[places_UK] != top_UK)
        if bool(wrong.any()):
            raise DataError(f"code {int(top_UK[wrong][0])} is recommended, but not in the catalogue")
        state: State = {}
        for k in self.ks:
            places, held = places_UK[:, :k], held_UK[:, :k]
            share_UK = self._share_N[places]
            number_U = held.sum(1).clamp(min=1)
            nothing_U = ~held.any(1)
            state[f"novelty@{k}"] = _mean(-share_UK.log2(), held, number_U, nothing_U)
            state[f"popularity@{k}"] = _mean(share_UK * len(self._codes_N), held, number_U, nothing_U)
            state[f"shown@{k}"] = torch.bincount(places[held], minlength=len(self._codes_N)).unsqueeze(0)
            if self._vectors_ND is not None:
                state[f"diversity@{k}"] = self._diversity(self._vectors_ND, places, held)
        return state

    def _diversity(self, vectors_ND: Tensor, places_UK: Tensor, held_UK: Tensor) -> Tensor:
        # the sum over pairs from the sum of vectors: |Σ v|² = Σ |v|² + 2 Σ of the pairs' products
        sum_UD = vectors_ND.new_zeros(len(places_UK), vectors_ND.shape[1])
        squares_U = vectors_ND.new_zeros(len(places_UK))
        for places_U, held_U in zip(places_UK.T, held_UK.T, strict=True):
            vectors_UD = vectors_ND[places_U] * held_U.unsqueeze(1)
            sum_UD += vectors_UD
            squares_U += vectors_UD.square().sum(1)
        twice_U = sum_UD.square().sum(1) - squares_U
        number_U = held_UK.sum(1)
        return torch.where(number_U > 1, 1 - twice_U / (number_U * (number_U - 1)), math.nan)

    def merge(self, states: Sequence[State]) -> State:
        """The lists of all states. No states: no lists."""
        none = torch.zeros(0, dtype=torch.float64)
        nowhere = torch.zeros(1, len(self._codes_N), dtype=torch.int64)
        merged: State = {}
        for k in self.ks:
            merged[f"shown@{k}"] = sum((state[f"shown@{k}"].sum(0, keepdim=True) for state in states), start=nowhere)
            for kind in ("novelty", "popularity", *(["diversity"] if self._vectors_ND is not None else [])):
                merged[f"{kind}@{k}"] = torch.cat([none, *(state[f"{kind}@{k}"] for state in states)])
        return merged

    def finish(self, state: State) -> dict[str, float]:
        """The figures; NaN where there are no lists. Users without a figure of their own are left out of its mean."""
        figures = {}
        for name in self.names:
            kind, _, k = name.partition("@")
            if kind in ("coverage", "gini"):
                shown = state[f"shown@{k}"].sum(0)
                figures[name] = _covered(shown) if kind == "coverage" else _gini(shown)
            else:
                values = state[name].numpy()
                figures[name] = mean(values[~np.isnan(values)])
        return figures


def _mean(values_UK: Tensor, held_UK: Tensor, number_U: Tensor, nothing_U: Tensor) -> Tensor:
    # a running sum adds a list's values in the order of places, whatever the number of users
    sums_U = torch.where(held_UK, values_UK, 0.0).cumsum(1)[:, -1] if values_UK.shape[1] else number_U * 0.0
    return torch.where(nothing_U, math.nan, sums_U / number_U)


def _covered(shown_N: Tensor) -> float:
    return int((shown_N > 0).sum()) / len(shown_N) if bool(shown_N.any()) else math.nan


def _gini(shown_N: Tensor) -> float:
    """Σ (2 i − N − 1) x_i / (N Σ x), with x ascending and i from 1."""
    ordered_N = shown_N.sort().values
    number, whole = len(ordered_N), int(ordered_N.sum())
    if not whole:
        return math.nan
    weights_N = 2 * torch.arange(1, number + 1) - number - 1
    return int((weights_N * ordered_N).sum()) / (number * whole)
