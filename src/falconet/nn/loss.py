"""Losses: one value per row, in float32, neither reduced nor weighted (the trainer weighs rows by `Batch.weights`).

Shapes: B rows here, G rows of all processes, D width of a vector, N items of the catalogue.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from falconet.nn import contrast
from falconet.nn.negatives import Pool, log_q


def bce(logits_B: Tensor, labels_B: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Binary cross entropy of logits against labels from 0 to 1, drawn towards 1/2 by `label_smoothing`: [B]."""
    with torch.autocast(logits_B.device.type, enabled=False):
        labels_B = labels_B.float() * (1 - label_smoothing) + label_smoothing / 2
        return F.binary_cross_entropy_with_logits(logits_B.float(), labels_B, reduction="none")


def mse(values_B: Tensor, targets_B: Tensor) -> Tensor:
    """Squared error: [B]."""
    with torch.autocast(values_B.device.type, enabled=False):
        return (values_B.float() - targets_B.float()).square()


def full_softmax(
    logits_BN: Tensor, codes_B: Tensor, *, first: int = 0, temperature: float = 1.0, label_smoothing: float = 0.0
) -> Tensor:
    """Cross entropy of each row's item among the whole catalogue: [B].

    Codes below `first` are reserved and no alternatives, but a row's own item always counts.
    """
    with torch.autocast(logits_BN.device.type, enabled=False):
        logits_BN = logits_BN.float() / temperature
        own_B = logits_BN.gather(1, codes_B[:, None]).squeeze(1)
        code_N = torch.arange(logits_BN.shape[1], device=logits_BN.device)
        absent_BN = (code_N < first) | (code_N == codes_B[:, None])
        return contrast.softmax(own_B, logits_BN, absent_BN, label_smoothing=label_smoothing)


def listwise_softmax(scores_B: Tensor, labels_B: Tensor, groups_B: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Cross entropy between the labels and the scores of a list, both as shares of their list: [B].

    Rows of one group are a list and stand in one batch; the losses of its rows add up to that of the list (ListNet's
    top-one loss, Cao et al., ICML 2007, with labels from 0 on in place of their exponentials). A list whose labels are
    all 0 has the loss 0.
    """
    with torch.autocast(scores_B.device.type, enabled=False):
        scores_B, labels_B = scores_B.float() / temperature, labels_B.float()
        _, list_B = torch.unique(groups_B, return_inverse=True)
        lists = int(list_B.max()) + 1 if len(list_B) else 0
        highest = scores_B.new_full((lists,), -torch.inf).scatter_reduce(0, list_B, scores_B.detach(), "amax")
        shifted_B = scores_B - highest[list_B]
        log_sum = scores_B.new_zeros(lists).index_add(0, list_B, shifted_B.exp()).log()
        total = labels_B.new_zeros(lists).index_add(0, list_B, labels_B)
        share_B = labels_B / total.clamp(min=torch.finfo(torch.float32).tiny)[list_B]
        return share_B * (log_sum[list_B] - shifted_B)


def sampled_softmax(
    user_BD: Tensor,
    item_BD: Tensor,
    codes_B: Tensor,
    log_q_B: Tensor | None = None,
    *,
    temperature: float = 1.0,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross entropy of each row's item against the items of the global batch: [B].

    The items of all processes stand in the sum, so that the loss does not depend on how many there are, and gradients
    reach the items of all. Another row's item that is the row's own item is no negative. `log_q_B` (see `log_q`) takes
    the popularity of the items that happen to be in a batch out of the scores (`Pool.corrected`).
    """
    with torch.autocast(user_BD.device.type, enabled=False):
        pool = Pool.of_batch(item_BD.float(), codes_B, log_q_B)
        logits_BG = pool.scores(user_BD.float()) / temperature
        own_B = (user_BD.float() * item_BD.float()).sum(1) / temperature
        return contrast.softmax(own_B, pool.corrected(logits_BG), pool.absent(codes_B), label_smoothing=label_smoothing)


__all__ = ["bce", "full_softmax", "listwise_softmax", "log_q", "mse", "sampled_softmax"]
