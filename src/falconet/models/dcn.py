"""Explicit crosses of the inputs, then or beside a multi-layer perceptron.

Wang et al., "DCN V2: improved deep & cross network and practical lessons for web-scale learning to rank systems",
WWW 2021.

Shapes: B rows, W width of all inputs side by side, H width of the last hidden layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from falconet.batch import Batch
from falconet.errors import ConfigError
from falconet.models.base import MODELS
from falconet.models.ranker import Ranker, at_least, some
from falconet.nn.inputs import Inputs
from falconet.nn.interaction import CrossNetwork
from falconet.nn.mlp import MLP
from falconet.schema import Schema


@MODELS.register()
class DCN(Ranker):
    """Cross layers whose output the perceptron reads ("stacked"), or that stand beside it ("parallel").

    `rank` makes each cross layer a product of two thin matrices, `experts` a mixture of several of them.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Ranker.Config):
        dim: int = 16  # width of all embeddings
        structure: Literal["stacked", "parallel"] = "stacked"
        crosses: int = 3  # cross layers
        rank: int | None = None  # of their matrices; None: full
        experts: int = 1  # low-rank matrices per cross layer
        hidden: tuple[int, ...] = (128, 64)

        def __post_init__(self) -> None:
            super().__post_init__()
            at_least(self, 1, "dim", "crosses", "rank", "experts")
            some(self, "hidden")
            if self.structure not in ("stacked", "parallel"):
                raise ConfigError(f"DCN structure={self.structure!r}", hint='"stacked" or "parallel"')
            if self.experts > 1 and self.rank is None:
                raise ConfigError(f"DCN experts={self.experts} without a rank", hint="set `rank`, well below the width")

    config: Config

    def __init__(self, schema: Schema, config: Config) -> None:
        super().__init__(schema, config)
        self.inputs = Inputs(
            self.columns, config.dim, config.pooling, soft=config.soft_numbers, list_weights=config.list_weights
        )
        width = self.inputs.width
        self.cross = CrossNetwork(width, config.crosses, config.rank, config.experts)
        self.deep = MLP(width, config.hidden, dropout=config.dropout, batch_norm=config.batch_norm)
        self.last = nn.Linear(self.deep.width + (width if config.structure == "parallel" else 0), 1)

    @classmethod
    def debug(cls) -> Config:
        return cls.Config(dim=2, crosses=2, hidden=(8,))

    def forward(self, batch: Batch) -> Tensor:
        start_BW = self.inputs(batch)
        crossed_BW = self.cross(start_BW)
        if self.config.structure == "stacked":
            seen = self.deep(crossed_BW)
        else:
            seen = torch.cat([crossed_BW, self.deep(start_BW)], dim=1)
        result: Tensor = self.last(seen).squeeze(1)
        return result
