"""Attention of a candidate over what came before it.

Shapes: B rows, V things of all histories together, D width of a vector.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from falconet.batch import Feature, Ragged
from falconet.nn.mlp import MLP


class CandidateAttention(nn.Module):
    """The sum of a history's vectors, each by how much it matters for the row's candidate: [B, D].

    The activation unit of the deep interest network (Zhou et al., KDD 2018): a small perceptron sees the thing, the
    candidate, their difference and their product. Its output is the weight as it is, so that a history full of matches
    weighs more than one with a single match; `softmax` makes the weights of a history sum to one instead.
    """

    def __init__(self, dim: int, hidden: Sequence[int], *, softmax: bool = False) -> None:
        super().__init__()
        # Smooth as Dice is, the paper's activation, but without statistics over a batch.
        self.unit = MLP(4 * dim, hidden, 1, batch_norm=False, activation="silu")
        self.softmax = softmax

    def weights(self, things_VD: Tensor, candidates_BD: Tensor, row_V: Tensor, there_V: Tensor) -> Tensor:
        """The weight of every thing, 0 where `there_V` is false: [V]. `row_V`: the row each belongs to."""
        candidate_VD = candidates_BD.index_select(0, row_V)
        seen = torch.cat([things_VD, candidate_VD, things_VD - candidate_VD, things_VD * candidate_VD], dim=1)
        scores_V: Tensor = self.unit(seen).squeeze(1).float()
        if self.softmax:
            return softmax_by_row(scores_V, row_V, there_V, candidates_BD.shape[0])
        return scores_V.masked_fill(~there_V, 0.0)

    def forward(self, things_VD: Tensor, candidates_BD: Tensor, row_V: Tensor, there_V: Tensor) -> Tensor:
        weights_V = self.weights(things_VD, candidates_BD, row_V, there_V)
        return sum_by_row(things_VD * weights_V.unsqueeze(1), row_V, candidates_BD.shape[0])


def flatten(lists: Feature) -> tuple[Tensor, Tensor]:
    """The ids of all lists one after the other, and the row of each: [V], [V]. Padding is among them, as id 0."""
    if isinstance(lists, Ragged):
        return lists.values.to(torch.int64), lists.row_of_value()
    rows, length = lists.shape
    return lists.reshape(-1).to(torch.int64), torch.arange(rows, device=lists.device).repeat_interleave(length)


def sum_by_row(values_VD: Tensor, row_V: Tensor, rows: int) -> Tensor:
    """The sum of the values of every row: [rows, D], zeros for a row without any."""
    return values_VD.new_zeros(rows, values_VD.shape[1]).index_add(0, row_V, values_VD)


def softmax_by_row(scores_V: Tensor, row_V: Tensor, there_V: Tensor, rows: int) -> Tensor:
    """The softmax over the scores of every row that are there; 0 for the others: [V]."""
    scores_V = scores_V.masked_fill(~there_V, -torch.inf)
    highest_B = scores_V.new_full((rows,), -torch.inf).scatter_reduce(0, row_V, scores_V.detach(), "amax")
    highest_B = highest_B.masked_fill(highest_B == -torch.inf, 0.0)
    powers_V = (scores_V - highest_B.index_select(0, row_V)).exp()
    total_B = powers_V.new_zeros(rows).index_add(0, row_V, powers_V)
    return powers_V / total_B.index_select(0, row_V).clamp(min=torch.finfo(powers_V.dtype).tiny)
