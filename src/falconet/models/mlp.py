"""Embeddings side by side and a multi-layer perceptron: the network of NVTabular's MovieLens example."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from falconet.batch import Batch
from falconet.models.base import MODELS
from falconet.models.ranker import Ranker, at_least
from falconet.nn import mlp
from falconet.nn.inputs import Inputs
from falconet.schema import Schema, get_embedding_sizes


@MODELS.register()
class MLP(Ranker):
    """Embeddings and numbers through a multi-layer perceptron.

    Every categorical column has an embedding as wide as `get_embedding_sizes` says, lists are bags; continuous columns
    pass a BatchNorm. Without hidden layers it is a linear model of these inputs.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Ranker.Config):
        hidden: tuple[int, ...] = (128, 128, 128)
        dim: int | None = None  # one width for all embeddings; None: by cardinality

        def __post_init__(self) -> None:
            super().__post_init__()
            at_least(self, 1, "hidden", "dim")

    config: Config

    def __init__(self, schema: Schema, config: Config) -> None:
        super().__init__(schema, config)
        sizes = {name: width for name, (_, width) in get_embedding_sizes(self.columns).items()}
        self.inputs = Inputs(
            self.columns,
            config.dim or sizes,
            config.pooling,
            soft=config.soft_numbers,
            list_weights=config.list_weights,
        )
        self.layers = mlp.MLP(self.inputs.width, config.hidden, 1, dropout=config.dropout, batch_norm=config.batch_norm)
        if not config.hidden:  # a linear model has no symmetry to break, and is closer to its end from zero
            torch.nn.init.zeros_(self.layers.first.weight)

    @classmethod
    def debug(cls) -> Config:
        return cls.Config(hidden=(8, 4), dim=4)

    def forward(self, batch: Batch) -> Tensor:
        result: Tensor = self.layers.rest(self.inputs.project(batch, self.layers.first)).squeeze(1)
        return result
