"""How fields act on each other.

Shapes: B rows, F fields, D width of a field's vector, P pairs of fields, W width of the input, K rank, E experts.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from falconet.errors import ConfigError


class PairProducts(nn.Module):
    """The product of every two of F fields, in the order (1, 0), (2, 0), (2, 1), …: [B, P], P = F (F - 1) / 2.

    The dot interaction of DLRM (Naumov et al., 2019).
    """

    places: Tensor

    def __init__(self, fields: int) -> None:
        super().__init__()
        one_P, other_P = torch.tril_indices(fields, fields, offset=-1)
        self.register_buffer("places", one_P * fields + other_P, persistent=False)

    def forward(self, fields_BFD: Tensor) -> Tensor:
        products_BFF = fields_BFD @ fields_BFD.transpose(1, 2)
        return products_BFF.flatten(1).index_select(1, self.places)


def sum_of_pairs(fields_BFD: Tensor) -> Tensor:
    """The sum of the products of every two fields, in time linear in F: [B].

    The second order of a factorisation machine: half of (Σv)² - Σv² (Rendle, "Factorization machines", ICDM 2010).
    """
    fields_BFD = fields_BFD.float()
    return ((fields_BFD.sum(1).square() - fields_BFD.square().sum(1)) / 2).sum(1)


class Cross(nn.Module):
    """One cross layer of DCN-v2: x0 ⊙ (W x + b) + x (Wang et al., WWW 2021, equation 1).

    `rank`: W is the product of two thin matrices (equation 3). `experts`: a mixture of such products, each with a small
    matrix between two tanh, weighted by a softmax of x (equations 4 and 5).
    """

    def __init__(self, width: int, rank: int | None = None, experts: int = 1) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))
        self.product: nn.Module
        if experts > 1:
            if rank is None:
                raise ConfigError(f"{experts} experts of a cross layer need a rank")
            self.product = _Mixture(width, rank, experts)
        elif rank is not None:
            self.product = nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False))
        else:
            self.product = nn.Linear(width, width, bias=False)

    def forward(self, start_BW: Tensor, x_BW: Tensor) -> Tensor:
        # The gates of a mixture sum to one, so x0 and the bias stand outside its sum.
        result: Tensor = start_BW * (self.product(x_BW) + self.bias) + x_BW
        return result


class _Mixture(nn.Module):
    """Σ over experts of gate(x) · U tanh(C tanh(V x)): [B, W]."""

    def __init__(self, width: int, rank: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.down = nn.Parameter(_xavier(experts, width, rank))
        self.middle = nn.Parameter(_xavier(experts, rank, rank))
        self.up = nn.Parameter(_xavier(experts, rank, width))

    def forward(self, x_BW: Tensor) -> Tensor:
        experts, width, rank = self.down.shape
        low_BEK = (x_BW @ self.down.transpose(0, 1).reshape(width, -1)).tanh().view(-1, experts, rank)
        low_EBK = torch.bmm(low_BEK.transpose(0, 1), self.middle).tanh()
        shares_BE = self.gate(x_BW).softmax(dim=1)
        return torch.bmm(low_EBK * shares_BE.t().unsqueeze(2), self.up).sum(0)


class CrossNetwork(nn.Module):
    """Cross layers one after the other: [B, W] -> [B, W], polynomials of a degree up to layers + 1."""

    def __init__(self, width: int, layers: int, rank: int | None = None, experts: int = 1) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Cross(width, rank, experts) for _ in range(layers))

    def forward(self, start_BW: Tensor) -> Tensor:
        x_BW = start_BW
        for layer in self.layers:
            x_BW = layer(start_BW, x_BW)
        return x_BW


def _xavier(experts: int, inputs: int, outputs: int) -> Tensor:
    weights = torch.empty(experts, inputs, outputs)
    for one in weights:
        nn.init.xavier_uniform_(one)
    return weights
