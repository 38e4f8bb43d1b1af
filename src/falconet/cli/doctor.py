"""`falconet doctor`: what this machine has for training, how fast its processes talk, and what to change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def doctor(
    processes: Annotated[
        int, typer.Option("-np", "--nproc", min=1, help="How many processes are to train here; 1 times no exchange.")
    ] = 2,
    folder: Annotated[Path, typer.Option("--folder", help="A folder on the disk that runs will be kept on.")] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
) -> None:
    """Say what this machine has for training on many processes, and what to change. Changes nothing."""
    from falconet.train.doctor import examine

    facts = examine(processes, folder)
    typer.echo(json.dumps(facts, indent=1) if as_json else "\n".join(_lines(facts)))


def _lines(facts: dict[str, Any]) -> list[str]:
    versions, cpu, host, disk = facts["versions"], facts["cpu"], facts["host"], facts["disk"]
    cuda = f"CUDA {versions['cuda']}" if versions["cuda"] else "CPU build"
    rows = [
        (
            "versions",
            f"falconet {versions['falconet']}, Python {versions['python']}, torch {versions['torch']} ({cuda})",
        ),
        ("system", versions["system"]),
        ("CPU", f"{cpu['name']}, {cpu['cores']} cores, AVX-512: {_yes(cpu['avx512'])}, bf16: {_yes(cpu['bf16'])}"),
        *[("GPU", _gpu(gpu)) for gpu in facts["gpus"]["found"] or [None]],
        ("exchange by", facts["backend"]),
        ("started by", _launcher(facts["launcher"])),
        ("host", f"{host['name']} ({', '.join(host['addresses']) or 'no address'}); {', '.join(host['interfaces'])}"),
        ("disk", f"{disk['free_gb']} of {disk['total_gb']} GB free at `{disk['folder']}`"),
        ("clock", f"{facts['clock']['utc']} UTC, {facts['clock']['ahead_of_disk_s']} s ahead of the disk"),
    ]
    if timed := facts["all_reduce"]:
        rows.append(
            ("all-reduce", f"{timed['megabytes']} MB over {timed['processes']} processes in {timed['ms']} ms "
                           f"({timed['gb_per_s']} GB/s)")
        )  # fmt: skip
    lines = [f"{name:<12}{value}" for name, value in rows]
    return [*lines, "", *(f"- {line}" for line in facts["advice"] or ["Nothing to change."])]


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _gpu(gpu: dict[str, Any] | None) -> str:
    if gpu is None:
        return "none that torch sees"
    state = "usable" if gpu["usable"] else f"not usable{': ' + gpu['error'] if gpu['error'] else ''}"
    return f"{gpu['index']}: {gpu['name']}, capability {gpu['capability']}, {gpu['memory_gb']} GB, {state}"


def _launcher(facts: dict[str, Any]) -> str:
    if "error" in facts:
        return f"variables that contradict each other: {facts['error'].splitlines()[0]}"
    if facts["world"] == 1:
        return "no launcher"
    free = "free" if facts["port_free"] else "taken"
    place = f"{facts['name']}: rank {facts['rank']} of {facts['world']}"
    return f"{place}, to meet at {facts['address']}:{facts['port']} ({free})"
