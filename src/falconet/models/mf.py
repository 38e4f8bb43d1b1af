"""Matrix factorisation: a vector for each user and each item, learned by whatever loss of items against items.

Shapes: B rows, D width of the vectors, N codes of the catalogue.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from falconet.batch import Batch
from falconet.errors import ConfigError
from falconet.models.base import MODELS, Retriever, one_id
from falconet.nn.embedding import Tables
from falconet.nn.item_loss import WHOLE_CATALOGUE, ItemLoss, ItemLossConfig
from falconet.schema import Schema, Tag


@MODELS.register()
class MF(Retriever):
    """The product of a user's and an item's embedding and the item's bias (Koren et al., "Matrix factorization
    techniques for recommender systems", Computer 2009; with BPR: Rendle et al., UAI 2009).

    BPR is `objective = {loss = "bpr", negatives = "uniform", per_row = true, samples = 1}`; its training needs a
    `table_weight_decay` of about 1, without which it learns the pairs by heart. The default is the softmax over the
    whole catalogue, for larger ones `negatives = "batch"` or `"mixed"`. Users must be known to training.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config:
        dim: int = 65  # width of the vectors, the item's bias included
        objective: ItemLossConfig = WHOLE_CATALOGUE

        def __post_init__(self) -> None:
            if self.dim < 2:
                raise ConfigError(f"MF dim={self.dim}", hint="at least 2: the last dimension is the bias")

    config: Config

    def __init__(self, schema: Schema, config: Config) -> None:
        super().__init__(schema, config)
        self.user_column = one_id(schema, Tag.USER, "MF")
        self.users = Tables([self.user_column], config.dim - 1)
        self.items = Tables([self.item_column], config.dim)
        self.objective = ItemLoss(config.objective, self.item_column.first_code, config.dim)

    @classmethod
    def debug(cls) -> Config:
        return cls.Config(dim=5)

    def user(self, batch: Batch) -> Tensor:
        user_BD = self.users(batch)[self.user_column.name]
        return torch.cat([user_BD, torch.ones_like(user_BD[:, :1])], dim=1)

    def item(self, batch: Batch) -> Tensor:
        return self._items(self.item_codes(batch))

    def loss(self, batch: Batch) -> Tensor:
        losses_B: Tensor = self.objective(self.user(batch), self.item_codes(batch), self._items, self.counts)
        return losses_B

    def _items(self, codes: Tensor) -> Tensor:
        return self.items.rows(self.item_column.name, codes)
