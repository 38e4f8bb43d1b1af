"""RecVAE: a deeper encoder than MultVAE's, a prior that remembers, encoder and decoder that learn apart.

Shapes: B rows, D width of a layer, Z width of the code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from falconet.batch import Batch, Ragged, as_ragged, feature_of
from falconet.errors import ConfigError
from falconet.models.base import MODELS
from falconet.models.vae import VAE, Shift, drawn, shorter
from falconet.schema import Schema

_PRIOR = (0.15, 0.75, 0.10)  # standard normal, the encoder as it was, a very wide normal
_WIDE = 10.0  # ln of the wide one's variance


@MODELS.register()
class RecVAE(VAE):
    """The history's multinomial log likelihood from a part of it (Shenbin et al., "RecVAE: a new variational
    autoencoder for top-n recommendations with implicit feedback", WSDM 2020).

    The encoder's layers each see all before them; the decoder is linear. The code's distance is that from a mixture of
    the standard normal, a wide one, and what the encoder said `renew` steps ago (its dense layers: the first one, a
    table, is as it is now), and weighs `gamma` for each item of the history. The encoder learns from shortened
    histories, the decoder from whole ones; here both do so in every step, where the paper takes turns.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(VAE.Config):
        layers: int = 3  # of the encoder
        gamma: float = 0.005  # weight of the code's distance, for each item of the history
        renew: int = 100  # steps between two copies of the encoder for the prior

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.layers < 1 or self.renew < 1 or self.gamma < 0:
                raise ConfigError(
                    f"RecVAE layers={self.layers}, renew={self.renew}, gamma={self.gamma}", hint="at least 1, 1 and 0"
                )

    config: Config

    def __init__(self, schema: Schema, config: Config) -> None:
        super().__init__(schema, config, width=config.latent)
        self.encoder = _Encoder(config.hidden, config.latent, config.layers)
        self.decoder = nn.Identity()
        self._old = {name: f"old_{name.replace('.', '_')}" for name, _ in self.encoder.named_parameters()}
        for name, weight in self.encoder.named_parameters():
            self.register_buffer(self._old[name], weight.detach().clone())

    @classmethod
    def debug(cls) -> Config:
        return cls.Config(hidden=8, latent=4, layers=2, renew=5)

    def loss(self, batch: Batch) -> Tensor:
        history = as_ragged(feature_of(batch, self.history))
        mean_BZ, log_variance_BZ = self.encode(history)
        if not self.training:
            return self.surprise(self.decode(mean_BZ), batch)
        if int(self.steps) % self.config.renew == 0:
            self._remember()
        self.steps += 1
        code_BZ = drawn(mean_BZ, log_variance_BZ).detach()
        for_decoder_B = self.surprise(self.decode(code_BZ), batch)
        mean_BZ, log_variance_BZ = self.encode(shorter(history, self.config.dropout))
        code_BZ = drawn(mean_BZ, log_variance_BZ)
        distance_B = _log_normal(code_BZ, mean_BZ, log_variance_BZ) - self._log_prior(code_BZ, history)  # of one draw
        weight_B = self.config.gamma * history.lengths
        for_encoder_B = self.surprise(self.decode(code_BZ), batch, learns=False) + weight_B * distance_B
        return for_encoder_B + for_decoder_B - for_decoder_B.detach()  # the value of one, the gradients of both

    def _log_prior(self, code_BZ: Tensor, history: Ragged) -> Tensor:
        """ln of the mixture's density at the codes: [B]."""
        with torch.no_grad():
            old = {name: self.get_buffer(buffer) for name, buffer in self._old.items()}
            mean_BZ, log_variance_BZ = functional_call(self.encoder, old, (self.read(history),)).float().chunk(2, dim=1)
        zero = torch.zeros_like(mean_BZ)
        densities = (
            _log_normal(code_BZ, zero, zero),
            _log_normal(code_BZ, mean_BZ, log_variance_BZ),
            _log_normal(code_BZ, zero, zero + _WIDE),
        )
        parts = [density + math.log(share) for density, share in zip(densities, _PRIOR, strict=True)]
        return torch.stack(parts).logsumexp(dim=0)

    @torch.no_grad()
    def _remember(self) -> None:
        for name, weight in self.encoder.named_parameters():
            self.get_buffer(self._old[name]).copy_(weight)


class _Encoder(nn.Module):
    """Layers that each add up what all before them gave, with swish and LayerNorm, and a last one: [B, 2 Z]."""

    def __init__(self, hidden: int, latent: int, layers: int) -> None:
        super().__init__()
        self.shift = Shift(hidden)
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers - 1))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(layers))
        self.code = nn.Linear(hidden, 2 * latent)

    def forward(self, x_BD: Tensor) -> Tensor:
        x_BD = self.norms[0](F.silu(self.shift(x_BD)))
        total_BD = x_BD
        for layer, norm in zip(self.layers, self.norms[1:], strict=True):
            x_BD = norm(F.silu(layer(x_BD) + total_BD))
            total_BD = total_BD + x_BD
        result: Tensor = self.code(x_BD)
        return result


def _log_normal(x_BZ: Tensor, mean_BZ: Tensor, log_variance_BZ: Tensor) -> Tensor:
    """ln of the density of a normal distribution with independent dimensions: [B]."""
    square_BZ = (x_BZ - mean_BZ).square() * (-log_variance_BZ).exp()
    return -(square_BZ + log_variance_BZ + math.log(2 * math.pi)).sum(1) / 2
