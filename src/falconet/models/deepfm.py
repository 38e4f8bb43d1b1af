"""A factorisation machine and a multi-layer perceptron on the same vectors, added up.

Guo et al., "DeepFM: a factorization-machine based neural network for CTR prediction", IJCAI 2017.

Shapes: B rows, F fields (categorical and continuous columns), D width of a vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from falconet.batch import Batch
from falconet.models.base import MODELS
from falconet.models.ranker import Ranker, at_least, some
from falconet.nn.inputs import Inputs, Linear
from falconet.nn.interaction import sum_of_pairs
from falconet.nn.mlp import MLP
from falconet.nn.numbers import NumberVectors
from falconet.schema import Schema


@MODELS.register()
class DeepFM(Ranker):
    """A linear model, the products of all pairs of fields, and a perceptron on the same vectors, added up.

    A continuous column is a field as well: its value times a vector of its own.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Ranker.Config):
        dim: int = 16  # width of all vectors
        hidden: tuple[int, ...] = (128, 64)

        def __post_init__(self) -> None:
            super().__post_init__()
            at_least(self, 1, "dim")
            some(self, "hidden")

    config: Config

    def __init__(self, schema: Schema, config: Config) -> None:
        super().__init__(schema, config)
        self.linear = Linear(self.columns, config.list_weights)
        self.inputs = Inputs(
            self.columns, config.dim, config.pooling, soft=config.soft_numbers, list_weights=config.list_weights
        )
        self.numbers = NumberVectors(self.inputs.plain, config.dim) if self.inputs.plain else None
        fields = self.inputs.fields + self.inputs.plain
        self.deep = MLP(fields * config.dim, config.hidden, 1, dropout=config.dropout, batch_norm=config.batch_norm)

    @classmethod
    def debug(cls) -> Config:
        return cls.Config(dim=4, hidden=(8,))

    def forward(self, batch: Batch) -> Tensor:
        fields_BFD = self._fields(batch)
        result: Tensor = self.linear(batch) + sum_of_pairs(fields_BFD) + self.deep(fields_BFD.flatten(1)).squeeze(1)
        return result

    def _fields(self, batch: Batch) -> Tensor:
        if self.numbers is None:
            return self.inputs.vectors(batch)
        numbers_BCD = self.numbers(self.inputs.numbers(batch))
        if not self.inputs.fields:
            result: Tensor = numbers_BCD
            return result
        return torch.cat([self.inputs.vectors(batch), numbers_BCD], dim=1)
