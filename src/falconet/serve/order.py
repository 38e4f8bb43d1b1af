"""The order of candidates once each has a score: as it is, drawn by chance, or so that neighbours differ.

Shapes: K candidates.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def best(scores_K: Tensor, k: int) -> list[int]:
    """Places of the best k, best first; equal ones stay in their order."""
    scores = scores_K.numpy()
    near = np.arange(len(scores))
    if k < len(scores):
        near = np.flatnonzero(~(scores < np.partition(scores, len(scores) - k)[len(scores) - k]))
    order: list[int] = near[np.argsort(-scores[near], kind="stable")][:k].tolist()
    return order


def drawn(scores_K: Tensor, temperature: float, seed: int) -> Tensor:
    """Scores whose order is a draw: k of them are k draws without replacement with weights exp(score / temperature).

    Adds Gumbel noise (Kool et al., ICML 2019). The same for the same seed and number of candidates.
    """
    generator = torch.Generator().manual_seed(seed & (2**63 - 1))
    exponential_K = torch.empty_like(scores_K, dtype=torch.float64).exponential_(generator=generator)
    return scores_K.double() / temperature - exponential_K.log()


def diverse(scores_K: Tensor, near: Callable[[int], Tensor], k: int, diversity: float) -> list[int]:
    """Places of k candidates, each the best of (1 - diversity) · score - diversity · likeness to those before it.

    Scores are stretched to [0, 1]; likeness is how near a candidate is to all, `near(place)` from -1 to 1, moved there.
    """
    scores_K = scores_K.double()
    low, high = scores_K.min(), scores_K.max()
    value_K = (scores_K - low) / (high - low) if high > low else torch.ones_like(scores_K)
    alike_K = torch.zeros_like(value_K)
    chosen: list[int] = []
    while len(chosen) < min(k, len(value_K)):
        gain_K = (1 - diversity) * value_K - diversity * alike_K
        gain_K[chosen] = -torch.inf
        chosen.append(int(gain_K.argmax()))
        alike_K = torch.maximum(alike_K, near(chosen[-1]).double().add(1).div(2))
    return chosen
