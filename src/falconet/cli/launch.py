"""`falconet launch`: several processes of one script, on this machine or on several."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from falconet.errors import ConfigError

_ONE, _JOB = "Several machines", "A batch script"


def launch(
    context: typer.Context,
    script: Annotated[
        Path, typer.Argument(help="A Python script; what follows it goes to the script.", metavar="SCRIPT")
    ],
    processes: Annotated[
        int | None, typer.Option("-np", "--nproc", min=1, help="How many processes on each machine; else 1.")
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often to start all processes again after one failed.")
    ] = 0,
    usr1: Annotated[
        Literal["snapshot", "stop"],
        typer.Option(help="SIGUSR1: pass it on, for a snapshot, or end as on SIGTERM, after a snapshot."),
    ] = "snapshot",
    nnodes: Annotated[
        int | None,
        typer.Option(min=1, help="How many machines, each with a launcher; else as srun or mpirun says, or 1.",
                     rich_help_panel=_ONE),
    ] = None,
    node_rank: Annotated[
        int | None,
        typer.Option(min=0, help="Which of them this is, from 0; else as srun or mpirun says.",
                     rich_help_panel=_ONE),
    ] = None,
    master_addr: Annotated[
        str | None,
        typer.Option(help="The name of machine 0; else $MASTER_ADDR, or the job's first node.",
                     rich_help_panel=_ONE),
    ] = None,
    master_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="A free port of it; else $MASTER_PORT, or from the job's number.",
                     rich_help_panel=_ONE),
    ] = None,
    node_timeout: Annotated[
        float,
        typer.Option(min=1, help="Seconds of silence after which a machine is taken for gone.", rich_help_panel=_ONE),
    ] = 60.0,
    print_slurm: Annotated[
        bool,
        typer.Option("--print-slurm", help="Start nothing; print a script for sbatch that does it on --nnodes nodes.",
                     rich_help_panel=_JOB),
    ] = False,
    gpus: Annotated[
        int, typer.Option(min=0, help="GPUs of each node; a process for each, without -np.", rich_help_panel=_JOB)
    ] = 0,
    cpus: Annotated[
        int | None, typer.Option(min=1, help="Cores of each node; else the whole node.", rich_help_panel=_JOB)
    ] = None,
    time: Annotated[
        str | None, typer.Option(help="The time limit, like 02:00:00.", rich_help_panel=_JOB)
    ] = None,
    account: Annotated[str | None, typer.Option(help="Whom to charge.", rich_help_panel=_JOB)] = None,
    partition: Annotated[str | None, typer.Option(help="The queue.", rich_help_panel=_JOB)] = None,
) -> None:  # fmt: skip
    """Run a script in several processes that train one model.

    On several machines start it on each, with --nnodes, --node-rank and --master-addr, or on all by srun or mpirun, one
    per machine. The same script runs under torchrun as well, and under srun or mpirun with a task per process.
    """
    if not script.is_file():
        raise ConfigError(f"no script `{script}`", hint="falconet launch -np 2 SCRIPT.py [its arguments]")
    if print_slurm:
        from falconet.train.slurm import BatchJob, batch_script

        job = BatchJob(
            nodes=nnodes or 1, processes=processes or max(gpus, 1), gpus=gpus, cpus=cpus, time=time, account=account,
            partition=partition, max_restarts=max_restarts,
        )  # fmt: skip
        typer.echo(batch_script(str(script), context.args, job), nl=False)
        return
    for name, value in {
        "--gpus": gpus,
        "--cpus": cpus,
        "--time": time,
        "--account": account,
        "--partition": partition,
    }.items():
        if value:
            raise ConfigError(f"{name} without --print-slurm", hint="the queue takes it; nothing else does")
    from falconet.train.launch import launch_script
    from falconet.train.nodes import find_nodes

    nodes = find_nodes(os.environ, nnodes, node_rank, master_addr, master_port, node_timeout)
    launch_script(script, processes or 1, context.args, nodes=nodes, max_restarts=max_restarts, usr1=usr1)
