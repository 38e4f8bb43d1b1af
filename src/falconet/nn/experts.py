"""Experts: networks side by side, of which gates make mixtures.

Shapes: B rows, W width of the input, E experts, H width of an expert's output.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from falconet.nn.mlp import MLP


class Experts(nn.ModuleList):
    """Perceptrons of one shape, each with weights of its own: [B, W] -> [B, E, H]."""

    def __init__(
        self, inputs: int, experts: int, hidden: Sequence[int], *, dropout: float = 0.0, batch_norm: bool = True
    ) -> None:
        super().__init__(MLP(inputs, hidden, dropout=dropout, batch_norm=batch_norm) for _ in range(experts))

    def forward(self, x_BW: Tensor) -> Tensor:
        return torch.stack([expert(x_BW) for expert in self], dim=1)


class Gate(nn.Module):
    """A mixture of experts whose shares are a softmax of a linear layer of the input: [B, W], [B, E, H] -> [B, H]."""

    def __init__(self, inputs: int, experts: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, experts, bias=False)

    def shares(self, x_BW: Tensor) -> Tensor:
        """How much each expert counts: [B, E], of sum 1."""
        result: Tensor = self.linear(x_BW).softmax(dim=1)
        return result

    def forward(self, x_BW: Tensor, experts_BEH: Tensor) -> Tensor:
        return torch.einsum("be,beh->bh", self.shares(x_BW), experts_BEH)
