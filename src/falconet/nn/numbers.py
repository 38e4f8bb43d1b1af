"""Numbers as vectors.

Shapes: B rows, C numbers per row, K choices, D width of a vector.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from falconet.errors import ConfigError

_REACH = 2.0  # the outer choices lie at so many standard deviations


class SoftEmbeddings(nn.Module):
    """Each number as a mixture of K vectors of its own, weighted by a softmax: [B, C] -> [B, C, D].

    The logits are linear in the number, as in AutoDis without hidden layers (Guo et al., "An embedding learning
    framework for numerical features in CTR prediction", KDD 2021). They start as those of bells of one width around K
    points from -2 to 2, so numbers come normalised; where the bells go from there is learned.
    """

    def __init__(self, numbers: int, choices: int, dim: int) -> None:
        super().__init__()
        if choices < 2:
            raise ConfigError(f"soft embeddings with {choices} choices have nothing to choose", hint="at least 2")
        self.dim = dim
        centre_K = torch.linspace(-_REACH, _REACH, choices)
        spread = float(centre_K[1] - centre_K[0]) ** 2
        self.slope = nn.Parameter((centre_K / spread).repeat(numbers, 1))
        self.shift = nn.Parameter((-(centre_K**2) / (2 * spread)).repeat(numbers, 1))
        self.choices = nn.Parameter(torch.randn(numbers, choices, dim) * 0.05)

    @property
    def width(self) -> int:
        """The width of all vectors side by side."""
        return self.slope.shape[0] * self.dim

    def shares(self, numbers_BC: Tensor) -> Tensor:
        """How much each vector counts: [B, C, K], of sum 1 over the choices."""
        return (numbers_BC.unsqueeze(2) * self.slope + self.shift).softmax(dim=2)

    def forward(self, numbers_BC: Tensor) -> Tensor:
        return torch.bmm(self.shares(numbers_BC).transpose(0, 1), self.choices).transpose(0, 1)


class NumberVectors(nn.Module):
    """Each number times a vector of its own, as a field of a factorisation machine: [B, C] -> [B, C, D]."""

    def __init__(self, numbers: int, dim: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(numbers, dim) * 0.05)

    def forward(self, numbers_BC: Tensor) -> Tensor:
        return numbers_BC.unsqueeze(2) * self.vectors
