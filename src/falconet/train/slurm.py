"""A batch script for SLURM that starts one launcher on each node, and lets a job that runs out of time go on later."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from falconet.errors import ConfigError

_BEFORE = 120  # seconds before the time limit at which the job is told


@dataclass(frozen=True, kw_only=True)
class BatchJob:
    """What to ask the queue for."""

    nodes: int = 1
    processes: int = 1  # on each node
    gpus: int = 0  # on each node
    time: str | None = None  # as SLURM takes it: minutes, HH:MM:SS, D-HH:MM:SS
    account: str | None = None
    partition: str | None = None
    cpus: int | None = None  # on each node; without a number the whole node
    max_restarts: int = 0

    def __post_init__(self) -> None:
        for name, least in (("nodes", 1), ("processes", 1), ("gpus", 0), ("max_restarts", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"`{name}` is {getattr(self, name)}", hint=f"at least {least}")
        if self.cpus is not None and self.cpus < 1:
            raise ConfigError(f"`cpus` is {self.cpus}", hint="at least 1")
        for name in ("time", "account", "partition"):
            value = getattr(self, name)
            if value is not None and (not value or value.startswith("-") or any(c.isspace() for c in value)):
                raise ConfigError(f"`{name}` is {value!r}", hint="one word, as SLURM takes it")


def batch_script(script: str, args: Sequence[str], job: BatchJob, *, python: str = "python") -> str:
    """The text of the batch script; `python` is the interpreter on the nodes."""
    asked = {
        "job-name": "".join(c if c.isalnum() or c in "-_." else "-" for c in script.rpartition("/")[2]),
        "nodes": job.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": job.cpus,
        "gpus-per-node": job.gpus or None,
        "time": job.time,
        "account": job.account,
        "partition": job.partition,
        "output": "%x-%j.out",
    }
    options = "\n".join(f"#SBATCH --{name}={value}" for name, value in asked.items() if value is not None)
    options += "" if job.cpus else "\n#SBATCH --exclusive"
    cores = f"--cpus-per-task={job.cpus}" if job.cpus else "--cpu-bind=none"
    restarts = f" --max-restarts {job.max_restarts}" if job.max_restarts else ""
    command = f"{shlex.quote(python)} -m falconet launch -np {job.processes} --nnodes {job.nodes}{restarts} --usr1 stop"
    return f"""\
#!/bin/bash
{options}
# {_BEFORE} seconds before the time is up the batch shell is told. It tells the launchers, which end their processes
# after a snapshot, and puts the job back into the queue. The script goes on from there if its training has a folder
# and asks for resume="auto".
#SBATCH --signal=B:USR1@{_BEFORE}
#SBATCH --requeue
#SBATCH --open-mode=append

# The job has the environment that sbatch was called in. Where that lacks falconet, activate another here.

set -u
told=no
trap 'told=yes; kill -USR1 "$launchers"' USR1

# One launcher per node, which shares out the cores among its processes. They find node 0 by the list of nodes, at a
# port that follows from the job's number.
srun --ntasks-per-node=1 {cores} --kill-on-bad-exit=1 \\
    {command} \\
    {shlex.join([script, *args])} &
launchers=$!

wait "$launchers"
code=$?
while kill -0 "$launchers" 2>/dev/null; do # the signal broke off the wait
    wait "$launchers"
    code=$?
done

if [ "$told" = yes ] && [ "$code" -ne 0 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""
