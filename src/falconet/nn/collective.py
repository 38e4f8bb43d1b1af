"""What all processes do together: sums and rows of all, some of which gradients pass through. On one: nothing happens.

Small tensors of processes on one machine go over its line (see line.py), all else by torch.distributed.

Shapes: B rows here, G rows of all processes, D width, W processes.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from falconet.nn.line import HEAD, Line, connect

_MOST = 1 << 20  # bytes that a process gives to the others, up to which that costs less than by torch.distributed

_line: tuple[Line, weakref.ref[Any]] | None = None  # and the group that it is of


def is_shared() -> bool:
    """Whether other processes take part."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def open_line(timeout_s: float) -> None:
    """Connect the processes of the group that was just made, which are on one machine and work on its processors; all
    of them call it. Where they cannot be connected all goes by torch.distributed, as without."""
    global _line
    close_line()
    line = connect(
        dist.get_rank(), dist.get_world_size(), timeout_s, lambda numbers: from_all(torch.tensor(numbers)).tolist()
    )
    _line = None if line is None else (line, weakref.ref(dist.group.WORLD))


def close_line() -> None:
    """Before the group is left."""
    global _line
    if _line is not None:
        _line[0].close()
    _line = None


def _line_for(x: Tensor) -> Line | None:
    """The line where it is the better way for a tensor."""
    if _line is None or x.device.type != "cpu" or _line[1]() is not dist.group.WORLD:
        return None
    line = _line[0]
    return line if x.nbytes * (line.world - 1) <= _MOST else None


def _meet(line: Line, x: Tensor, what: str) -> list[Tensor]:
    """Every process's tensor, by rank."""
    x = x.detach().contiguous()
    shape = "×".join(map(str, x.shape)) or "one"
    mine = memoryview(x.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
    others = line.meet(mine, f"{what} of {shape} {str(x.dtype).removeprefix('torch.')}"[:48])
    found = [x] * (len(others) + 1)
    for rank, message in others.items():
        if len(message) > HEAD:
            found[rank] = torch.frombuffer(message, dtype=x.dtype, offset=HEAD).view(x.shape)
    return found


def from_all(x: Tensor) -> Tensor:
    """Every process's tensor of one shape, by rank: [W, *x.shape]. No gradient."""
    if (line := _line_for(x)) is not None:
        return torch.stack(_meet(line, x, "gather"))
    found = x.new_empty(dist.get_world_size(), *x.shape)
    dist.all_gather(list(found.unbind(0)), x.contiguous())
    return found


def all_sum(x: Tensor) -> Tensor:
    """The element-wise sum of every process's tensor of one shape, the same bits on each: a new one. No gradient."""
    total = x.detach().clone()
    if is_shared() and not _summed(total):
        dist.all_reduce(total)
    return total


def all_sum_into(x: Tensor) -> torch.futures.Future[Tensor]:
    """`all_sum` in the place of x, which holds it when the future that is given is done."""
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    if is_shared() and not _summed(x):
        done = dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value()[0])
    else:
        done.set_result(x)
    return done


def _summed(x: Tensor) -> bool:
    """Whether x was summed over the line, in its place, in the order of ranks."""
    if (line := _line_for(x)) is None:
        return False
    total, *more = _meet(line, x, "sum")
    for i, one in enumerate(more, 2):
        total = torch.add(total, one, out=x if i == line.world else None)
    return True


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
        total_GD = all_sum(grads[0].contiguous())
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
    seed = torch.randint(2**62, ())
    return int(from_all(seed.to(device))[0] if is_shared() else seed)
