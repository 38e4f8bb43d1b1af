"""Losses of a row's own item against items it did not take: one value per row, in float32.

All take the score of the own item [B], the scores of S negatives [B, S], and which of these do not count ([B, S], True
where, say, the negative happens to be the own item; None: all count). A row without negatives has the loss of nothing
to be compared with, which is 0 but for the binary losses.

Shapes: B rows, S negatives of a row.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from falconet.errors import ConfigError

Contrast = Literal["softmax", "bpr", "bpr_max", "top1", "top1_max", "hinge", "bce", "gbce"]
CONTRASTS: tuple[Contrast, ...] = get_args(Contrast)


def softmax(
    own_B: Tensor, others_BS: Tensor, absent_BS: Tensor | None = None, *, label_smoothing: float = 0.0
) -> Tensor:
    """Cross entropy of the own item among itself and the negatives.

    `label_smoothing`: the share of the target that is spread evenly over all of them (Szegedy et al., CVPR 2016).
    """
    own_B, others_BS, there_BS = _prepare(own_B, others_BS, absent_BS)
    logits_BS = torch.cat([own_B[:, None], others_BS.masked_fill(~there_BS, -torch.inf)], dim=1)
    log_p_BS = logits_BS.log_softmax(dim=1)
    loss_B = -log_p_BS[:, 0]
    if label_smoothing:
        n_B = there_BS.sum(1) + 1
        even_B = -log_p_BS[:, 0] - log_p_BS[:, 1:].masked_fill(~there_BS, 0.0).sum(1)
        loss_B = (1 - label_smoothing) * loss_B + label_smoothing * even_B / n_B
    return loss_B


def bpr(own_B: Tensor, others_BS: Tensor, absent_BS: Tensor | None = None) -> Tensor:
    """Bayesian personalised ranking, the mean over negatives of -ln sigmoid(own - other) (Rendle et al., UAI 2009)."""
    own_B, others_BS, there_BS = _prepare(own_B, others_BS, absent_BS)
    return _mean(-F.logsigmoid(own_B[:, None] - others_BS), there_BS)


def bpr_max(
    own_B: Tensor, others_BS: Tensor, absent_BS: Tensor | None = None, *, regularisation: float = 1.0
) -> Tensor:
    """BPR with negatives weighted by the softmax of their scores, whose squares are kept small.

    -ln Σ softmax(others) sigmoid(own - other) + regularisation Σ softmax(others) other² (Hidasi and Karatzoglou,
    "Recurrent neural networks with top-k gains for session-based recommendations", CIKM 2018).
    """
    own_B, others_BS, there_BS = _prepare(own_B, others_BS, absent_BS)
    log_weight_BS = _log_weights(others_BS, there_BS)
    wins_B = (log_weight_BS + F.logsigmoid(own_B[:, None] - others_BS)).logsumexp(dim=1)
    loss_B = regularisation * (log_weight_BS.exp() * others_BS.square()).sum(1) - wins_B
    return torch.where(there_BS.any(1), loss_B, 0.0)


def top1(own_B: Tensor, others_BS: Tensor, absent_BS: Tensor | None = None) -> Tensor:
    """The mean over negatives of sigmoid(other - own) + sigmoid(other²) (Hidasi et al., ICLR 2016)."""
    own_B, others_BS, there_BS = _prepare(own_B, others_BS, absent_BS)
    return _mean(_top1(own_B, others_BS), there_BS)


def top1_max(own_B: Tensor, others_BS: Tensor, absent_BS: Tensor | None = None) -> Tensor:
    """TOP1 with negatives weighted by the softmax of their scores (Hidasi and Karatzoglou, CIKM 2018)."""
    own_B, others_BS, there_BS = _prepare(own_B, others_BS, absent_BS)
    loss_B = (_log_weights(others_BS, there_BS).exp() * _top1(own_B, others_BS)).sum(1)
    return torch.where(there_BS.any(1), loss_B, 0.0)


def hinge(own_B: Tensor, others_BS: Tensor, absent_BS: Tensor | None = None, *, margin: float = 1.0) -> Tensor:
    """The mean over negatives of how much the own item is less than `margin` above them."""
    own_B, others_BS, there_BS = _prepare(own_B, others_BS, absent_BS)
    return _mean((margin - own_B[:, None] + others_BS).clamp(min=0), there_BS)


def binary(own_B: Tensor, others_BS: Tensor, absent_BS: Tensor | None = None, *, beta: float = 1.0) -> Tensor:
    """Binary cross entropy, own item 1 and negatives 0, the mean over all of them; sigmoid(own) to the power `beta`.

    With `beta` of `gbce_beta` it is gBCE (Petrov and Macdonald, "gSASRec: reducing overconfidence in sequential
    recommendation trained with negative sampling", RecSys 2023).
    """
    own_B, others_BS, there_BS = _prepare(own_B, others_BS, absent_BS)
    others_B = F.softplus(others_BS).masked_fill(~there_BS, 0.0).sum(1)
    return (others_B - beta * F.logsigmoid(own_B)) / (there_BS.sum(1) + 1)


def gbce_beta(negatives: int, catalogue: int, calibration: float) -> float:
    """The power of gBCE: 1 without calibration (0), the share of negatives that are drawn with all of it (1)."""
    share = min(negatives / max(catalogue - 1, 1), 1.0)
    if not 0 <= calibration <= 1 or share <= 0:
        raise ConfigError(f"gBCE of {negatives} negatives with calibration {calibration}", hint="0 to 1, at least one")
    return share * (calibration * (1 - 1 / share) + 1 / share)


def _prepare(own_B: Tensor, others_BS: Tensor, absent_BS: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """In float32, what does not count as 0, and what counts."""
    if absent_BS is None:
        absent_BS = torch.zeros_like(others_BS, dtype=torch.bool)
    return own_B.float(), others_BS.float().masked_fill(absent_BS, 0.0), ~absent_BS


def _mean(losses_BS: Tensor, there_BS: Tensor) -> Tensor:
    return losses_BS.masked_fill(~there_BS, 0.0).sum(1) / there_BS.sum(1).clamp(min=1)


def _log_weights(others_BS: Tensor, there_BS: Tensor) -> Tensor:
    """ln of the softmax over the negatives that count."""
    return others_BS.masked_fill(~there_BS, torch.finfo(others_BS.dtype).min).log_softmax(dim=1)


def _top1(own_B: Tensor, others_BS: Tensor) -> Tensor:
    return torch.sigmoid(others_BS - own_B[:, None]) + torch.sigmoid(others_BS.square())
