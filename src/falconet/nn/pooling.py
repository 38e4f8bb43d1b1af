"""Lists of ids as one vector each: the mean or the sum of their vectors.

Shapes: X vectors, N ids of a column, flat, R rows of the batch, D width.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from falconet.batch import Feature, Ragged
from falconet.nn.lookup import PADDING

Pooling = Literal["mean", "sum"]
_FEW = 64  # lists of so few distinct values are pooled by a matrix product, whose way back needs no sorting


def pool(
    vectors_XD: Tensor, feature: Feature, place_N: Tensor, pooling: Pooling, weights_N: Tensor | None = None
) -> Tensor:
    """One vector per row, from the places of its ids. Place 0 is padding."""
    if isinstance(feature, Tensor) and feature.dim() == 1:
        return vectors_XD.index_select(0, place_N)
    if isinstance(feature, Ragged) and place_N.shape[0] == 0:
        # Nothing but empty lists; the product keeps the graph the same as on other ranks.
        return vectors_XD.sum(0, keepdim=True).expand(len(feature), -1) * 0
    if vectors_XD.shape[0] <= _FEW and torch.is_grad_enabled():
        with torch.autocast(vectors_XD.device.type, enabled=False):
            return _shares(feature, place_N, vectors_XD.shape[0], pooling, weights_N).to(vectors_XD.dtype) @ vectors_XD
    vectors_XD = vectors_XD.float()
    if weights_N is not None:
        return _weighted(vectors_XD, feature, place_N, pooling, weights_N)
    if isinstance(feature, Ragged):
        offsets = feature.offsets.to(torch.int64)
        return F.embedding_bag(
            place_N, vectors_XD, offsets, mode=pooling, include_last_offset=True, padding_idx=PADDING
        )
    return F.embedding_bag(place_N.view(feature.shape), vectors_XD, mode=pooling, padding_idx=PADDING)


def _weighted(vectors_XD: Tensor, feature: Feature, place_N: Tensor, pooling: Pooling, weights_N: Tensor) -> Tensor:
    """The sum of weights times vectors, divided by that of the weights for a mean: [R, D]."""
    weights_N = weights_N.masked_fill(place_N == PADDING, 0.0)
    row_N = _row_of_value(feature, place_N)
    total_RD = vectors_XD.new_zeros(
        feature.shape[0] if isinstance(feature, Tensor) else len(feature), vectors_XD.shape[1]
    )
    scaled_ND = vectors_XD.index_select(0, place_N) * weights_N[:, None].to(vectors_XD)
    total_RD = total_RD.index_add(0, row_N, scaled_ND)
    if pooling == "sum":
        return total_RD
    return total_RD / _not_zero(weights_N.new_zeros(len(total_RD)).index_add(0, row_N, weights_N))[:, None]


def _shares(
    feature: Feature, place_N: Tensor, places: int, pooling: Pooling, weights_N: Tensor | None = None
) -> Tensor:
    """How much of each of so many vectors the lists hold: [R, places]."""
    rows = len(feature)
    row_N = _row_of_value(feature, place_N)
    counts_N = torch.ones(len(place_N), device=place_N.device) if weights_N is None else weights_N
    shares_RX = counts_N.new_zeros(rows * places).index_add_(0, row_N * places + place_N, counts_N).view(rows, places)
    shares_RX[:, PADDING] = 0
    return shares_RX if pooling == "sum" else shares_RX / _not_zero(shares_RX.sum(1, keepdim=True))


def _row_of_value(feature: Feature, place_N: Tensor) -> Tensor:
    """The row of each value of a batch's lists."""
    if isinstance(feature, Ragged):
        return feature.row_of_value()
    return torch.arange(feature.shape[0], device=place_N.device).repeat_interleave(feature.shape[1])


def _not_zero(totals: Tensor) -> Tensor:
    """What to divide by: 1 where nothing was added up."""
    return totals.masked_fill(totals == 0, 1.0)
