"""Products of every two fields, and a multi-layer perceptron on top.

Naumov et al., "Deep learning recommendation model for personalization and recommendation systems", 2019.

Shapes: B rows, F categorical columns (and one more for the numbers), D width of a vector, P pairs of fields.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from falconet.batch import Batch
from falconet.models.base import MODELS
from falconet.models.ranker import Ranker, at_least, some
from falconet.nn.inputs import Inputs
from falconet.nn.interaction import PairProducts
from falconet.nn.mlp import MLP
from falconet.schema import Schema


@MODELS.register()
class DLRM(Ranker):
    """Products of every two fields, the numbers being one field, and a perceptron on them.

    The continuous columns pass the bottom layers and become one vector as wide as an embedding; the top layers see it
    beside the products.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Ranker.Config):
        dim: int = 16  # width of all embeddings
        bottom: tuple[int, ...] = (64, 32)  # layers between the numbers and their vector
        top: tuple[int, ...] = (128, 64)

        def __post_init__(self) -> None:
            super().__post_init__()
            at_least(self, 1, "dim", "bottom")
            some(self, "top")

    config: Config

    def __init__(self, schema: Schema, config: Config) -> None:
        super().__init__(schema, config)
        self.inputs = Inputs(
            self.columns, config.dim, config.pooling, soft=config.soft_numbers, list_weights=config.list_weights
        )
        self.bottom = None
        fields = self.inputs.fields
        if self.inputs.plain:
            self.bottom = MLP(self.inputs.plain, (*config.bottom, config.dim), batch_norm=config.batch_norm)
            fields += 1
        self.pairs = PairProducts(fields)
        width = fields * (fields - 1) // 2 + (config.dim if self.bottom else 0)
        self.top = MLP(width, config.top, 1, dropout=config.dropout, batch_norm=config.batch_norm)

    @classmethod
    def debug(cls) -> Config:
        return cls.Config(dim=4, bottom=(4,), top=(8,))

    def forward(self, batch: Batch) -> Tensor:
        seen = []
        fields_BFD = self.inputs.vectors(batch)
        if self.bottom is not None:
            numbers_BD = self.bottom(self.inputs.numbers(batch))
            fields_BFD = torch.cat([numbers_BD.unsqueeze(1), fields_BFD], dim=1)
            seen.append(numbers_BD)
        result: Tensor = self.top(torch.cat([*seen, self.pairs(fields_BFD)], dim=1)).squeeze(1)
        return result
