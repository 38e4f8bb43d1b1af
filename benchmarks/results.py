"""Results that are kept line by line, so that a benchmark that was killed goes on where it stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

Record = dict[str, Any]


def entries(settings: str, table: str, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The settings of all models in a table of a file beside this one, or of those named, each with its `name`."""
    found = tomllib.loads((HERE / settings).read_text(encoding="utf-8"))[table]
    named = [{**entry, "name": entry.get("name", entry.get("model"))} for entry in found]
    if unknown := {*(names or ())} - {entry["name"] for entry in named}:
        known = ", ".join(entry["name"] for entry in named)
        raise SystemExit(f"{table} has no {', '.join(sorted(unknown))}; it has {known}")
    return [entry for entry in named if names is None or entry["name"] in names]


def read(path: Path) -> list[Record]:
    """The results so far; a last line that was cut off is none."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]


def append(path: Path, record: Record) -> None:
    """Add a line, after the last whole one."""
    kept = path.read_bytes() if path.is_file() else b""
    kept = kept[: kept.rfind(b"\n") + 1]
    aside = path.with_suffix(".aside")
    aside.write_bytes(kept + json.dumps(record).encode() + b"\n")
    aside.replace(path)


def of(what: Record, records: Sequence[Record]) -> list[Record]:
    """The records that are what is asked for, the newest first."""
    return [record for record in reversed(records) if what.items() <= record.items()]


def measured(script: str, job: dict[str, Any], folder: Path) -> Record | None:
    """What a script beside this one says about a job in a process of one thread; where it fails, why, and None."""
    path = folder / "job-of-ours.json"
    path.write_text(json.dumps(job))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, HERE / script, path]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        print(f"{job['entry']['name']} failed: {last}", flush=True)
        return None
    found: Record = json.loads(done.stdout.splitlines()[-1])
    return found
