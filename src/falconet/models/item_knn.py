"""ItemKNN: what is taken by the same people, by one of four measures.

Shapes: B rows, U users, N codes of the catalogue, K neighbours of an item, V items of all histories.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from falconet.batch import Batch
from falconet.errors import ConfigError
from falconet.models.base import MODELS
from falconet.models.closed_form import Interactions, ItemScorer, total
from falconet.schema import Schema

_BLOCK = 512  # items whose likeness to all others is computed at once


@MODELS.register()
class ItemKNN(ItemScorer):
    """Scores are the sums over the history of how alike an item is, which counts for each item's nearest neighbours
    (Sarwar et al., "Item-based collaborative filtering recommendation algorithms", WWW 2001).

    With n_ij people who took both: "cosine" n_ij / √(n_i n_j), "jaccard" n_ij / (n_i + n_j - n_ij), "lift" n_ij /
    (n_i n_j), "cooccurrence" n_ij. SAR (github.com/recommenders-team/recommenders), without its decay in time, is
    "jaccard" with all neighbours and `shrink` 0. `shrink` is added to what divides, so that few people prove little.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config:
        similarity: Literal["cosine", "jaccard", "lift", "cooccurrence"] = "cosine"
        neighbours: int | None = 20  # of every item; None: all, a square of the items in memory
        shrink: float = 30.0

        def __post_init__(self) -> None:
            if self.neighbours is not None and self.neighbours < 1:
                raise ConfigError(f"ItemKNN neighbours={self.neighbours}", hint="at least 1, or none for all")
            if self.shrink < 0:
                raise ConfigError(f"ItemKNN shrink={self.shrink}", hint="at least 0")

    config: Config
    neighbours: Tensor
    likeness: Tensor

    def __init__(self, schema: Schema, config: Config) -> None:
        super().__init__(schema, config)
        n = len(self.counts)
        k = n if config.neighbours is None else min(config.neighbours, n)
        self.register_buffer("likeness", torch.zeros(n, k))
        # With all neighbours there is nothing to choose: an item's stand in the order of their codes.
        self.register_buffer("neighbours", torch.zeros(n, 0 if k == n else k, dtype=torch.int64))

    @classmethod
    def debug(cls) -> Config:
        return cls.Config(neighbours=5)

    def scores(self, batch: Batch) -> Tensor:
        taken, counts_V = self.counted(batch)
        if not self.neighbours.shape[1]:
            return total(taken, self.likeness, counts_V)
        scores_BN = torch.zeros(batch.rows, len(self.counts), device=self.counts.device)
        places_VK = taken.row_of_value()[:, None] * len(self.counts) + self.neighbours[taken.values]
        likeness_VK = self.likeness[taken.values]
        if counts_V is not None:
            likeness_VK = likeness_VK * counts_V[:, None]
        scores_BN.view(-1).index_add_(0, places_VK.view(-1), likeness_VK.view(-1))
        return scores_BN

    def pulls(self, taken_H: Tensor, codes_K: Tensor) -> Tensor:
        if not self.neighbours.shape[1]:
            return self.likeness[taken_H[:, None], codes_K]
        same_HNK = self.neighbours[taken_H][:, :, None] == codes_K
        return (self.likeness[taken_H][:, :, None] * same_HNK).sum(1)

    @torch.no_grad()
    def solve(self, interactions: Interactions) -> None:
        people = interactions.by_item(len(self.counts))
        taken_by_N = people.lengths.float()
        users = int(people.values.max()) + 1
        place = torch.stack([people.row_of_value(), people.values])
        item_user_NU = torch.sparse_coo_tensor(
            place, torch.ones(len(people.values)), (len(self.counts), users), check_invariants=False
        ).coalesce()
        for start in range(0, len(self.counts), _BLOCK):
            block = people[start : start + _BLOCK]
            x_UK = torch.zeros(users, len(block))
            x_UK[block.values, block.row_of_value()] = 1.0
            both_KN = torch.sparse.mm(item_user_NU, x_UK).T
            codes_K = torch.arange(start, start + len(block))
            alike_KN = self._alike(both_KN, taken_by_N[codes_K, None], taken_by_N)
            alike_KN[torch.arange(len(block)), codes_K] = 0.0
            if not self.neighbours.shape[1]:
                self.likeness[codes_K] = alike_KN
            else:
                self.likeness[codes_K], self.neighbours[codes_K] = alike_KN.topk(self.likeness.shape[1], dim=1)

    def _alike(self, both: Tensor, mine: Tensor, theirs: Tensor) -> Tensor:
        match self.config.similarity:
            case "cosine":
                below = (mine * theirs).sqrt()
            case "jaccard":
                below = mine + theirs - both
            case "lift":
                below = mine * theirs
            case "cooccurrence":
                below = torch.ones_like(both)
        return both / (below + self.config.shrink).clamp(min=1e-9)
