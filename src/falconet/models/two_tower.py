"""A user tower and an item tower whose product is the score, trained against the other items of the batch.

Shapes: B rows, D width of the vectors, C continuous columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from falconet.batch import Batch, Ragged
from falconet.errors import ConfigError, SchemaError
from falconet.models.base import MODELS, Retriever
from falconet.nn.dropout import drop_values
from falconet.nn.embedding import Tables
from falconet.nn.item_loss import IN_BATCH, ItemLoss, ItemLossConfig
from falconet.schema import Schema, Tag


@MODELS.register()
class TwoTower(Retriever):
    """Two sums of embeddings, and sampled softmax with the logQ correction (Yi et al., RecSys 2019).

    The user's vector is the mean over the history, from a table of its own (an item plays another part as something
    one has seen than as something to be found), plus the embeddings of the other user and context columns. The item's
    vector is its own embedding plus those of its other columns, lists as means. The last dimension is the item's bias:
    a learned one plus a learned multiple of its log popularity.

    With `unknown_items` an item that training has no row of is the unknown one and what its other columns say.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config:
        dim: int = 64  # width of the vectors, the bias included, hence of the index
        history_dropout: float = 0.3  # share of a history that a training row does not see
        unknown_items: float = 0.0  # share of the training rows whose item is known by its other columns alone
        user_id: bool = False  # an embedding per user: for large data, and useless to new users
        normalize: bool = False  # unit vectors, the bias apart
        temperature: float = 1.0  # divides the product; around 0.1 for unit vectors
        objective: ItemLossConfig = IN_BATCH  # a tower knows the items of its rows alone

        def __post_init__(self) -> None:
            if self.dim < 2:
                raise ConfigError(f"TwoTower dim={self.dim}", hint="at least 2: the last dimension is the bias")
            if not 0 <= self.history_dropout < 1:
                raise ConfigError(f"TwoTower history_dropout={self.history_dropout}", hint="from 0 to below 1")
            if not 0 <= self.unknown_items < 1:
                raise ConfigError(f"TwoTower unknown_items={self.unknown_items}", hint="from 0 to below 1")
            if self.temperature <= 0:
                raise ConfigError(f"TwoTower temperature={self.temperature}", hint="above 0")
            if self.objective.negatives != "batch":
                raise ConfigError(
                    f"TwoTower objective.negatives={self.objective.negatives!r}",
                    hint='"batch": an item\'s vector is made of its columns, which only the rows of a batch bring',
                )

    config: Config

    def __init__(self, schema: Schema, config: Config) -> None:
        super().__init__(schema, config)
        users = _side(schema, Tag.USER, Tag.CONTEXT)
        if not config.user_id:
            users = users.without(users.select(Tag.ID).names)
        items = _side(schema, Tag.ITEM)
        if config.unknown_items and len(items) == 1:
            raise SchemaError(
                f"TwoTower has nothing to tell unknown items by: no column tagged `item` beside `{items.names[0]}`",
                hint="a table of items with columns such as genres, or `unknown_items` = 0",
            )
        if not len(users):
            raise SchemaError(
                "TwoTower has nothing to tell users by: no column tagged `user` or `context` beside the id",
                hint="`ops.History` adds a history; `user_id = true` learns one vector per user",
            )
        self.history = tuple(c.name for c in users.select(Tag.SEQUENCE))
        self.user_tower = _Tower(users, config.dim)
        self.item_tower = _Tower(items, config.dim)
        self.popularity = nn.Parameter(torch.ones(()))
        self.objective = ItemLoss(config.objective, self.item_column.first_code, config.dim)

    @classmethod
    def debug(cls) -> Config:
        return cls.Config(dim=8)

    def user(self, batch: Batch) -> Tensor:
        if self.training and self.config.history_dropout:
            batch = drop_values(batch, self.history, self.config.history_dropout)
        user_BD = self._scaled(self.user_tower(batch)[:, :-1]) / self.config.temperature
        return torch.cat([user_BD, torch.ones_like(user_BD[:, :1])], dim=1)

    def item(self, batch: Batch) -> Tensor:
        codes_B = self._shown(self.item_codes(batch))
        item_BD = self.item_tower(replace(batch, features={**batch.features, self.item_column.name: codes_B}))
        bias_B = item_BD[:, -1] + self.popularity * self.counts[codes_B].log1p()
        return torch.cat([self._scaled(item_BD[:, :-1]), bias_B[:, None]], dim=1)

    def loss(self, batch: Batch) -> Tensor:
        """How each row's item stands out among the items of the global batch."""
        return self.objective.in_batch(self.user(batch), self.item(batch), self.item_codes(batch), self.counts)

    def _shown(self, codes_B: Tensor) -> Tensor:
        """The codes that the tower sees: the unknown one's for what training has no row of, and in training at random.

        The counts of reserved codes are 0, so a hidden item's popularity is too.
        """
        if not self.config.unknown_items:
            return codes_B
        hidden_B = self.counts[codes_B] == 0
        if self.training:
            hidden_B = hidden_B | (torch.rand(codes_B.shape, device=codes_B.device) < self.config.unknown_items)
        return codes_B.masked_fill(hidden_B, self.item_column.first_code - 1)

    def _scaled(self, vectors_BD: Tensor) -> Tensor:
        return F.normalize(vectors_BD, dim=1) if self.config.normalize else vectors_BD


class _Tower(nn.Module):
    """The sum of what the columns of one side say: [B, D]."""

    def __init__(self, columns: Schema, dim: int) -> None:
        super().__init__()
        categorical = columns.select(Tag.CATEGORICAL).columns
        self.continuous = columns.select(Tag.CONTINUOUS).names
        self.tables = Tables(categorical, dim, pooling="mean")
        self.linear = nn.Linear(len(self.continuous), dim) if self.continuous else None

    def forward(self, batch: Batch) -> Tensor:
        parts = list(self.tables(batch).values())
        if self.linear is not None:
            values_BC = torch.stack([_column(batch, name) for name in self.continuous], dim=1)
            parts.append(self.linear(values_BC))
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


def _side(schema: Schema, *sides: Tag) -> Schema:
    """The inputs of one tower: categorical and continuous columns of any of the sides, targets apart."""
    known = schema.without_tags(Tag.TARGET, Tag.WEIGHT)
    return Schema(tuple(c for c in known if {*sides} & c.tags and {Tag.CATEGORICAL, Tag.CONTINUOUS} & c.tags))


def _column(batch: Batch, name: str) -> Tensor:
    values = batch.features[name]
    if isinstance(values, Ragged) or values.ndim != 1:
        raise SchemaError(f"TwoTower takes one number per row, `{name}` holds lists")
    return values.float()
