"""Embeddings side by side and a multi-layer perceptron: the network of NVTabular's MovieLens example.

Shapes: B rows, C continuous columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from falconet.batch import Batch
from falconet.errors import ColumnNotFoundError, ConfigError, SchemaError
from falconet.models.base import MODELS, Model
from falconet.nn import mlp
from falconet.nn.batchnorm import BatchNorm
from falconet.nn.embedding import Tables
from falconet.nn.loss import bce, mse
from falconet.schema import Schema, Tag, get_embedding_sizes


@MODELS.register()
class MLP(Model):
    """Predicts one number per row: a logit with the loss "bce", the target itself with "mse".

    Every categorical column has an embedding as wide as `get_embedding_sizes` says, lists are bags; continuous columns
    pass a BatchNorm. Without hidden layers it is a linear model of these inputs.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config:
        hidden: tuple[int, ...] = (128, 128, 128)
        dropout: float = 0.0
        dim: int | None = None  # one width for all embeddings; None: by cardinality
        pooling: Literal["mean", "sum"] = "mean"  # how the vectors of a list become one
        loss: Literal["bce", "mse"] = "bce"
        columns: tuple[str, ...] | None = None  # the inputs; None: every categorical and continuous column
        target: str | None = None  # None: the schema's only target

        def __post_init__(self) -> None:
            if any(width < 1 for width in self.hidden):
                raise ConfigError(f"MLP hidden={self.hidden} has a layer without units")
            if not 0 <= self.dropout < 1:
                raise ConfigError(f"MLP dropout={self.dropout}", hint="from 0 to below 1")
            if self.dim is not None and self.dim < 1:
                raise ConfigError(f"MLP dim={self.dim}", hint="at least 1, or none to go by cardinality")

    config: Config

    def __init__(self, schema: Schema, config: Config) -> None:
        super().__init__(schema, config)
        inputs = _inputs(schema, config)
        self.target = _target(schema, config)
        categorical = inputs.select(Tag.CATEGORICAL).columns
        self.continuous = inputs.select(Tag.CONTINUOUS).names
        sizes = get_embedding_sizes(inputs)
        self.tables = Tables(
            categorical, {name: config.dim or width for name, (_, width) in sizes.items()}, config.pooling
        )
        self.norm = BatchNorm(len(self.continuous), affine=False) if self.continuous else None
        width = self.tables.width + len(self.continuous)
        self.layers = mlp.MLP(width, config.hidden, 1, dropout=config.dropout)
        if not config.hidden:  # a linear model has no symmetry to break, and is closer to its end from zero
            torch.nn.init.zeros_(self.layers.first.weight)

    def forward(self, batch: Batch) -> Tensor:
        numbers_BC = self._numbers(batch)
        if self.tables.columns:
            first = self.tables.project(batch, self.layers.first, extra=numbers_BC)
        else:
            assert numbers_BC is not None
            first = self.layers.first(numbers_BC)
        result: Tensor = self.layers.rest(first).squeeze(1)
        return result

    def loss(self, batch: Batch) -> Tensor:
        if self.target is None:
            raise SchemaError("MLP cannot learn: the schema has no column tagged `target`")
        if self.target not in batch.targets:
            raise ColumnNotFoundError.of(self.target, batch.targets, where="the batch's targets")
        loss = bce if self.config.loss == "bce" else mse
        return loss(self(batch), batch.targets[self.target])

    def _numbers(self, batch: Batch) -> Tensor | None:
        if self.norm is None:
            return None
        for name in self.continuous:
            if name not in batch.features:
                raise ColumnNotFoundError.of(name, batch.features, where="the batch")
        values = [batch.features[name] for name in self.continuous]
        numbers_BC = torch.stack([x.float() for x in values if isinstance(x, Tensor)], dim=1)
        result: Tensor = self.norm(numbers_BC)
        return result


def _inputs(schema: Schema, config: MLP.Config) -> Schema:
    known = schema.without_tags(Tag.TARGET, Tag.WEIGHT)
    chosen = known if config.columns is None else known.only(config.columns)
    inputs = Schema(tuple(c for c in chosen if {Tag.CATEGORICAL, Tag.CONTINUOUS} & c.tags))
    if config.columns is not None and len(inputs) < len(chosen):
        odd = next(c.name for c in chosen if c.name not in inputs)
        raise SchemaError(f"MLP cannot read `{odd}`, which is neither categorical nor continuous")
    if not len(inputs):
        raise SchemaError(
            "MLP needs a categorical or continuous column, the schema has none",
            hint=f"it has {', '.join(schema.names) or 'no columns'}",
        )
    for column in inputs.select(Tag.CONTINUOUS):
        if column.is_list:
            raise SchemaError(f"MLP takes one number per row, `{column.name}` holds lists")
    return inputs


def _target(schema: Schema, config: MLP.Config) -> str | None:
    targets = schema.select(Tag.TARGET).names
    if config.target is not None:
        if config.target not in targets:
            raise ColumnNotFoundError.of(config.target, targets, where="the schema's targets")
        return config.target
    if len(targets) > 1:
        raise SchemaError(f"MLP learns one target, the schema has {', '.join(targets)}", hint="set `target` to one")
    return targets[0] if targets else None
