"""Items that a row's own item is compared with: those of the batch, of earlier batches, or drawn from the catalogue.

What is drawn is a function of rank 0's random numbers, drawn for the rows of all processes and sliced, so that it does
not depend on how many processes there are. Reserved codes are never drawn.

Shapes: B rows here, G rows of all processes, P items of a pool, S draws, D width of a vector, N codes of the catalogue.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from falconet.errors import ConfigError, DataError
from falconet.nn.collective import counts, gather, gather_rows, here, shared_seed


def log_q(counts_N: Tensor, codes: Tensor) -> Tensor:
    """ln of how often items are drawn when rows are drawn from interactions: ln(count / total), count at least 1."""
    counts_N = counts_N.to(torch.float64).clamp(min=1)
    return (counts_N.index_select(0, codes.reshape(-1).to(torch.int64)) / counts_N.sum()).log().float().view_as(codes)


@dataclass(frozen=True)
class Pool:
    """Items that all rows of all processes are compared with.

    `vectors` [P, D], `codes` [P]. `log_expected` [P]: ln of how often the item is expected among the draws that make
    the pool; None: not corrected.
    """

    vectors: Tensor
    codes: Tensor
    log_expected: Tensor | None = None

    @classmethod
    def of_batch(cls, item_BD: Tensor, codes_B: Tensor, log_q_B: Tensor | None = None) -> Pool:
        """The items of all processes' rows. Gradients reach the process that an item came from."""
        rows = counts(len(item_BD), item_BD.device)
        log_expected_G = None
        if log_q_B is not None:  # the other rows are G - 1 draws
            log_expected_G = gather(log_q_B, rows) + math.log(max(sum(rows) - 1, 1))
        return cls(gather_rows(item_BD, rows), gather(codes_B, rows), log_expected_G)

    def __add__(self, other: Pool) -> Pool:
        """Both pools together, not corrected: what is expected of one says nothing of both."""
        return Pool(torch.cat([self.vectors, other.vectors]), torch.cat([self.codes, other.codes.to(self.codes)]))

    def scores(self, user_BD: Tensor) -> Tensor:
        """[B, P]."""
        return user_BD @ self.vectors.to(user_BD.dtype).T

    def absent(self, codes_B: Tensor) -> Tensor:
        """Which items are no negatives of a row, because they are its own item: bool of [B, P]."""
        return codes_B[:, None] == self.codes

    def corrected(self, scores_BP: Tensor) -> Tensor:
        """Scores whose exponentials have the sum over the catalogue as their expected sum over the pool.

        The logQ correction (Bengio and Senécal 2008; Yi et al., "Sampling-bias-corrected neural modeling for large
        corpus item recommendations", RecSys 2019). The own item was not drawn and so is not corrected (Khrylchenko et
        al., "Correcting the LogQ correction", RecSys 2025).
        """
        return scores_BP if self.log_expected is None else scores_BP - self.log_expected


class Sampler:
    """Draws codes from `first` on, an item as often as its count to the `power`: 0 is uniform, 1 is popularity.

    Raises DataError where nothing can be drawn.
    """

    def __init__(self, counts_N: Tensor, first: int, power: float) -> None:
        weights_N = counts_N.to(torch.float64).pow(power)
        weights_N[:first] = 0
        drawable = weights_N.nonzero().squeeze(1)
        if not len(drawable):
            raise DataError(
                f"no item can be drawn as a negative: none of {len(counts_N)} codes from {first} on was counted",
                hint="`set_counts` says how often items occur; codes below are reserved",
            )
        self._last = int(drawable[-1])
        self._ends_N = weights_N.cumsum(0)
        self._log_q_N = (weights_N / weights_N.sum()).log()

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Codes, with replacement: int64 of `shape`."""
        points = torch.rand(shape, dtype=torch.float64, device=generator.device, generator=generator)
        points = points.to(self._ends_N.device) * self._ends_N[-1]
        return torch.searchsorted(self._ends_N, points, right=True).clamp_(max=self._last)

    def log_q(self, codes: Tensor) -> Tensor:
        """ln of the probability of one draw, -inf for what is never drawn: float64 of codes.shape."""
        return self._log_q_N.index_select(0, codes.reshape(-1)).view(codes.shape)


def draw_for_all(sampler: Sampler, samples: int, device: torch.device) -> Tensor:
    """The same draws for all rows of all processes: int64 of [samples]."""
    return sampler.draw((samples,), torch.Generator().manual_seed(shared_seed(device))).to(device)


def draw_for_each(sampler: Sampler, rows: int, samples: int, device: torch.device) -> Tensor:
    """Draws of its own for every row: [rows, samples], of those made for the rows of all processes."""
    generator = torch.Generator().manual_seed(shared_seed(device))
    all_rows = counts(rows, device)
    return sampler.draw((sum(all_rows), samples), generator)[here(all_rows)].to(device)


def hardest(others_BS: Tensor, absent_BS: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """The `keep` highest scores of every row's negatives, and which of them do not count: [B, keep] each."""
    masked_BS = others_BS.detach().masked_fill(absent_BS, -torch.inf)
    place_BK = masked_BS.topk(min(keep, others_BS.shape[1]), dim=1).indices
    return others_BS.gather(1, place_BK), absent_BS.gather(1, place_BK)


class Queue(nn.Module):
    """The item vectors of earlier batches, as they were then, without gradients: negatives that cost nothing.

    Cross-batch negatives (Wang et al., "Cross-batch negative sampling for training two-tower recommenders", SIGIR
    2021). `size` vectors are kept, the newest; they are saved with the model, so that training goes on from a snapshot
    as if it had not stopped. All processes keep the same.
    """

    vectors: Tensor
    codes: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        if size < 1:
            raise ConfigError(f"a queue of {size} vectors", hint="at least 1")
        self.register_buffer("vectors", torch.zeros(size, dim))
        self.register_buffer("codes", torch.full((size,), -1))

    def pool(self) -> Pool:
        """What is in the queue."""
        there = self.codes >= 0
        return Pool(self.vectors[there], self.codes[there])

    @torch.no_grad()
    def push(self, pool: Pool) -> None:
        """Add the newest vectors, and forget as many of the oldest where it is full."""
        size = len(self.codes)  # new tensors: the old ones may be needed for the gradient of this step
        self.vectors = torch.cat([self.vectors, pool.vectors.detach().to(self.vectors)])[-size:]
        self.codes = torch.cat([self.codes, pool.codes.to(self.codes)])[-size:]
