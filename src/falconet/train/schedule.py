"""Numbers that are functions of the step alone: the learning rate's factor and the seed of a step."""

from __future__ import annotations

import math
from typing import Literal

from falconet.hashing import MASK, P, splitmix64

Schedule = Literal["constant", "cosine", "linear"]


def factor(schedule: Schedule, step: int, steps: int, warmup: int) -> float:
    """What the learning rate is multiplied by in step `step` of `steps`, counted from 0 over all epochs.

    It rises linearly over `warmup` steps, then stays, or falls to 0 at the end: by half a cosine, or by a line.

    >>> [factor("linear", step, 6, 2) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    gone = (step - warmup) / max(steps - warmup, 1)
    return 1 - gone if schedule == "linear" else (1 + math.cos(math.pi * gone)) / 2


def step_seed(seed: int, epoch: int, step: int, rank: int) -> int:
    """The seed of what is random in one step on one process, dropout above all. It survives a resume."""
    value = splitmix64(seed & MASK)
    for number in (epoch, step, rank):
        value = splitmix64((value * P + number) & MASK)
    return value >> 1  # torch takes seeds below 2^63
