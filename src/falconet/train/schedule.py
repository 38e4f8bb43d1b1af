"""Numbers that are functions of how far a run is: the learning rate's factor and the seed of a step."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch

from falconet.hashing import MASK, P, splitmix64

Schedule = Literal["constant", "cosine", "linear", "step", "plateau"]


def factor(
    schedule: Schedule, step: int, steps: int, warmup: int, *, decay: float = 0.1, every: int = 10, drops: int = 0
) -> float:
    """What the learning rate is multiplied by in step `step` of `steps`, counted from 0 over all epochs.

    It rises linearly over `warmup` steps, then stays, or falls to 0 at the end: by half a cosine, or by a line. Or it
    is multiplied by `decay`: after each `every` steps ("step"), or after each of `drops` ("plateau").

    >>> [factor("linear", step, 6, 2) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    >>> [factor("step", step, 6, 0, decay=0.5, every=2) for step in range(6)]
    [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    """
    if step < warmup:
        return (step + 1) / warmup
    gone = (step - warmup) / max(steps - warmup, 1)
    match schedule:
        case "constant":
            return 1.0
        case "linear":
            return 1 - gone
        case "cosine":
            return (1 + math.cos(math.pi * gone)) / 2
        case "step":
            return float(decay ** ((step - warmup) // every))
        case "plateau":
            return float(decay**drops)


def step_seed(seed: int, epoch: int, step: int, rank: int) -> int:
    """The seed of what is random in one step on one process, dropout above all. It survives a resume."""
    value = splitmix64(seed & MASK)
    for number in (epoch, step, rank):
        value = splitmix64((value * P + number) & MASK)
    return value >> 1  # torch takes seeds below 2^63


def sow(seed: int) -> None:
    """Set the seed of torch's, numpy's and Python's random numbers."""
    torch.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


@contextmanager
def own_random_numbers() -> Iterator[None]:
    """Within the block, seeds may be set: the caller's random numbers go on afterwards as if nothing had been drawn."""
    theirs, numpys = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(theirs)
            np.random.set_state(numpys)
