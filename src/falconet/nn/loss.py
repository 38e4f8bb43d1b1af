"""Losses: one value per row, in float32, neither reduced nor weighted.

Shapes: B rows here, G rows of all processes, D width of a vector.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from falconet.nn.collective import counts, gather, gather_rows


def bce(logits_B: Tensor, labels_B: Tensor) -> Tensor:
    """Binary cross entropy of logits against labels from 0 to 1: [B]."""
    with torch.autocast(logits_B.device.type, enabled=False):
        return F.binary_cross_entropy_with_logits(logits_B.float(), labels_B.float(), reduction="none")


def mse(values_B: Tensor, targets_B: Tensor) -> Tensor:
    """Squared error: [B]."""
    with torch.autocast(values_B.device.type, enabled=False):
        return (values_B.float() - targets_B.float()).square()


def log_q(counts_N: Tensor, codes: Tensor) -> Tensor:
    """ln of how often items are drawn when rows are drawn from interactions: ln(count / total), count at least 1."""
    counts_N = counts_N.to(torch.float64).clamp(min=1)
    return (counts_N.index_select(0, codes.reshape(-1).to(torch.int64)) / counts_N.sum()).log().float().view_as(codes)


def sampled_softmax(
    user_BD: Tensor, item_BD: Tensor, codes_B: Tensor, log_q_B: Tensor | None = None, *, temperature: float = 1.0
) -> Tensor:
    """Cross entropy of each row's item against the items of the global batch: [B].

    The items of all processes stand in the sum, so that the loss does not depend on how many there are. `log_q_B`
    (see `log_q`) takes the popularity of the items that happen to be in a batch out of the scores (Yi et al.,
    "Sampling-bias-corrected neural modeling for large corpus item recommendations", RecSys 2019). Another row's item
    that is the row's own item is no negative.
    """
    with torch.autocast(user_BD.device.type, enabled=False):
        rows = counts(len(user_BD), user_BD.device)
        item_GD = gather_rows(item_BD.float(), rows)
        codes_G = gather(codes_B, rows)
        logits_BG = user_BD.float() @ item_GD.T / temperature
        if log_q_B is not None:
            logits_BG = logits_BG - gather(log_q_B, rows)
        start = sum(rows[: _rank(rows)])
        own_B = torch.arange(start, start + len(user_BD), device=user_BD.device)
        hit_BG = codes_B.unsqueeze(1) == codes_G
        hit_BG[torch.arange(len(own_B), device=own_B.device), own_B] = False
        return F.cross_entropy(logits_BG.masked_fill(hit_BG, float("-inf")), own_B, reduction="none")


def _rank(rows: list[int]) -> int:
    return torch.distributed.get_rank() if len(rows) > 1 else 0
