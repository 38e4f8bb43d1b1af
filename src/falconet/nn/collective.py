"""Sums and rows over all processes, as steps that gradients pass through. On one process: nothing happens.

Shapes: B rows here, G rows of all processes, D width, W processes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def is_shared() -> bool:
    """Whether other processes take part."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def from_all(x: Tensor) -> Tensor:
    """Every process's tensor of one shape, by rank: [W, *x.shape]. No gradient."""
    found = x.new_empty(dist.get_world_size(), *x.shape)
    dist.all_gather(list(found.unbind(0)), x.contiguous())
    return found


def counts(rows: int, device: torch.device) -> list[int]:
    """How many rows every process has, by rank."""
    if not is_shared():
        return [rows]
    return [int(n) for n in from_all(torch.tensor(rows, device=device)).tolist()]


def gather(x: Tensor, rows: list[int]) -> Tensor:
    """The rows of all processes below each other: [sum(rows), ...]. No gradient; `rows` is what `counts` gave."""
    if not is_shared():
        return x
    longest = max(rows)
    padded = x.new_zeros(longest, *x.shape[1:])
    padded[: len(x)] = x
    found = from_all(padded) if longest else padded.unsqueeze(0).expand(len(rows), *padded.shape)
    return torch.cat([one[:n] for one, n in zip(found, rows, strict=True)])


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BD: Tensor, rows: list[int]) -> Tensor:
        ctx.rows = rows
        return gather(x_BD, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        total_GD = grads[0].contiguous().clone()
        dist.all_reduce(total_GD)
        start = sum(ctx.rows[: dist.get_rank()])
        return total_GD[start : start + ctx.rows[dist.get_rank()]], None


def gather_rows(x_BD: Tensor, rows: list[int]) -> Tensor:
    """`gather` that gradients pass through: each process's rows get the sum of what all processes made of them."""
    if not is_shared():
        return x_BD
    result: Tensor = _GatherRows.apply(x_BD, rows)  # type: ignore[no-untyped-call]
    return result


def here(rows: list[int]) -> slice:
    """Which of the rows of all processes are this one's; `rows` is what `counts` gave."""
    rank = dist.get_rank() if len(rows) > 1 else 0
    start = sum(rows[:rank])
    return slice(start, start + rows[rank])


def shared_seed(device: torch.device) -> int:
    """A random number from rank 0's generator, the same on all processes: what they draw from it, they draw alike."""
    seed = torch.randint(2**62, (1,))
    if is_shared():
        seed = seed.to(device)
        dist.broadcast(seed, 0)
    return int(seed)
