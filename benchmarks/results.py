"""What the benchmarks of quality share: results kept line by line, so that a killed one goes on where it stopped.

A result is known by its label: split, part (test or validation), seed, the model's name, and a hash of its settings.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from neighbours import environment

from falconet.config import config_hash

HERE = Path(__file__).parent
AGAIN = 1000  # added to the seed of a split that is made of a training part

Record = dict[str, Any]


def entries(settings: str, table: str, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The settings of all models in a table of a file beside this one, or of those named, each with its `name`."""
    found = tomllib.loads((HERE / settings).read_text(encoding="utf-8"))[table]
    named = [{**entry, "name": entry.get("name", entry.get("model"))} for entry in found]
    if unknown := {*(names or ())} - {entry["name"] for entry in named}:
        known = ", ".join(entry["name"] for entry in named)
        raise SystemExit(f"{table} has no {', '.join(sorted(unknown))}; it has {known}")
    return [entry for entry in named if names is None or entry["name"] in names]


def options_of(doc: str | None, flag: str, splits: Sequence[str], settings: str) -> argparse.Namespace:
    """What the command line says; `flag` names splits, all where it is not there."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(flag, choices=splits, action="append", dest="splits", help="all, if none is named")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--models", nargs="+", help=f"names in {settings}")
    parser.add_argument("--validation", action="store_true", help="on the validation part")
    parser.add_argument("--data", type=Path, help="a MovieLens release; by default ml-latest-small in FALCONET_DATA")
    parser.add_argument("--work", type=Path, default=Path.home() / ".cache/falconet/quality")
    parser.add_argument("--table", action="store_true", help="only what is there already")
    parser.add_argument("--quick", action="store_true", help="seed 0 of a few models, nothing from elsewhere")
    parser.add_argument("--json", action="store_true", help="the figures as JSON, on the last line")
    if flag == "--split":
        parser.add_argument("--unknown", type=float, help="share of rows as of unknown users, and films; by split")
    options = parser.parse_args()
    options.splits = options.splits or list(splits)
    options.data = options.data or Path(os.environ.get("FALCONET_DATA", ".")) / "ml-latest-small"
    if options.quick:
        options.seeds = [0]
    return options


def label(split: str, seed: int, entry: Record, *, validation: bool) -> Record:
    """What makes a result the one that is asked for."""
    part = "validation" if validation else "test"
    return {"split": split, "part": part, "seed": seed, "name": entry["name"], "key": config_hash(entry)[:12]}


def python_of_others(work: Path, chosen: Sequence[Record]) -> Path | None:
    """The Python that has the packages of others, where an entry needs them; where they cannot be installed, why."""
    python, why = environment(work / "neighbours") if any("neighbour" in one for one in chosen) else (None, "")
    if why:
        print(f"without the packages of others, which cannot be installed: {why}", flush=True)
    return python


def missing(
    path: Path, split: str, seed: int, chosen: Sequence[Record], python: Path | None, *, validation: bool
) -> Iterator[tuple[Record, Record]]:
    """The entries without a result that can be had, each with the label of its result."""
    for entry in chosen:
        what = label(split, seed, entry, validation=validation)
        if not of(what, read(path)) and ("neighbour" not in entry or python is not None):
            yield entry, what


def there(
    path: Path, split: str, seeds: Sequence[int], chosen: Sequence[Record], *, validation: bool
) -> dict[str, list[Record]]:
    """The results of all seeds, by the names of the entries that have one."""
    records, found = read(path), dict[str, list[Record]]()
    for entry in chosen:
        asked = [label(split, seed, entry, validation=validation) for seed in seeds]
        if mine := [record for what in asked for record in of(what, records)[:1]]:
            found[entry["name"]] = mine
    return found


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
