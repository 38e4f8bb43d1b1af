"""A linear model that remembers and a multi-layer perceptron that generalises, added up.

Cheng et al., "Wide & deep learning for recommender systems", DLRS 2016. Both parts are trained together.

Shapes: B rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from falconet.batch import Batch
from falconet.models.base import MODELS
from falconet.models.ranker import Ranker, at_least, some
from falconet.nn.inputs import Inputs, Linear
from falconet.nn.mlp import MLP
from falconet.schema import Schema


@MODELS.register()
class WideDeep(Ranker):
    """A linear model beside a perceptron on embeddings.

    The linear part is for crosses: columns that `ops.HashedCross` made from two others, which `wide` names and `deep`
    leaves out. Without the two settings both parts read every column.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Ranker.Config):
        dim: int = 16  # width of all embeddings
        hidden: tuple[int, ...] = (128, 64)
        wide: tuple[str, ...] | None = None  # columns of the linear part; None: all of the model's
        deep: tuple[str, ...] | None = None  # columns of the perceptron; None: all of the model's

        def __post_init__(self) -> None:
            super().__post_init__()
            at_least(self, 1, "dim")
            some(self, "hidden")

    config: Config

    def __init__(self, schema: Schema, config: Config) -> None:
        super().__init__(schema, config)
        self.wide = Linear(self.part("wide", config.wide), config.list_weights)
        deep = self.part("deep", config.deep)
        self.inputs = Inputs(
            deep, config.dim, config.pooling, soft=config.soft_numbers, list_weights=config.list_weights
        )
        self.layers = MLP(self.inputs.width, config.hidden, 1, dropout=config.dropout, batch_norm=config.batch_norm)

    @classmethod
    def debug(cls) -> Config:
        return cls.Config(dim=4, hidden=(8,))

    def forward(self, batch: Batch) -> Tensor:
        deep_B = self.layers.rest(self.inputs.project(batch, self.layers.first)).squeeze(1)
        result: Tensor = self.wide(batch) + deep_B
        return result
