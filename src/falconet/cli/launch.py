"""`falconet launch`: several processes of one script on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from falconet.errors import ConfigError


def launch(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A Python script; what follows it goes to the script.")],
    processes: Annotated[int, typer.Option("-np", "--nproc", min=1, help="How many processes.")] = 1,
) -> None:
    """Run a script in several processes that train one model.

    For several machines use torchrun, srun or mpirun: the script is the same.
    """
    if not script.is_file():
        raise ConfigError(f"no script `{script}`", hint="falconet launch -np 2 SCRIPT.py [its arguments]")
    from falconet.train.launch import launch_script

    launch_script(script, processes, context.args)
