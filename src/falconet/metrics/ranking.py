"""How good lists of recommendations are, per user and as means over users.

With R relevant items of a user (those outside the catalogue included) and hit(i) = 1 where place i of the list, from 1,
holds a relevant one:

    recall@k     Σ hit / R ("all"), or / min(k, R) ("min_k")          Herlocker et al. 2004; Liang et al. 2018
    precision@k  Σ hit / k                                            Herlocker et al. 2004
    hit_rate@k   1 where any of the k is a hit
    mrr@k        1 / place of the first hit, 0 without one            Voorhees 1999
    ndcg@k       Σ hit(i) / log2(i + 1), divided by the same sum of   Järvelin and Kekäläinen 2002
                 the best list possible, whose first min(k, R) places are hits
    map@k        Σ hit(i) · precision@i / R ("all"), or / min(k, R) ("min_k")

A list shorter than k counts as one without further hits. Users without a relevant item are left out of the means.
Means are sums without rounding errors, so the figures are the same bits for any batches, order and number of processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from falconet.batch import Ragged
from falconet.errors import ConfigError, DataError
from falconet.metrics.exact import mean

Divisor = Literal["all", "min_k"]
State = dict[str, Tensor]
"""Metric name to one float64 per user; of two processes, one after the other."""


class RankingMetrics:
    """Recall, nDCG, MRR, hit rate, precision and MAP at every k of `ks`; `map_by`, `recall_by`: what they divide by."""

    def __init__(self, ks: Sequence[int] = (10,), *, map_by: Divisor = "all", recall_by: Divisor = "all") -> None:
        if not ks or any(isinstance(k, bool) or not isinstance(k, int) or k < 1 for k in ks):
            raise ConfigError(f"`ks` must be whole numbers of at least 1, not {ks!r}")
        for name, given in (("map_by", map_by), ("recall_by", recall_by)):
            if given not in ("all", "min_k"):
                raise ConfigError(f"`{name}` must be all or min_k, not {given!r}")
        self.ks = tuple(sorted(set(ks)))
        self.map_by = map_by
        self.recall_by = recall_by

    @property
    def names(self) -> tuple[str, ...]:
        kinds = ("recall", "ndcg", "mrr", "hit_rate", "precision", "map")
        return tuple(f"{kind}@{k}" for k in self.ks for kind in kinds)

    def partial(self, top_codes: Tensor, relevant: Ragged, unknown: Tensor | None = None) -> State:
        """The values of some users.

        `top_codes`: [users, K] int64, best first, -1 where there is no more; K below the largest k counts as shorter
        lists. `relevant`: codes per user, in any order. `unknown`: [users], relevant items outside the catalogue, which
        no list can hold but which stay in the denominators.

        Raises DataError where the numbers of users differ or a list holds a code twice.
        """
        users = len(top_codes)
        if len(relevant) != users or (unknown is not None and len(unknown) != users):
            raise DataError(f"{users:,} lists of recommendations against {len(relevant):,} users with relevant items")
        top_UK, row_of_value, values = (
            top_codes.cpu().long(),
            relevant.row_of_value().cpu(),
            relevant.values.cpu().long(),
        )
        hits_UK, counts_U = _hits(top_UK[:, : self.ks[-1]], row_of_value, values, self.ks[-1])
        if unknown is not None:
            counts_U = counts_U + unknown.cpu().long()
        kept = counts_U > 0
        return self._values(hits_UK[kept], counts_U[kept])

    def _values(self, hits_UK: Tensor, counts_U: Tensor) -> State:
        places = range(1, self.ks[-1] + 1)
        gain_K = torch.tensor([1 / math.log2(i + 1) for i in places], dtype=torch.float64)
        place_K = torch.tensor([float(i) for i in places], dtype=torch.float64)
        # running sums add a user's values in the order of places, whatever the number of users
        found_UK, ideal_K = hits_UK.cumsum(1), gain_K.cumsum(0)
        dcg_UK = (hits_UK * gain_K).cumsum(1)
        precisions_UK = (hits_UK * found_UK / place_K).cumsum(1)
        first_U = torch.where(hits_UK.any(1), hits_UK.argmax(1), self.ks[-1])  # argmax of 0s and 1s: the first 1
        state = {}
        for k in self.ks:
            found_U = found_UK[:, k - 1]
            reachable_U = counts_U.clamp(max=k)
            state[f"recall@{k}"] = found_U / (counts_U if self.recall_by == "all" else reachable_U)
            state[f"ndcg@{k}"] = dcg_UK[:, k - 1] / ideal_K[reachable_U - 1]
            state[f"mrr@{k}"] = torch.where(first_U < k, 1.0 / (first_U + 1).double(), 0.0)
            state[f"hit_rate@{k}"] = (found_U > 0).double()
            state[f"precision@{k}"] = found_U / k
            state[f"map@{k}"] = precisions_UK[:, k - 1] / (counts_U if self.map_by == "all" else reachable_U)
        return state

    def merge(self, states: Sequence[State]) -> State:
        """The values of all users, one state after the other. No states: no users."""
        none = torch.zeros(0, dtype=torch.float64)
        return {name: torch.cat([none, *(state[name] for state in states)]) for name in self.names}

    def per_user(self, state: State) -> dict[str, npt.NDArray[np.float64]]:
        """Every metric's values, one per user who has a relevant item, in the order of the states merged."""
        return {name: state[name].numpy() for name in self.names}

    def finish(self, state: State) -> dict[str, float]:
        """The means over users; NaN without any."""
        return {name: mean(values) for name, values in self.per_user(state).items()}


def _hits(top_UK: Tensor, row_of_value: Tensor, values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Whether every place of every list is a hit ([users, k] float64), and each user's number of relevant codes."""
    users, width = top_UK.shape
    codes, dense = torch.unique(torch.cat([top_UK.reshape(-1), values]), return_inverse=True)
    # (user, code) as one number; dense codes, so that large ids cannot overflow it
    row_of_place = torch.arange(users).repeat_interleave(width)
    listed = row_of_place * len(codes) + dense[: users * width]
    listed_once = listed[top_UK.reshape(-1) >= 0]
    if len(torch.unique(listed_once)) != len(listed_once):
        raise DataError("a list of recommendations holds a code twice", hint="pad short lists with -1")
    wanted = torch.unique(row_of_value * len(codes) + dense[users * width :])
    hits = (torch.isin(listed, wanted) & (top_UK.reshape(-1) >= 0)).view(users, width)
    counts_U = torch.bincount(wanted // max(len(codes), 1), minlength=users)
    padded = torch.zeros(users, k, dtype=torch.float64)
    padded[:, :width] = hits
    return padded, counts_U
