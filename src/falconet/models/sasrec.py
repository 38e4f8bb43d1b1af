"""SASRec: a transformer that reads the history in order and predicts the next item.

Shapes: B rows, L places, D width of a state, H heads of K numbers each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from falconet.errors import ConfigError
from falconet.models.base import MODELS
from falconet.models.sequence import SequenceModel
from falconet.nn.item_loss import WHOLE_CATALOGUE, ItemLossConfig
from falconet.schema import Schema


@MODELS.register()
class SASRec(SequenceModel):
    """Causal self-attention over the last items (Kang and McAuley, "Self-attentive sequential recommendation", ICDM
    2018). gSASRec (Petrov and Macdonald, RecSys 2023) is the objective {loss = "gbce", negatives = "uniform", per_row =
    true, samples = 256}; the paper's own is "bce" with one such sample. The default is the softmax over all items.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config:
        dim: int = 64
        length: int = 50  # items of the history that are read, the last ones
        blocks: int = 2
        heads: int = 1
        dropout: float = 0.2
        objective: ItemLossConfig = WHOLE_CATALOGUE

        def __post_init__(self) -> None:
            if self.blocks < 1 or self.heads < 1 or self.dim % self.heads:
                raise ConfigError(
                    f"SASRec blocks={self.blocks}, heads={self.heads}, dim={self.dim}",
                    hint="at least 1, and `dim` a multiple of `heads`",
                )
            if not 0 <= self.dropout < 1:
                raise ConfigError(f"SASRec dropout={self.dropout}", hint="from 0 to below 1")

    config: Config

    def __init__(self, schema: Schema, config: Config) -> None:
        super().__init__(schema, config, dim=config.dim, length=config.length, objective=config.objective)
        self.places = nn.Parameter(torch.randn(config.length + 1, config.dim) * 0.05)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(_Block(config.dim, config.heads, config.dropout) for _ in range(config.blocks))
        self.norm = nn.LayerNorm(config.dim)

    @classmethod
    def debug(cls) -> Config:
        return cls.Config(dim=8, length=4, blocks=1, dropout=0.0)

    def states(self, inputs_BLD: Tensor) -> Tensor:
        x_BLD = inputs_BLD * self.config.dim**0.5 + self.places[: inputs_BLD.shape[1]]
        x_BLD = self.dropout(x_BLD)
        for block in self.blocks:
            x_BLD = block(x_BLD)
        result: Tensor = self.norm(x_BLD)
        return result


class _Block(nn.Module):
    """Attention to earlier places and a small network at each, both beside the way straight on."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.share = heads, dropout
        self.before_attention, self.before_network = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.inward, self.outward = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.network = nn.Sequential(
            nn.Linear(dim, dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(dim, dim), nn.Dropout(dropout)
        )

    def forward(self, x_BLD: Tensor) -> Tensor:
        inward = self.inward(self.before_attention(x_BLD)).unflatten(2, (3, self.heads, -1))
        query, key, value = inward.permute(2, 0, 3, 1, 4)  # [B, H, L, K] each
        share = self.share if self.training else 0.0
        seen = F.scaled_dot_product_attention(query, key, value, dropout_p=share, is_causal=True)
        x_BLD = x_BLD + self.outward(seen.transpose(1, 2).flatten(2))
        result: Tensor = x_BLD + self.network(self.before_network(x_BLD))
        return result
