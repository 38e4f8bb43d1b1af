"""MultVAE: what a user has taken, through a variational autoencoder, to a distribution over all items.

Shapes: B rows, Z width of the code.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from falconet.batch import Batch, as_ragged, feature_of
from falconet.errors import ConfigError
from falconet.models.base import MODELS
from falconet.models.vae import VAE, Shift, drawn, shorter
from falconet.schema import Schema


@MODELS.register()
class MultVAE(VAE):
    """The multinomial log likelihood of a user's items, from a random part of them, and the code's distance from the
    standard normal distribution (Liang et al., "Variational autoencoders for collaborative filtering", WWW 2018)."""

    @dataclass(frozen=True, kw_only=True)
    class Config(VAE.Config):
        beta: float = 0.2  # weight of the distance
        anneal: int = 0  # steps of training in which it rises to that, from 0

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.beta < 0 or self.anneal < 0:
                raise ConfigError(f"MultVAE beta={self.beta}, anneal={self.anneal}", hint="at least 0")

    config: Config

    def __init__(self, schema: Schema, config: Config) -> None:
        super().__init__(schema, config, width=config.hidden)
        self.encoder = nn.Sequential(Shift(config.hidden), nn.Tanh(), nn.Linear(config.hidden, 2 * config.latent))
        self.decoder = nn.Sequential(nn.Linear(config.latent, config.hidden), nn.Tanh())

    @classmethod
    def debug(cls) -> Config:
        return cls.Config(hidden=8, latent=4)

    def loss(self, batch: Batch) -> Tensor:
        history = as_ragged(feature_of(batch, self.history))
        if self.training:
            history = shorter(history, self.config.dropout)
        mean_BZ, log_variance_BZ = self.encode(history)
        code_BZ = drawn(mean_BZ, log_variance_BZ) if self.training else mean_BZ
        distance_B = (mean_BZ.square() + log_variance_BZ.exp() - log_variance_BZ - 1).sum(1) / 2
        return self.surprise(self.decode(code_BZ), batch) + self._beta() * distance_B

    def _beta(self) -> float:
        if not self.training or not self.config.anneal:
            return self.config.beta
        self.steps += 1
        return self.config.beta * min(int(self.steps) / self.config.anneal, 1.0)
