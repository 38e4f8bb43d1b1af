"""YouTubeDNN: what a user has seen, through a network, to a softmax over all items.

Shapes: B rows, D width of the vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from falconet.batch import Batch
from falconet.errors import ConfigError
from falconet.models.base import MODELS, Retriever, history_of
from falconet.nn.dropout import drop_values
from falconet.nn.embedding import Tables
from falconet.nn.inputs import Inputs
from falconet.nn.item_loss import WHOLE_CATALOGUE, ItemLoss, ItemLossConfig
from falconet.nn.mlp import MLP
from falconet.schema import Schema, Tag


@MODELS.register()
class YouTubeDNN(Retriever):
    """The user's columns side by side, the history as the mean of its items' embeddings, through a multi-layer
    perceptron; the item is a row of weights and a bias (Covington et al., "Deep neural networks for YouTube
    recommendations", RecSys 2016).

    The item's own columns play no part: what an item is, is learned from who takes it.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config:
        dim: int = 65  # width of the vectors, the item's bias included
        embedding: int = 64  # width of each user column
        hidden: tuple[int, ...] = (128,)  # layers between the columns and the user's vector
        dropout: float = 0.0
        batch_norm: bool = False
        history_dropout: float = 0.3  # share of a history that a training row does not see
        objective: ItemLossConfig = WHOLE_CATALOGUE

        def __post_init__(self) -> None:
            if self.dim < 2 or self.embedding < 1:
                raise ConfigError(
                    f"YouTubeDNN dim={self.dim}, embedding={self.embedding}",
                    hint="at least 2, of which the last is the bias, and 1",
                )
            if not 0 <= self.history_dropout < 1:
                raise ConfigError(f"YouTubeDNN history_dropout={self.history_dropout}", hint="from 0 to below 1")

    config: Config

    def __init__(self, schema: Schema, config: Config) -> None:
        super().__init__(schema, config)
        self.history = history_of(schema, self.item_column, "YouTubeDNN").name
        known = schema.without_tags(Tag.TARGET, Tag.WEIGHT, Tag.ID)
        side = (c for c in known if {Tag.USER, Tag.CONTEXT} & c.tags and {Tag.CATEGORICAL, Tag.CONTINUOUS} & c.tags)
        self.inputs = Inputs(Schema(tuple(side)), config.embedding)
        self.layers = MLP(
            self.inputs.width, config.hidden, config.dim - 1, dropout=config.dropout, batch_norm=config.batch_norm
        )
        self.items = Tables([self.item_column], config.dim)
        self.objective = ItemLoss(config.objective, self.item_column.first_code, config.dim)

    @classmethod
    def debug(cls) -> Config:
        return cls.Config(dim=5, embedding=4, hidden=(8,))

    def user(self, batch: Batch) -> Tensor:
        if self.training and self.config.history_dropout:
            batch = drop_values(batch, (self.history,), self.config.history_dropout)
        user_BD: Tensor = self.layers.rest(self.inputs.project(batch, self.layers.first))
        return torch.cat([user_BD, torch.ones_like(user_BD[:, :1])], dim=1)

    def item(self, batch: Batch) -> Tensor:
        return self._items(self.item_codes(batch))

    def loss(self, batch: Batch) -> Tensor:
        losses_B: Tensor = self.objective(self.user(batch), self.item_codes(batch), self._items, self.counts)
        return losses_B

    def _items(self, codes: Tensor) -> Tensor:
        return self.items.rows(self.item_column.name, codes)
