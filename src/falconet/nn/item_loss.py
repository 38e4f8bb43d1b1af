"""The loss of models that learn to score a user's next item: which negatives, how many, and what is made of them.

Shapes: B rows here, P items of a pool, S negatives of a row, D width of a vector, N codes of the catalogue.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from falconet.errors import ConfigError
from falconet.nn import contrast
from falconet.nn.catalogue import whole_softmax
from falconet.nn.contrast import CONTRASTS, Contrast
from falconet.nn.negatives import Pool, Queue, Sampler, draw_for_all, draw_for_each, hardest, log_q

Source = Literal["all", "batch", "uniform", "popularity", "mixed"]

Vectors = Callable[[Tensor], Tensor]
"""Item codes, of any shape, to their vectors: [*codes.shape, D]."""


@dataclass(frozen=True, kw_only=True)
class ItemLossConfig:
    """What a row's own item is compared with, and how.

    `negatives`: the whole catalogue; the items of the other rows; items drawn alike, or by how often they were taken;
    or "mixed", those of the other rows and drawn ones (Yang et al., "Mixed negative sampling", WWW 2020). The softmax
    of a part of the catalogue is corrected for how likely its items are to be there.
    """

    loss: Contrast = "softmax"
    negatives: Source = "all"
    samples: int = 256  # that are drawn, where negatives are drawn
    per_row: bool = False  # draws of its own for every row, else the same for all rows of a batch
    power: float = 1.0  # of the counts, where negatives are drawn by popularity
    queue: int = 0  # items of earlier batches beside those of the batch
    hard: int | None = None  # only so many of a row's negatives, those with the highest scores
    correct: bool = True  # the softmax of a part of the catalogue by logQ
    temperature: float = 1.0  # divides the scores
    label_smoothing: float = 0.0  # of the softmax
    margin: float = 1.0  # of the hinge
    regularisation: float = 1.0  # of BPR-max
    calibration: float = 0.75  # of gBCE

    def __post_init__(self) -> None:
        if self.loss not in CONTRASTS:
            raise ConfigError(f"`loss` is {self.loss!r}", hint=f"one of {', '.join(CONTRASTS)}")
        for name in ("samples", "hard"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"`{name}` is {value}", hint="at least 1")
        if self.queue < 0 or (self.queue and self.negatives not in ("batch", "mixed")):
            raise ConfigError(
                f"`queue` is {self.queue} with negatives {self.negatives!r}", hint='it adds to "batch" or "mixed"'
            )
        if self.per_row and self.negatives not in ("uniform", "popularity"):
            raise ConfigError(f"`per_row` with negatives {self.negatives!r}", hint='for "uniform" or "popularity"')
        if self.temperature <= 0:
            raise ConfigError(f"`temperature` is {self.temperature}", hint="above 0")
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"`label_smoothing` is {self.label_smoothing}", hint="from 0 to below 1")
        if self.loss == "gbce" and self.negatives not in ("uniform", "all"):
            raise ConfigError(
                f"gBCE with negatives {self.negatives!r}", hint='it calibrates uniform ones: negatives = "uniform"'
            )
        contrast.gbce_beta(1, 2, self.calibration)

    @property
    def is_corrected(self) -> bool:
        """Whether scores are corrected for how likely an item is among the negatives."""
        return self.loss == "softmax" and self.correct and self.negatives != "all" and self.hard is None

    @property
    def is_whole_softmax(self) -> bool:
        """Whether the loss is the plain cross entropy among the whole catalogue."""
        return (self.loss, self.negatives, self.hard, self.label_smoothing) == ("softmax", "all", None, 0.0)


WHOLE_CATALOGUE = ItemLossConfig()
IN_BATCH = ItemLossConfig(negatives="batch")


class ItemLoss(nn.Module):
    """One loss per row from users' vectors and their items' codes. `first`: the first code that is no reserved one."""

    def __init__(self, config: ItemLossConfig, first: int, dim: int) -> None:
        super().__init__()
        self.config, self.first = config, first
        self.queue = Queue(config.queue, dim) if config.queue else None

    def forward(self, user_BD: Tensor, codes_B: Tensor, vectors: Vectors, counts_N: Tensor) -> Tensor:
        """[B], float32. `counts_N`: how often every code occurs in training."""
        with torch.autocast(user_BD.device.type, enabled=False):
            user_BD, catalogue = user_BD.float(), len(counts_N) - self.first
            if self.config.per_row:
                own_B = (user_BD * vectors(codes_B).float()).sum(1)
                return self._contrast(own_B, *self._drawn_for_each(user_BD, codes_B, vectors, counts_N), catalogue)
            if self.config.is_whole_softmax:
                code_M = torch.arange(self.first, len(counts_N), device=user_BD.device)
                user_BD = user_BD / self.config.temperature
                own_B = (user_BD * vectors(codes_B).float()).sum(1)
                return whole_softmax(user_BD, vectors(code_M).float(), own_B, codes_B - self.first)
            if self.config.negatives == "all":
                code_N = torch.arange(len(counts_N), device=user_BD.device)
                scores_BN = Pool(vectors(code_N), code_N).scores(user_BD)
                own_B = scores_BN.gather(1, codes_B[:, None]).squeeze(1)
                absent_BN = (code_N == codes_B[:, None]) | (code_N < self.first)
                return self._contrast(own_B, scores_BN, absent_BN, None, catalogue)
            item_BD = vectors(codes_B).float()
            pool = self._pool(item_BD, codes_B, vectors, counts_N)
            own_B = (user_BD * item_BD).sum(1)
            absent_BP = pool.absent(codes_B)
            return self._contrast(own_B, pool.scores(user_BD), absent_BP, pool.log_expected, catalogue)

    def in_batch(self, user_BD: Tensor, item_BD: Tensor, codes_B: Tensor, counts_N: Tensor) -> Tensor:
        """The same for a model whose items' vectors come from the rows alone, so that no others can be drawn."""
        if self.config.negatives != "batch":
            raise ConfigError(
                f"negatives {self.config.negatives!r} need the catalogue, and a batch knows its own items alone",
                hint='negatives = "batch"',
            )
        losses_B: Tensor = self(user_BD, codes_B, lambda codes: item_BD, counts_N)
        return losses_B

    def _pool(self, item_BD: Tensor, codes_B: Tensor, vectors: Vectors, counts_N: Tensor) -> Pool:
        """What all rows are compared with, and how often each of its items is expected there."""
        config = self.config
        expected: list[tuple[int, Callable[[Tensor], Tensor]]] = []  # draws, and ln of the probability of one
        pool = Pool(item_BD[:0], codes_B[:0])
        if config.negatives in ("batch", "mixed"):
            pool = batch = Pool.of_batch(item_BD, codes_B)
            earlier = 0
            if self.queue is not None:
                pool = pool + (old := self.queue.pool())
                earlier = len(old.codes)
                if self.training:
                    self.queue.push(batch)
            expected.append((len(batch.codes) - 1 + earlier, lambda codes: log_q(counts_N, codes)))
        if config.negatives != "batch":
            sampler = self._sampler(counts_N)
            codes_S = draw_for_all(sampler, config.samples, codes_B.device)
            pool = pool + Pool(vectors(codes_S).float(), codes_S)
            expected.append((config.samples, sampler.log_q))
        if not config.is_corrected:
            return pool
        logs = [log_probability(pool.codes).double() + _log(draws) for draws, log_probability in expected]
        return Pool(pool.vectors, pool.codes, torch.stack(logs).logsumexp(0).float())

    def _drawn_for_each(
        self, user_BD: Tensor, codes_B: Tensor, vectors: Vectors, counts_N: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        sampler = self._sampler(counts_N)
        codes_BS = draw_for_each(sampler, len(codes_B), self.config.samples, codes_B.device)
        scores_BS = torch.einsum("bd,bsd->bs", user_BD, vectors(codes_BS).float())
        log_expected_BS = (sampler.log_q(codes_BS) + _log(self.config.samples)).float()
        return scores_BS, codes_BS == codes_B[:, None], log_expected_BS if self.config.is_corrected else None

    def _sampler(self, counts_N: Tensor) -> Sampler:
        return Sampler(counts_N, self.first, self.config.power if self.config.negatives == "popularity" else 0.0)

    def _contrast(
        self, own_B: Tensor, others_BS: Tensor, absent_BS: Tensor, log_expected: Tensor | None, catalogue: int
    ) -> Tensor:
        config = self.config
        own_B, others_BS = own_B / config.temperature, others_BS / config.temperature
        if log_expected is not None:
            others_BS = others_BS - log_expected
        if config.hard is not None:
            others_BS, absent_BS = hardest(others_BS, absent_BS, config.hard)
        match config.loss:
            case "softmax":
                return contrast.softmax(own_B, others_BS, absent_BS, label_smoothing=config.label_smoothing)
            case "bpr":
                return contrast.bpr(own_B, others_BS, absent_BS)
            case "bpr_max":
                return contrast.bpr_max(own_B, others_BS, absent_BS, regularisation=config.regularisation)
            case "top1":
                return contrast.top1(own_B, others_BS, absent_BS)
            case "top1_max":
                return contrast.top1_max(own_B, others_BS, absent_BS)
            case "hinge":
                return contrast.hinge(own_B, others_BS, absent_BS, margin=config.margin)
            case "bce":
                return contrast.binary(own_B, others_BS, absent_BS)
            case "gbce":
                beta = contrast.gbce_beta(others_BS.shape[1], catalogue, config.calibration)
                return contrast.binary(own_B, others_BS, absent_BS, beta=beta)


def _log(draws: int) -> float:
    return math.log(draws) if draws > 0 else -math.inf
