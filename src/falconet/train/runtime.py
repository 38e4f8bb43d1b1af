"""This process among the others: its rank, its device, and what they tell each other.

Works under plain Python, torchrun, `falconet launch`, srun (SLURM), and mpirun or ibrun (Open MPI, MPICH and Intel
MPI, MVAPICH2); `place` reads their variables.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from falconet.arguments import explained
from falconet.errors import ConfigError, DistributedError, FalconetError
from falconet.nn.collective import all_sum, close_line, open_line
from falconet.progress import note
from falconet.train.meeting import find, hold, interface_to
from falconet.train.place import Meeting, Place, read_meeting, read_place


@dataclass(frozen=True)
class Runtime:
    """This process among `world`. Use `with Runtime.start() as runtime:`; the group is left at the end of the block."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    owns_group: bool = False

    @classmethod
    @explained
    def start(cls, *, device: str | None = None, timeout_s: float = 1800.0) -> Runtime:
        """Join the processes that a launcher started, or stand alone.

        `device`: "cpu" or "cuda"; by default a GPU that this torch can use, else the CPU. A group that exists already
        is used and not left. Raises ConfigError for launcher variables that contradict each other, DistributedError
        where the processes do not find each other within `timeout_s`.
        """
        place = read_place(os.environ)
        chosen = _device(device, place)
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)  # before the group is made, or NCCL takes GPU 0 on every rank
        owns = place.world > 1 and not dist.is_initialized()
        if owns:
            _init(place, chosen, timeout_s)
        if dist.is_initialized() and (dist.get_rank(), dist.get_world_size()) != (place.rank, place.world):
            place = Place("torch", dist.get_rank(), dist.get_world_size(), place.local_rank, place.local_world)
        return cls(place.rank, place.world, place.local_rank, place.local_world, chosen, owns)

    @classmethod
    def peek(cls) -> tuple[int, int]:
        """(rank, world) without joining anything."""
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        place = read_place(os.environ)
        return place.rank, place.world

    def __enter__(self) -> Runtime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group, where `start` made it; at the latest when the program ends."""
        if self.owns_group:
            _leave()

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes and prints."""
        return self.rank == 0

    @property
    def is_local_main(self) -> bool:
        """Whether this is the first process of its machine."""
        return self.local_rank == 0

    def note(self, message: str) -> None:
        """A line on stderr, from the main process alone."""
        if self.is_main:
            note(message)

    @contextmanager
    def main_first(self, *, local: bool = True) -> Iterator[None]:
        """One process runs the block before the others do: a download happens once per machine (or once in all).

        The others wait, also when the first one fails.
        """
        first = self.is_local_main if local else self.is_main
        try:
            if not first:
                self.barrier()
            yield
        finally:
            if first:
                self.barrier()

    def barrier(self) -> None:
        """Wait until every process is here."""
        if self.world > 1:
            self.sums(torch.zeros(1))

    def sums(self, values: Tensor) -> Tensor:
        """The element-wise sum over all processes, the same bits on each; `values` keeps its own."""
        if self.world == 1:
            return values.clone()
        return all_sum(values.to(self.device)).to(values.device)

    def broadcast(self, value: Any) -> Any:
        """Rank 0's plain value (numbers, strings, lists, dicts), on every process."""
        if self.world == 1:
            return value
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(self.device)
        length = torch.tensor([len(data)], device=self.device)
        dist.broadcast(length, 0)
        if not self.is_main:
            data = torch.empty(int(length), dtype=torch.uint8, device=self.device)
        dist.broadcast(data, 0)
        return json.loads(bytes(data.cpu().tolist()))

    def on_main(self, act: Callable[[], Any]) -> Any:
        """The plain value that `act`, run by the main process alone, gives; its FalconetError is raised on all."""
        if self.world == 1:
            return act()
        value, mistake = None, None
        if self.is_main:
            try:
                value = act()
            except FalconetError as error:
                mistake = error
        failed = self.broadcast(None if mistake is None else [str(mistake.args[0]), mistake.hint])
        if mistake is not None:
            raise mistake
        if failed is not None:
            raise DistributedError(failed[0], hint=failed[1])
        return self.broadcast(value)


def _device(asked: str | None, place: Place) -> torch.device:
    """The GPU of this local rank where torch can use it, else the CPU; a GPU it cannot use is named."""
    if asked not in (None, "cpu", "cuda"):
        raise ConfigError(f"device must be cpu or cuda, not {asked!r}")
    if asked == "cpu" or not torch.cuda.is_available():
        if asked == "cuda":
            raise ConfigError("no GPU that this torch can use", hint='device="cpu", or install a CUDA build of torch')
        return torch.device("cpu")
    count = torch.cuda.device_count()
    index = 0 if place.own_gpu else place.local_rank
    if place.local_world > count and not place.own_gpu:  # all of them decide alike, or they would not find each other
        if asked == "cuda":
            raise ConfigError(f"{place.local_world} processes on a machine with {count} GPU(s)", hint="one per GPU")
        if place.local_rank == 0:
            note(f"{place.local_world} processes and {count} GPU(s): all of them use the CPU")
        return torch.device("cpu")
    if not built_for(torch.cuda.get_device_capability(index), torch.cuda.get_arch_list()):
        note(f"this torch was not built for {torch.cuda.get_device_name(index)}: using the CPU")
        return torch.device("cpu")
    return torch.device("cuda", index)


def built_for(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Whether machine code (sm_XY) of the GPU's own generation, or code to compile for it (compute_XY), is there."""
    own = capability[0] * 10 + capability[1]
    for architecture in architectures:
        kind, _, number = architecture.rstrip("af").partition("_")
        if int(number) <= own and (kind == "compute" or int(number) // 10 == capability[0]):
            return True
    return not architectures


_store: TCPStore | None = None  # kept, so that a group can be left and another one joined in the same process
_joined = count()


def _init(place: Place, device: torch.device, timeout_s: float) -> None:
    global _store
    meeting = read_meeting(os.environ, place)
    timeout = timedelta(seconds=timeout_s)
    try:
        if _store is None:
            _store = _meet(place, meeting, timeout)
        if place.world > place.local_world and (interface := interface_to(meeting.address)) is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # what an earlier attempt left there is not ours
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=PrefixStore(f"falconet-{attempt}-{next(_joined)}", _store),
            rank=place.rank,
            world_size=place.world,
            timeout=timeout,
            device_id=device if device.type == "cuda" else None,
        )
        if place.world == place.local_world and device.type == "cpu":
            open_line(timeout_s)
    except (RuntimeError, ValueError) as error:
        raise DistributedError(
            f"rank {place.rank} of {place.world} (started by {place.launcher}) did not find the others "
            f"at {meeting.address}:{meeting.port}: {error}",
            hint="MASTER_ADDR and MASTER_PORT name a free port of rank 0's machine that the others can reach",
        ) from error
    atexit.register(_leave)


def _meet(place: Place, meeting: Meeting, timeout: timedelta) -> TCPStore:
    if meeting.agent:  # torchrun and `launch` hold the port already, and rank 0 joins like all others
        return TCPStore(meeting.address, meeting.port, place.world, is_master=False, timeout=timeout)
    return hold(meeting, timeout) if place.rank == 0 else find(meeting, timeout)


def _leave() -> None:
    close_line()
    if dist.is_initialized():
        gc.collect()  # a DistributedDataParallel that outlives its group aborts the process at its end, now and then
        dist.destroy_process_group()
