"""The softmax over a whole catalogue without the matrix of all scores, which is by far the largest tensor of a step.

Scores are made some rows at a time, and again for the gradient: a block fits in a processor's cache, so making it
twice takes less time than writing it once, and memory does not grow with rows times items.

Shapes: B rows, R rows of a block, M items, D width of a vector.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_CPU_SCORES, _GPU_SCORES = 2**20, 2**26  # of one block: 4 and 256 MiB


def whole_softmax(user_BD: Tensor, item_MD: Tensor, own_B: Tensor, place_B: Tensor) -> Tensor:
    """Cross entropy of each row's own item among the M items: float32 of [B].

    `own_B` are the own items' scores, `place_B` their rows of `item_MD`; negative where an item is not there, which
    then counts beside the others.
    """
    total_B: Tensor = _LogSumExp.apply(user_BD, item_MD)  # type: ignore[no-untyped-call]
    return torch.where(place_B >= 0, total_B, torch.logaddexp(total_B, own_B)) - own_B


class _LogSumExp(torch.autograd.Function):
    """ln Σ exp(user · item) over all items: [B]."""

    @staticmethod
    def forward(ctx: Any, user_BD: Tensor, item_MD: Tensor) -> Tensor:
        item_DM = item_MD.T.contiguous()
        blocks = [(user_BD[rows] @ item_DM).logsumexp(dim=1) for rows in _blocks(user_BD, item_MD)]
        total_B = torch.cat([user_BD.new_zeros(0), *blocks])
        ctx.save_for_backward(user_BD, item_MD, total_B)
        return total_B

    @staticmethod
    def backward(ctx: Any, gradient_B: Tensor) -> tuple[Tensor, Tensor]:
        user_BD, item_MD, total_B = ctx.saved_tensors
        of_user_BD, of_item_MD = torch.empty_like(user_BD), torch.zeros_like(item_MD)
        item_DM = item_MD.T.contiguous()
        for rows in _blocks(user_BD, item_MD):
            share_RM = user_BD[rows] @ item_DM
            share_RM.sub_(total_B[rows, None]).exp_().mul_(gradient_B[rows, None])
            of_user_BD[rows] = share_RM @ item_MD
            of_item_MD.addmm_(share_RM.T, user_BD[rows])
        return of_user_BD, of_item_MD


def _blocks(user_BD: Tensor, item_MD: Tensor) -> list[slice]:
    most = _CPU_SCORES if user_BD.device.type == "cpu" else _GPU_SCORES
    step = max(most // max(len(item_MD), 1), 1)
    return [slice(start, start + step) for start in range(0, len(user_BD), step)]
