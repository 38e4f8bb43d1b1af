"""iALS: factors of implicit feedback by alternating least squares, with the items nobody was shown as weak negatives.

Shapes: B rows, R rows of one size class, L items of a row, N codes of the catalogue, D factors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from falconet.batch import Batch, Ragged
from falconet.errors import ConfigError
from falconet.models.base import MODELS
from falconet.models.closed_form import ClosedForm, Interactions
from falconet.schema import Schema

_NUMBERS = 2**24
"""No tensor of gathered factors holds more numbers than this (unless a single row does)."""


@MODELS.register()
class IALS(ClosedForm):
    """Σ over what was taken (1 - u·v)² + unobserved Σ over all pairs (u·v)² + Σ regularisation · weight · |factor|²
    (Hu et al., "Collaborative filtering for implicit feedback datasets", ICDM 2008, in the form of Rendle et al.,
    "Revisiting the performance of iALS on item recommendation benchmarks", RecSys 2022).

    The weight of a factor's regularisation is (its interactions + unobserved · the other side's number)^`frequency`: 0
    regularises all alike, 1 the more the more there is. A user's factors are solved for from the history, in training
    as in a server, so that a stranger with a history has them too.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config:
        dim: int = 64
        unobserved: float = 0.1  # weight of a pair that was not seen, where one that was has 1
        regularisation: float = 0.02
        frequency: float = 1.0
        epochs: int = 16  # sweeps over users and items
        init: float = 0.1  # standard deviation of the vectors' lengths at the start
        seed: int = 0

        def __post_init__(self) -> None:
            if self.dim < 1 or self.epochs < 1:
                raise ConfigError(f"IALS dim={self.dim}, epochs={self.epochs}", hint="at least 1")
            for name in ("unobserved", "regularisation", "init"):
                if getattr(self, name) <= 0:
                    raise ConfigError(f"IALS {name}={getattr(self, name)}", hint="above 0")

    no_program: ClassVar[Mapping[str, str]] = {
        "user": "iALS solves a system of equations for every person, over the items that the person took"
    }
    config: Config
    factors: Tensor
    gram: Tensor

    def __init__(self, schema: Schema, config: Config) -> None:
        super().__init__(schema, config)
        self.register_buffer("factors", torch.zeros(len(self.counts), config.dim))
        self.register_buffer("gram", torch.zeros(config.dim, config.dim))
        self.register_buffer("known", torch.zeros(()))  # items that anybody took

    @classmethod
    def debug(cls) -> Config:
        return cls.Config(dim=4, epochs=3)

    known: Tensor

    def user(self, batch: Batch) -> Tensor:
        return self._solve(self.taken(batch), self.factors, self.gram, self.known)

    def item(self, batch: Batch) -> Tensor:
        return self.factors[self.item_codes(batch)]

    def scores(self, batch: Batch) -> Tensor:
        return self.user(batch) @ self.factors.T

    @torch.no_grad()
    def solve(self, interactions: Interactions) -> None:
        users, items = interactions.by_user(), interactions.by_item(len(self.counts))
        there_N = items.lengths > 0
        draw = torch.Generator().manual_seed(self.config.seed)
        start = torch.randn(self.factors.shape, generator=draw) * self.config.init / self.config.dim**0.5
        item_ND = start * there_N[:, None]
        for _ in range(self.config.epochs):
            user_UD = self._solve(users, item_ND, item_ND.T @ item_ND, there_N.sum())
            item_ND = self._solve(items, user_UD, user_UD.T @ user_UD, torch.tensor(len(users)))
            item_ND[~there_N] = 0.0
        self.factors.copy_(item_ND)
        self.gram.copy_(item_ND.T @ item_ND)
        self.known.copy_(there_N.sum())

    def _solve(self, lists: Ragged, factors_ND: Tensor, gram_DD: Tensor, others: Tensor) -> Tensor:
        """The factors of each list of rows of `factors_ND`, of which there are `others` in all: [len(lists), D]."""
        config = self.config
        solved = torch.zeros(len(lists), config.dim, device=factors_ND.device)
        for rows_R, places_RL in _classes(lists, _NUMBERS // config.dim):
            there_RL = places_RL >= 0
            taken_RLD = factors_ND[places_RL.clamp(min=0)] * there_RL[..., None]
            n_R = there_RL.sum(1)
            weight_R = (n_R + config.unobserved * others).pow(config.frequency) * config.regularisation
            left_RDD = taken_RLD.transpose(1, 2) @ taken_RLD + config.unobserved * gram_DD
            left_RDD.diagonal(dim1=1, dim2=2).add_(weight_R[:, None].clamp(min=1e-12))
            solved[rows_R] = torch.linalg.solve(left_RDD, taken_RLD.sum(1))
        return solved


def _classes(lists: Ragged, most: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Lists of about the same length together: their rows [R], and their values [R, L], filled up with -1."""
    order = lists.lengths.argsort(stable=True)
    lengths = lists.lengths[order].tolist()
    start = 0
    while start < len(lengths):
        stop = start + 1
        while (
            stop < len(lengths)
            and (stop + 1 - start) * lengths[stop] <= most
            and lengths[stop] <= 2 * lengths[start] + 8
        ):
            stop += 1
        rows_R = order[start:stop]
        some = lists.take(rows_R)
        place_L = torch.arange(max(lengths[stop - 1], 1), device=rows_R.device)
        there_RL = place_L < some.lengths[:, None]
        values_RL = torch.full(there_RL.shape, -1, device=rows_R.device)
        values_RL[there_RL] = some.values
        yield rows_R, values_RL
        start = stop
