"""EASE: a linear item-item model with a closed form, hard to beat where the catalogue is not too large.

Shapes: B rows, U users, N codes of the catalogue, M items that anybody took.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from falconet.batch import Batch, Ragged
from falconet.errors import ConfigError
from falconet.models.base import MODELS
from falconet.models.closed_form import Interactions, ItemScorer, total
from falconet.schema import Schema

_BLOCK = 1024  # users or items at once


@MODELS.register()
class EASE(ItemScorer):
    """Scores are the sums over the history of weights B between items (Steck, "Embarrassingly shallow autoencoders for
    sparse data", WWW 2019).

    B minimises |X - XB|² + regularisation |B|² with a zero diagonal: B = I - P / diag(P), P = (X'X + regularisation)⁻¹.
    The inverse is that of the users' products where they are fewer than the items (Woodbury's identity).
    """

    @dataclass(frozen=True, kw_only=True)
    class Config:
        regularisation: float = 100.0  # more for more data: some hundred on a million interactions
        max_items: int = 30_000  # the weights are a square of the items: 30,000 take 3.6 GB

        def __post_init__(self) -> None:
            if self.regularisation <= 0:
                raise ConfigError(f"EASE regularisation={self.regularisation}", hint="above 0")

    config: Config
    weights: Tensor

    def __init__(self, schema: Schema, config: Config) -> None:
        super().__init__(schema, config)
        n = len(self.counts)
        if n > config.max_items:
            raise ConfigError(
                f"EASE of {n:,} items needs {4 * n * n / 1e9:,.1f} GB, `max_items` is {config.max_items:,}",
                hint="a model with vectors, such as IALS or TwoTower, or a larger `max_items`",
            )
        self.register_buffer("weights", torch.zeros(n, n))

    def scores(self, batch: Batch) -> Tensor:
        taken, counts_V = self.counted(batch)
        return total(taken, self.weights, counts_V)

    def pulls(self, taken_H: Tensor, codes_K: Tensor) -> Tensor:
        return self.weights[taken_H[:, None], codes_K]

    @torch.no_grad()
    def solve(self, interactions: Interactions) -> None:
        there_M = self.counts.nonzero().squeeze(1)
        lists = interactions.by_user()
        place_N = torch.zeros_like(self.counts, dtype=torch.int64)
        place_N[there_M] = torch.arange(len(there_M))
        lists = Ragged(place_N[lists.values], lists.offsets)
        solve = _by_users if len(lists) <= len(there_M) else _by_items
        self.weights.zero_()
        for start, block in solve(lists, len(there_M), self.config.regularisation):
            rows = torch.arange(start, start + block.shape[1])
            block[rows, rows - start] = 0
            self.weights[there_M[:, None], there_M[rows]] = block


def _by_users(lists: Ragged, items: int, regularisation: float) -> Iterator[tuple[int, Tensor]]:
    """Columns of -P / diag(P) from a given item on, the diagonal apart: [M, K]."""
    x_UM = _dense(lists, items)
    gram_UU = (x_UM @ x_UM.T).double()
    gram_UU.diagonal().add_(regularisation)
    factor_UU = torch.linalg.cholesky(gram_UU)
    for start in range(0, items, _BLOCK):
        block_UK = x_UM[:, start : start + _BLOCK]
        solved_UK = torch.cholesky_solve(block_UK.double(), factor_UU)
        diagonal_K = 1 - (block_UK * solved_UK).sum(0)  # of P, times the regularisation
        yield start, x_UM.T @ (solved_UK / diagonal_K).float()


def _by_items(lists: Ragged, items: int, regularisation: float) -> Iterator[tuple[int, Tensor]]:
    """The same through the inverse of the items' products."""
    gram_MM = torch.zeros(items, items, dtype=torch.float64)
    for start in range(0, len(lists), _BLOCK):
        x_KM = _dense(lists[start : start + _BLOCK], items)
        gram_MM += x_KM.T @ x_KM
    gram_MM.diagonal().add_(regularisation)
    inverse_MM = torch.cholesky_inverse(torch.linalg.cholesky(gram_MM))
    diagonal_M = inverse_MM.diagonal().clone()
    for start in range(0, items, _BLOCK):
        columns = slice(start, start + _BLOCK)
        yield start, -(inverse_MM[:, columns] / diagonal_M[columns]).float()


def _dense(lists: Ragged, items: int) -> Tensor:
    """1 where a list has an item: float32 of [lists, items]."""
    x = torch.zeros(len(lists), items)
    x[lists.row_of_value(), lists.values] = 1.0
    return x
