"""`falconet launch`: several processes of one script on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from falconet.errors import ConfigError


def launch(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A Python script; what follows it goes to the script.")],
    processes: Annotated[int, typer.Option("-np", "--nproc", min=1, help="How many processes.")] = 1,
) -> None:
    """Run a script in several processes that train one model, by torchrun.

    For several machines use torchrun, srun or mpirun themselves: the script is the same.
    """
    if not script.is_file():
        raise ConfigError(f"no script `{script}`", hint="falconet launch -np 2 SCRIPT.py [its arguments]")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += [str(script), *context.args]
    environment = {"OMP_NUM_THREADS": str(_threads_each(processes)), **os.environ}
    if os.name == "nt":  # torch for Windows is built without libuv; and `exec` would not wait there
        environment.setdefault("USE_LIBUV", "0")
        raise typer.Exit(subprocess.run(command, env=environment, check=False).returncode)  # noqa: S603
    os.execve(command[0], command, environment)  # noqa: S606 - signals and the exit code are then torchrun's own


def _threads_each(processes: int) -> int:
    """Threads for each of several processes that share this machine's cores; torchrun alone would give them one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // processes)
