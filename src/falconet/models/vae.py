"""What variational autoencoders of a user's items have in common.

Shapes: B rows, D width of a layer, Z width of the code, N codes of the catalogue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from falconet.batch import Batch, Ragged, as_ragged, feature_of
from falconet.errors import ConfigError
from falconet.models.base import Retriever, history_of
from falconet.nn.dropout import drop
from falconet.nn.embedding import Tables
from falconet.schema import Schema


class VAE(Retriever):
    """The code of a history is a normal distribution, from which the items are decoded.

    Rows may be whole users (a history, no item) or interactions, whose item then counts as one more of the history;
    users are far fewer rows for the same. The decoder's last layer is a row of weights and a bias for each item, so
    that an index can search it. A subclass makes `encoder` (from `read` to mean and ln of the variance, side by side)
    and `decoder` (from the code to the input of the last layer, `width` wide), and the loss.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config:
        hidden: int = 600  # the layers before, and in MultVAE after, the code
        latent: int = 200  # the code
        dropout: float = 0.5  # share of the history that the encoder does not see in training

        def __post_init__(self) -> None:
            name = type(self).__qualname__.split(".")[0]
            if self.hidden < 1 or self.latent < 1:
                raise ConfigError(f"{name} hidden={self.hidden}, latent={self.latent}", hint="at least 1")
            if not 0 <= self.dropout < 1:
                raise ConfigError(f"{name} dropout={self.dropout}", hint="from 0 to below 1")

    config: Config
    encoder: nn.Module
    decoder: nn.Module
    steps: Tensor

    def __init__(self, schema: Schema, config: Any, *, width: int) -> None:
        super().__init__(schema, config)
        self.history = history_of(schema, self.item_column, type(self).__name__).name
        self.first = Tables([schema[self.history]], config.hidden, "sum")
        self.last = Tables([self.item_column], width + 1)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))  # of training

    def user(self, batch: Batch) -> Tensor:
        mean_BZ, _ = self.encode(as_ragged(feature_of(batch, self.history)))
        return self.decode(mean_BZ)

    def item(self, batch: Batch) -> Tensor:
        return self.last.rows(self.item_column.name, self.item_codes(batch))

    def encode(self, history: Ragged) -> tuple[Tensor, Tensor]:
        """Mean and ln of the variance of the code: [B, Z] each."""
        both_B2Z: Tensor = self.encoder(self.read(history)).float()
        mean_BZ, log_variance_BZ = both_B2Z.chunk(2, dim=1)
        return mean_BZ, log_variance_BZ

    def read(self, history: Ragged) -> Tensor:
        """The first layer's product with the history as a vector of length 1: [B, D]."""
        sum_BD = self.first.lookup(self.history, history)
        return sum_BD / history.lengths.clamp(min=1).to(sum_BD).sqrt()[:, None]

    def decode(self, code_BZ: Tensor) -> Tensor:
        """What the last layer gets: [B, D + 1]; its last column, of ones, takes the bias."""
        hidden_BD: Tensor = self.decoder(code_BZ).float()
        return torch.cat([hidden_BD, torch.ones_like(hidden_BD[:, :1])], dim=1)

    def surprise(self, hidden_BD: Tensor, batch: Batch, *, learns: bool = True) -> Tensor:
        """Minus the sum of the log probabilities of what the user took: [B]. `learns`: whether the last layer does."""
        codes_N = torch.arange(len(self.counts), device=hidden_BD.device)
        weights_ND = self.last.rows(self.item_column.name, codes_N).float()
        with torch.autocast(hidden_BD.device.type, enabled=False):
            logits_BN = hidden_BD.float() @ (weights_ND if learns else weights_ND.detach()).T
            reserved_N = codes_N < self.item_column.first_code
            log_p_BN = logits_BN.masked_fill(reserved_N, -torch.inf).log_softmax(dim=1)
        history = as_ragged(feature_of(batch, self.history))
        known = history.values >= self.item_column.first_code
        row, took = history.row_of_value()[known], history.values[known].long()
        found_B = torch.zeros(batch.rows, device=log_p_BN.device).index_add(0, row, log_p_BN[row, took])
        if self.item_column.name in batch.features:
            own_B = self.item_codes(batch)
            found_B = found_B + log_p_BN.gather(1, own_B[:, None]).squeeze(1).masked_fill(reserved_N[own_B], 0.0)
        return -found_B


class Shift(nn.Module):
    """A layer's bias, where its product is made elsewhere."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


def shorter(history: Ragged, share: float) -> Ragged:
    """Histories without a random share of their items."""
    dropped = drop(history, share)
    assert isinstance(dropped, Ragged)
    return dropped


def drawn(mean_BZ: Tensor, log_variance_BZ: Tensor) -> Tensor:
    """A code drawn from the normal distribution that the encoder gave: [B, Z]."""
    return mean_BZ + (log_variance_BZ / 2).exp() * torch.randn_like(mean_BZ)
