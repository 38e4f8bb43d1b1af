"""Products over many rows, as the gradients of a layer's weights are.

Shapes: R rows in N blocks, O and I numbers in each of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

_ROWS = 1024  # of the smallest block


def in_blocks(x_RI: Tensor) -> tuple[Tensor, ...]:
    """As many rows for each thread, the last what is left: N blocks."""
    return torch.split(x_RI, _share(len(x_RI)))


def _share(rows: int) -> int:
    return max(-(-rows // torch.get_num_threads()), _ROWS)


def over_rows(y_RO: Tensor, x_RI: Tensor, starts_NOI: Tensor | None = None) -> Tensor:
    """yᵀ x in float32, [O, I], or what it comes to where each of `in_blocks` begins with `starts`, in their type.

    On a CPU those of bfloat16 are products of each block, added up in float32: so each core has its own to make.
    """
    if starts_NOI is None and (y_RO.is_cuda or y_RO.dtype != torch.bfloat16):
        return (y_RO.T @ x_RI).float()
    total_OI = torch.zeros(y_RO.shape[1], x_RI.shape[1])
    share = _share(len(y_RO))
    whole = len(y_RO) // share
    first, last = slice(whole * share), slice(whole * share, None)
    if whole:
        y_NRO, x_NRI = (some[first].reshape(whole, share, some.shape[1]) for some in (y_RO, x_RI))
        total_OI += _products(None if starts_NOI is None else starts_NOI[:whole], y_NRO, x_NRI)
    if len(y_RO[last]):
        total_OI += _products(None if starts_NOI is None else starts_NOI[whole:], y_RO[None, last], x_RI[None, last])
    return total_OI


def _products(starts_NOI: Tensor | None, y_NRO: Tensor, x_NRI: Tensor) -> Tensor:
    some = torch.bmm(y_NRO.mT, x_NRI) if starts_NOI is None else torch.baddbmm(starts_NOI, y_NRO.mT, x_NRI)
    return some.sum(0, dtype=torch.float32)
