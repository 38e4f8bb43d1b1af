"""What the tests of collective.py run in several processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from falconet.errors import DistributedError
from falconet.nn import collective
from falconet.nn.collective import all_sum, all_sum_into, counts, from_all, gather, gather_rows, shared_seed
from falconet.train.runtime import Runtime, _leave

SHAPES = ((), (0,), (1,), (7,), (3, 5), (0, 4), (2, 1, 3), (70_000,))
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8)


def made(shape: tuple[int, ...], dtype: torch.dtype, rank: int) -> Tensor:
    random = torch.Generator().manual_seed(rank + 1)
    x = torch.randn(shape, generator=random) if dtype.is_floating_point else torch.randint(9, shape, generator=random)
    return x.to(dtype)


def has_line() -> bool:
    return collective._line is not None


def all_kinds(runtime: Runtime) -> dict[str, Any]:
    """Of every shape and type: this process's tensor, everybody's, the sum, and the sum in its place."""
    found: dict[str, Any] = {}
    for dtype in (*TYPES, torch.bool):
        for shape in SHAPES:
            x = made(shape, dtype, runtime.rank)
            found[f"{shape} {dtype} gather"] = from_all(x)
            if dtype == torch.bool:
                continue
            kept = x.clone()
            found[f"{shape} {dtype} sum"] = all_sum(x)
            assert torch.equal(x, kept)
            future = all_sum_into(x)
            assert future.wait() is x
            found[f"{shape} {dtype} into"] = x
    turned = made((3, 5), torch.float32, runtime.rank).T
    found["turned gather"], found["turned sum"] = from_all(turned), all_sum(turned)
    needed = made((3,), torch.float32, runtime.rank).requires_grad_()
    found["grad gather"], found["grad sum"] = from_all(needed), all_sum(needed)
    rows = counts(runtime.rank * 2, torch.device("cpu"))
    x = made((runtime.rank * 2, 3), torch.float32, runtime.rank).requires_grad_()
    of_all = gather_rows(x, rows)
    (of_all * (runtime.rank + 1)).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    found["rows"], found["gathered"], found["gradient"] = rows, of_all.detach(), gather(x.grad, rows)
    torch.manual_seed(runtime.rank)
    found["seed"] = shared_seed(torch.device("cpu"))
    return found


def both_ways() -> dict[str, Any]:
    """All of it over the line and by torch.distributed; from the first process, and whether all have the same."""
    torch.set_num_threads(1)
    with Runtime.start() as runtime:
        found: dict[str, Any] = {"has_line": has_line(), "line": all_kinds(runtime)}
        for x in found["line"].values():
            if isinstance(x, Tensor) and x.numel():
                bits = x.contiguous().view(-1).view(torch.uint8).int()
                dist.all_reduce(whole := bits.clone())
                assert torch.equal(whole, bits * runtime.world)
        collective.close_line()
        return found | {"torch": all_kinds(runtime)}


def again_and_again() -> list[list[int]]:
    """Files that are open after each of several groups in one process, and what it was told."""
    _leave()  # the group that the launcher has all join
    found = []
    for i in range(5):
        with Runtime.start() as runtime:
            assert has_line()
            told = from_all(torch.tensor([runtime.rank * 10 + i])).flatten().tolist()
        assert not has_line()
        found.append([len(list(Path("/proc/self/fd").iterdir())), *told])
    return found


def without_a_line() -> tuple[list[bool], list[float]]:
    """Where one process cannot listen, and in a group that torch made: whether there is a line, and a sum."""
    _leave()  # the group that the launcher has all join
    found, sums = [], []
    with pytest.MonkeyPatch.context() as patch:
        if Runtime.peek()[0] == 0:  # whom the other one calls
            patch.setattr("falconet.nn.line._listening", lambda *_: None)
        with Runtime.start() as runtime:
            found.append(has_line())
            sums.append(float(all_sum(torch.tensor(runtime.rank + 1.0))))
    with Runtime.start() as runtime:
        found.append(has_line())
        dist.destroy_process_group()  # not by us: the line is of a group that is no more
        store = TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False)
        dist.init_process_group("gloo", store=PrefixStore("own", store), rank=runtime.rank, world_size=2)
        found.append(collective._line_for(torch.zeros(1)) is not None)
        sums.append(float(all_sum(torch.tensor(runtime.rank + 1.0))))
    return found, sums


def dies_in_a_sum(folder: Path, last: int) -> None:
    """The last process is gone without a word while the others wait for it; each writes what it was told, and when."""
    torch.set_num_threads(1)
    with Runtime.start() as runtime:
        assert has_line()
        runtime.barrier()
        if runtime.rank == last:
            time.sleep(0.5)
            (folder / "killed").write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            runtime.sums(torch.ones(3))
        except DistributedError as error:
            (folder / str(runtime.rank)).write_text(f"{time.time()} {error.args[0]}")
            raise


def parts() -> None:
    """One process adds up what the other one gathers."""
    with Runtime.start() as runtime:
        (from_all if runtime.rank else all_sum)(torch.ones(2, 3))


def sleeps() -> list[float]:
    """One process comes late, and the other waits."""
    with Runtime.start() as runtime:
        time.sleep(2.0 * runtime.rank)
        return from_all(torch.tensor([runtime.rank * 1.0])).flatten().tolist()
