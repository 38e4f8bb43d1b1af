"""GRU4Rec: a recurrent network that reads a session in order and predicts the next item.

Shapes: B rows, L places, D width of a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from falconet.errors import ConfigError
from falconet.models.base import MODELS
from falconet.models.sequence import SequenceModel
from falconet.nn.item_loss import WHOLE_CATALOGUE, ItemLossConfig
from falconet.schema import Schema


@MODELS.register()
class GRU4Rec(SequenceModel):
    """Gated recurrent units over the history (Hidasi et al., "Session-based recommendations with recurrent neural
    networks", ICLR 2016), with one table for what goes in and comes out (Hidasi and Karatzoglou, CIKM 2018, whose loss
    is {loss = "bpr_max", negatives = "mixed"}). The default is the softmax over all items.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config:
        dim: int = 64
        length: int = 50  # items of the history that are read, the last ones
        layers: int = 1
        hidden: int = 128  # of the recurrent units
        dropout: float = 0.2
        objective: ItemLossConfig = WHOLE_CATALOGUE

        def __post_init__(self) -> None:
            if self.layers < 1 or self.hidden < 1:
                raise ConfigError(f"GRU4Rec layers={self.layers}, hidden={self.hidden}", hint="at least 1")
            if not 0 <= self.dropout < 1:
                raise ConfigError(f"GRU4Rec dropout={self.dropout}", hint="from 0 to below 1")

    no_program: ClassVar[Mapping[str, str]] = {
        "user": "torch.export cannot trace recurrent layers for any number of rows"
    }
    config: Config

    def __init__(self, schema: Schema, config: Config) -> None:
        super().__init__(schema, config, dim=config.dim, length=config.length, objective=config.objective)
        self.dropout = nn.Dropout(config.dropout)
        self.cells = nn.GRU(config.dim, config.hidden, config.layers, batch_first=True)
        self.outward = nn.Linear(config.hidden, config.dim)

    @classmethod
    def debug(cls) -> Config:
        return cls.Config(dim=8, length=4, hidden=8, dropout=0.0)

    def states(self, inputs_BLD: Tensor) -> Tensor:
        if not len(inputs_BLD):  # the units refuse no rows
            states_BLH = self._none(inputs_BLD)
        else:
            states_BLH, _ = self.cells(self.dropout(inputs_BLD))
        result: Tensor = self.outward(self.dropout(states_BLH))
        return result

    def _none(self, inputs_BLD: Tensor) -> Tensor:
        """No states, from the parameters all the same: processes whose share of a batch is empty learn with others."""
        nothing = torch.stack([inputs_BLD.sum(), *(weight.sum() for weight in self.cells.parameters())]).sum() * 0
        return nothing.expand(0, inputs_BLD.shape[1], self.config.hidden)
