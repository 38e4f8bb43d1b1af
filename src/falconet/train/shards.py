"""Tables as files: the rows and state that each process holds, and who takes over which of them.

`held`: by table, what this process has of it by name, rows under "" and their state, [rows] or [rows, width].
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from falconet.train.placement import Plan
from falconet.train.runtime import Runtime

Held = Mapping[str, Mapping[str, Tensor]]


def on_main(plan: Plan, held: Held, runtime: Runtime, shard: int) -> dict[str, Tensor] | None:
    """On the main process: what process `shard` holds, under names for a file; else None. All processes call it."""
    mine = _of_shard(plan, held, runtime, shard)
    if shard == 0 or runtime.rank not in (0, shard):
        return mine if runtime.is_main else None
    if runtime.rank == shard:
        for x in mine.values():
            dist.send(_bytes(x), 0)
        return None
    found = {}
    for name, x in mine.items():
        found[name] = torch.empty_like(x)
        dist.recv(_bytes(found[name]), shard)
    return found


def _of_shard(plan: Plan, held: Held, runtime: Runtime, shard: int) -> dict[str, Tensor]:
    """The tensors of a shard: this process's own, or empty ones of their shapes."""
    found = {}
    for name, placed in plan.items():
        if not placed.is_dealt and shard:
            continue
        rows = len(range(placed.size.rows)[placed.layout.of(shard)]) if placed.is_dealt else placed.size.rows
        for key, x in held[name].items():
            own = not placed.is_dealt or shard == runtime.rank
            found[f"{name}/{key}" if key else name] = x if own else x.new_empty(rows, *x.shape[1:])
    return found


def take_over(plan: Plan, held: Held, runtime: Runtime, tensors: Mapping[str, Tensor], shard: int, shards: int) -> None:
    """Put what belongs here of one of the `shards` that `on_main` gave into `held`.

    A shard has all rows of a table, or rows `shard`, `shard + shards`, ...; names that are not there are left out.
    """
    for name, placed in plan.items():
        for key, mine in held[name].items():
            given = tensors.get(f"{name}/{key}" if key else name)
            if given is None or not len(given):
                continue
            rows = placed.size.rows
            ids_N = torch.arange(rows) if len(given) == rows else torch.arange(shard, rows, shards)
            if placed.is_dealt:
                here_N = placed.layout.owners(ids_N) == runtime.rank
                ids_N, given = placed.layout.places(ids_N[here_N]), given[here_N]
            mine.index_copy_(0, ids_N.to(mine.device), given.to(mine))


def _bytes(x: Tensor) -> Tensor:
    return (x if x.dim() > 1 else x.unsqueeze(1)).contiguous().view(torch.uint8)
