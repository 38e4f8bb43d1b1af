"""Where this process stands among the others. The only reader of launcher variables.

Works under plain Python, torchrun, `falconet launch`, srun (SLURM), and mpirun or ibrun (Open MPI, MPICH and Intel
MPI, MVAPICH2).
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
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

from falconet.errors import ConfigError, DistributedError, FalconetError
from falconet.progress import note


@dataclass(frozen=True)
class Place:
    """What a launcher says of this process."""

    launcher: str
    rank: int
    world: int
    local_rank: int
    local_world: int


ALONE = Place("none", 0, 1, 0, 1)


@dataclass(frozen=True)
class Launcher:
    """The variables in which one kind of launcher says it. The inner kinds stand before those that may hold them."""

    name: str
    rank: str
    world: str
    local_rank: str
    local_world: str


_OMPI, _MV2 = "OMPI_COMM_WORLD_", "MV2_COMM_WORLD_"
_LAUNCHERS = (
    Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    Launcher("Open MPI", _OMPI + "RANK", _OMPI + "SIZE", _OMPI + "LOCAL_RANK", _OMPI + "LOCAL_SIZE"),
    Launcher("MVAPICH2", _MV2 + "RANK", _MV2 + "SIZE", _MV2 + "LOCAL_RANK", _MV2 + "LOCAL_SIZE"),
    Launcher("MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    Launcher("SLURM", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)


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
        total = values.detach().to(self.device, copy=True)
        dist.all_reduce(total)
        return total.to(values.device)

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


def read_place(env: Mapping[str, str]) -> Place:
    """Rank and world by the variables of a launcher; alone where there are none.

    One launcher may have started another (srun a torchrun per node): the inner one rules. Raises ConfigError where two
    contradict each other, or one contradicts itself.
    """
    found = [place for launcher in _LAUNCHERS if (place := _place(env, launcher)) is not None]
    if not found:
        return ALONE
    first = found[0]
    for other in found[1:]:
        same_world = first.world == other.world and "TORCHELASTIC_RUN_ID" not in env
        if first.world % other.world or (same_world and first.rank != other.rank):
            raise ConfigError(
                f"two launchers disagree: {first.launcher} says rank {first.rank} of {first.world}, "
                f"{other.launcher} says rank {other.rank} of {other.world}",
                hint="start the processes with one of them, or unset the other's variables",
            )
    return first


def _place(env: Mapping[str, str], launcher: Launcher) -> Place | None:
    rank, world = _number(env, launcher.rank), _number(env, launcher.world)
    if launcher.name == "SLURM" and "SLURM_STEP_ID" not in env:
        return None  # inside `sbatch` or `salloc`, but not under srun: this is the only process
    if rank is None and world is None:
        return None
    if rank is None or world is None:
        given, missing = (launcher.world, launcher.rank) if rank is None else (launcher.rank, launcher.world)
        raise ConfigError(f"{given} is set, but {missing} is not", hint="use torchrun or `falconet launch`")
    if rank >= world:
        raise ConfigError(
            f"{launcher.rank}={rank} does not fit {launcher.world}={world}", hint="ranks go from 0 to world - 1"
        )
    local_rank, local_world = _number(env, launcher.local_rank), _number(env, launcher.local_world)
    if local_world is None:
        local_world = 1 if local_rank is None else min(world, max(local_rank + 1, torch.cuda.device_count()))
    if local_rank is None:
        local_rank = rank % local_world
    if launcher.name == "torchrun" and world % local_world == 0 and local_rank != rank % local_world:
        raise ConfigError(
            f"RANK={rank} and LOCAL_RANK={local_rank} contradict each other with LOCAL_WORLD_SIZE={local_world}",
            hint="RANK = node x LOCAL_WORLD_SIZE + LOCAL_RANK",
        )
    return Place(launcher.name, rank, world, local_rank, local_world)


def _number(env: Mapping[str, str], name: str) -> int | None:
    if name not in env:
        return None
    # SLURM_NTASKS_PER_NODE may read "4(x2)": four on each of two nodes.
    text = env[name].split("(")[0].split(",")[0].strip()
    if not text.isdigit():
        raise ConfigError(f"{name}={env[name]!r} is not a number", hint="the launcher sets it; do not set it empty")
    return int(text)


def _device(asked: str | None, place: Place) -> torch.device:
    """The GPU of this local rank where torch can use it, else the CPU; a GPU it cannot use is named."""
    if asked not in (None, "cpu", "cuda"):
        raise ConfigError(f"device must be cpu or cuda, not {asked!r}")
    if asked == "cpu" or not torch.cuda.is_available():
        if asked == "cuda":
            raise ConfigError("no GPU that this torch can use", hint='device="cpu", or install a CUDA build of torch')
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if place.local_world > count:  # all of them decide alike, or they would not find each other
        if asked == "cuda":
            raise ConfigError(f"{place.local_world} processes on a machine with {count} GPU(s)", hint="one per GPU")
        if place.local_rank == 0:
            note(f"{place.local_world} processes and {count} GPU(s): all of them use the CPU")
        return torch.device("cpu")
    if not _built_for(torch.cuda.get_device_capability(place.local_rank), torch.cuda.get_arch_list()):
        note(f"this torch was not built for {torch.cuda.get_device_name(place.local_rank)}: using the CPU")
        return torch.device("cpu")
    return torch.device("cuda", place.local_rank)


def _built_for(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
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
    address = os.environ.get("MASTER_ADDR") or _address(os.environ)
    port = _number(os.environ, "MASTER_PORT") or _port(os.environ)
    timeout = timedelta(seconds=timeout_s)
    try:
        if _store is None:
            # Under torchrun and `launch` the agent holds the port already, and rank 0 joins like all others.
            hosts = place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
            _store = TCPStore(address, port, place.world, is_master=hosts, timeout=timeout)
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=PrefixStore(f"falconet-{next(_joined)}", _store),
            rank=place.rank,
            world_size=place.world,
            timeout=timeout,
            device_id=device if device.type == "cuda" else None,
        )
    except (RuntimeError, ValueError) as error:
        raise DistributedError(
            f"rank {place.rank} of {place.world} (started by {place.launcher}) did not find the others "
            f"at {address}:{port}: {error}",
            hint="MASTER_ADDR and MASTER_PORT name a free port of rank 0's machine that the others can reach",
        ) from error
    atexit.register(_leave)


def _leave() -> None:
    if dist.is_initialized():
        gc.collect()  # a DistributedDataParallel that outlives its group aborts the process at its end, now and then
        dist.destroy_process_group()


def _address(env: Mapping[str, str]) -> str:
    """Rank 0's machine: the first node of the job, or this one."""
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST")
    if not nodes:
        return "127.0.0.1"
    head, bracket, rest = nodes.partition("[")
    if "," in head:
        return head.split(",")[0]
    return head + rest.split(",")[0].split("-")[0].split("]")[0] if bracket else head


def _port(env: Mapping[str, str]) -> int:
    """A port that all processes of a job agree on without talking, from the job's number."""
    job = next((env[n] for n in ("SLURM_JOB_ID", "PMI_ID", "OMPI_MCA_orte_jobid", "PBS_JOBID") if n in env), "")
    return 20000 + int.from_bytes(hashlib.sha256(job.encode()).digest()[:2], "big") % 20000
