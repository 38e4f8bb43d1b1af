"""Which process this is, among how many, and where they meet: read from a launcher's variables, and from nowhere else.

Launchers: torchrun and `falconet launch`; srun (SLURM); mpirun and ibrun (Open MPI, MPICH and Intel MPI, MVAPICH2).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from falconet.errors import ConfigError

FIRST_PORT, PORTS = 20000, 12000  # below the ports that systems hand out themselves


@dataclass(frozen=True)
class Place:
    """What a launcher says of this process."""

    launcher: str
    rank: int
    world: int
    local_rank: int
    local_world: int
    own_gpu: bool = False  # the launcher shows each process its own GPU alone


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


def read_place(env: Mapping[str, str]) -> Place:
    """Rank and world by the variables of a launcher; alone where there are none.

    One launcher may have started another (srun a torchrun per node): the inner one rules. Raises ConfigError where two
    contradict each other, or one contradicts itself.
    """
    found = [(launcher, place) for launcher in _LAUNCHERS if (place := _place(env, launcher)) is not None]
    if not found:
        if "PMIX_RANK" in env:
            raise ConfigError(
                "PMIX_RANK is set, but nothing says how many processes there are",
                hint="start them with srun, mpirun, torchrun or `falconet launch`, or set RANK and WORLD_SIZE",
            )
        return ALONE
    (inner, first), *outer = found
    for launcher, other in outer:
        nested = first.launcher == "torchrun" and "TORCHELASTIC_RUN_ID" in env
        same_world = first.world == other.world and not nested
        if first.world % other.world or (same_world and first.rank != other.rank):
            raise ConfigError(
                f"two launchers disagree: {inner.rank}={first.rank} of {inner.world}={first.world} ({first.launcher}), "
                f"{launcher.rank}={other.rank} of {launcher.world}={other.world} ({other.launcher})",
                hint="start the processes with one of them, or unset the other's variables",
            )
        if same_world and not _has_local(env, inner) and _has_local(env, launcher):
            first = replace(first, local_rank=other.local_rank, local_world=other.local_world)
        first = replace(first, own_gpu=first.own_gpu or (same_world and other.own_gpu))
    pmix = _number(env, "PMIX_RANK")
    if first.launcher in ("Open MPI", "SLURM") and pmix not in (None, first.rank):
        raise ConfigError(
            f"PMIX_RANK={pmix} and {inner.rank}={first.rank} ({first.launcher}) contradict each other",
            hint="start the processes with one launcher, or unset the other's variables",
        )
    return first


def _place(env: Mapping[str, str], launcher: Launcher) -> Place | None:
    if launcher.name == "SLURM" and "SLURM_STEP_ID" not in env:
        return None  # inside `sbatch` or `salloc`, but not under srun: this is the only process
    rank, world = _number(env, launcher.rank), _number(env, launcher.world)
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
    if launcher.name == "SLURM":
        local_world = _tasks_here(env) or local_world
    if local_world is None:
        local_world = 1 if local_rank is None else local_rank + 1
    if local_rank is None:
        local_rank = rank % local_world
    if local_rank >= local_world:
        raise ConfigError(
            f"{launcher.local_rank}={local_rank} does not fit {launcher.local_world}={local_world}",
            hint="local ranks go from 0 to the number of processes on this machine - 1",
        )
    if launcher.name == "torchrun" and world % local_world == 0 and local_rank != rank % local_world:
        raise ConfigError(
            f"RANK={rank} and LOCAL_RANK={local_rank} contradict each other with LOCAL_WORLD_SIZE={local_world}",
            hint="RANK = node x LOCAL_WORLD_SIZE + LOCAL_RANK",
        )
    own_gpu = launcher.name == "SLURM" and ("SLURM_GPUS_PER_TASK" in env or "gpu" in env.get("SLURM_TRES_PER_TASK", ""))
    return Place(launcher.name, rank, world, local_rank, local_world, own_gpu)


def _has_local(env: Mapping[str, str], launcher: Launcher) -> bool:
    return launcher.local_rank in env


def _tasks_here(env: Mapping[str, str]) -> int | None:
    """Tasks of this step on this node, from "4(x2),3": four on each of the first two nodes, three on the third."""
    text = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE")
    if text is None or not re.fullmatch(r"\d+(\(x\d+\))?(,\d+(\(x\d+\))?)*", text):
        return None
    tasks = [int(n) for n, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text) for _ in range(int(times or 1))]
    node = _number(env, "SLURM_NODEID") or 0
    return tasks[node] if node < len(tasks) else None


def _number(env: Mapping[str, str], name: str) -> int | None:
    if name not in env:
        return None
    # SLURM_NTASKS_PER_NODE may read "4(x2)": four on each of two nodes.
    text = env[name].split("(")[0].split(",")[0].strip()
    if not text.isdigit():
        raise ConfigError(f"{name}={env[name]!r} is not a number", hint="the launcher sets it; do not set it empty")
    return int(text)


@dataclass(frozen=True)
class Meeting:
    """Where processes find each other. The port may be the next free one, for those who all know `job`."""

    address: str
    port: int
    job: str | None = None
    agent: bool = False  # whoever started the processes holds the port already

    @property
    def ports(self) -> range:
        """Where to look: the port alone, or some after it."""
        return range(self.port, self.port + (1 if self.job is None else 16))


def read_meeting(env: Mapping[str, str], place: Place) -> Meeting:
    """Where the processes of this job meet: MASTER_ADDR and MASTER_PORT, else its first machine and its number's port.

    Raises ConfigError where nothing tells the address.
    """
    port = _number(env, "MASTER_PORT")
    agent = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address = env.get("MASTER_ADDR") or ("127.0.0.1" if place.world <= place.local_world else first_machine(env))
    if address is None:
        raise ConfigError(
            f"{place.world} processes on several machines ({place.launcher}), but MASTER_ADDR is not set",
            hint="set MASTER_ADDR to the name of rank 0's machine, for all of them",
        )
    if port is not None:
        return Meeting(address, port, agent=agent)
    job = job_of(env, place)
    if job is None and place.launcher == "torchrun":
        raise ConfigError(
            "RANK and WORLD_SIZE are set, but MASTER_PORT is not", hint="use torchrun or `falconet launch`"
        )
    if job is None and place.world > place.local_world:
        raise ConfigError(
            f"{place.world} processes on several machines ({place.launcher}), but MASTER_PORT is not set",
            hint="set MASTER_PORT to a free port of rank 0's machine, for all of them",
        )
    # On one machine all of them have one parent.
    job = job or f"parent {os.getppid()}"
    return Meeting(address, port_of(job), job)


def first_machine(env: Mapping[str, str]) -> str | None:
    """The first machine of a batch job."""
    if nodes := env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST"):
        return first_host(nodes)
    for name in ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE"):
        if name in env and Path(env[name]).is_file():
            return next(iter(Path(env[name]).read_text().split()), None)
    return next(iter(env.get("LSB_HOSTS", "").split()), None)


def first_host(nodes: str) -> str:
    """The first name of a SLURM list of nodes.

    >>> first_host("c[401-402,409]n[03-04],d7"), first_host("login1,c401")
    ('c401n03', 'login1')
    """
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)[0])  # type: ignore[index]


def job_of(env: Mapping[str, str], place: Place) -> str | None:
    """What is the same for all processes of a job and for no others: the number their launcher or the queue gave it."""
    if place.launcher == "Open MPI":
        for name in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_jobid"):
            if name in env:
                return f"mpirun {env[name]}"
    if "SLURM_JOB_ID" in env:
        step = env.get("SLURM_STEP_ID", "") if place.launcher == "SLURM" else ""
        return f"SLURM {env['SLURM_JOB_ID']}.{step}.{env.get('SLURM_RESTART_COUNT', '0')}"
    return next((f"{name} {env[name]}" for name in ("PBS_JOBID", "LSB_JOBID") if name in env), None)


def port_of(job: str) -> int:
    """A port that all processes of a job come to without talking.

    >>> port_of("SLURM 4711.0.0")
    28088
    """
    return FIRST_PORT + int.from_bytes(hashlib.sha256(job.encode()).digest()[:4], "big") % PORTS
