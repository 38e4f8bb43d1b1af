"""A vocabulary larger than its memory budget: fitted in a process with a bound, beside one without.

    python benchmarks/vocabulary.py [--ids N] [--memory SIZE] [--quick] [--json]

Generated rows: every id once, in a random order, then as many rows again in which some ids are frequent. Each run is a
process of its own: `Categorify` is fitted, saved and loaded, and the data are transformed. Figures: the seconds and the
peak of the resident memory (VmHWM) after the fit, the saving and the transform. The saved vocabulary and the codes of
all rows of both runs must be equal.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from falconet import Dataset, LocalExecutor, Workflow, ops
from falconet.progress import set_quiet

WORK = "fit of Categorify on distinct 64-bit ids in a process with a memory budget, beside one without"
CHUNK = 1 << 20
STEPS = ("fit", "save", "transform")


def generate(ids: int, out: Path) -> None:
    """Two rows for each id on average: one each in a random order, then draws that prefer some."""
    out.mkdir()
    random = np.random.default_rng(0)
    order = random.permutation(ids).astype(np.uint64)
    for number, first in enumerate(range(0, 2 * ids, CHUNK)):
        last = min(first + CHUNK, 2 * ids)
        own = order[min(first, ids) : min(last, ids)]
        drawn = (random.random(last - first - len(own)) ** 3 * ids).astype(np.uint64)
        place = np.concatenate([own, drawn])
        mixed = place * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(1)  # odd, so that no two places are one id
        pl.DataFrame({"id": mixed.astype(np.int64)}).write_parquet(out / f"{number:04d}.parquet", statistics=False)


def peak_mb() -> float:
    """The most memory that this process had so far."""
    if Path("/proc/self/status").exists():
        line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def run(data: Path, out: Path, memory: str, part_size: str) -> dict[str, Any]:
    """Fit, save and transform in this process."""
    found: dict[str, Any] = {"start_mb": peak_mb()}
    executor = LocalExecutor(memory=None if memory == "none" else memory)
    dataset = Dataset(data, part_size=part_size)
    start = time.perf_counter()
    fitted = Workflow(["id"] >> ops.Categorify()).fit(dataset, executor)
    found |= {"fit_s": time.perf_counter() - start, "fit_mb": peak_mb()}
    fitted.save(out)
    found |= {"save_s": time.perf_counter() - start - found["fit_s"], "save_mb": peak_mb()}
    (state,) = (out / "state").glob("*.parquet")
    found["vocabulary"] = hashlib.sha256(state.read_bytes()).hexdigest()
    start = time.perf_counter()
    fitted.transform(dataset).to_parquet(out.with_name(f"{out.name}-codes"), output_files=1, executor=executor)
    found |= {"transform_s": time.perf_counter() - start, "transform_mb": peak_mb()}
    codes = hashlib.sha256()
    for batch in pl.scan_parquet(out.with_name(f"{out.name}-codes") / "*.parquet").collect_batches(maintain_order=True):
        codes.update(batch["id"].to_numpy().tobytes())
    return found | {"codes": codes.hexdigest(), "cardinality": fitted.schema["id"].cardinality}


def child(data: Path, out: Path, memory: str, part_size: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--run", str(data), str(out), memory, part_size]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def say(name: str, found: dict[str, Any]) -> None:
    steps = (f"{step} {found[f'{step}_s']:.1f} s, {found[f'{step}_mb']:,.0f} MB" for step in STEPS)
    print(f"{name}: start {found['start_mb']:,.0f} MB;", "; ".join(steps), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ids", type=int, default=20_000_000)
    parser.add_argument("--memory", default="600MB", help="the budget of the fit with a bound")
    parser.add_argument("--part-size", default="16MB")
    parser.add_argument("--bounded-only", action="store_true", help="without the run that has no bound")
    parser.add_argument("--quick", action="store_true", help="200,000 ids and a budget to match")
    parser.add_argument("--json", action="store_true", help="the figures as JSON, on the last line")
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        set_quiet(True)
        data, out, memory, part_size = options.run
        print(json.dumps(run(Path(data), Path(out), memory, part_size)))
        return 0
    ids, memory, part_size = options.ids, options.memory, options.part_size
    if options.quick:
        ids, memory, part_size = 200_000, "4MB", "1MB"
    folder = Path(tempfile.mkdtemp(prefix="falconet-vocabulary-"))
    try:
        generate(ids, folder / "data")
        bounded = child(folder / "data", folder / "bounded", memory, part_size)
        say("budget " + memory, bounded)
        free = bounded
        if not options.bounded_only:
            free = child(folder / "data", folder / "free", "none", part_size)
            say("no budget", free)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    wrong = [name for name in ("vocabulary", "codes", "cardinality") if bounded[name] != free[name]]
    if wrong or bounded["cardinality"] != ids + 3:
        print(f"not equal: {', '.join(wrong) or 'the number of ids'}")
        return 1
    print(f"{ids:,} ids in {2 * ids:,} rows: vocabulary and codes equal")
    if options.json:
        keys = [f"{step}_{unit}" for step in STEPS for unit in ("s", "mb")]
        values = {key: round(bounded[key], 2) for key in keys} | {f"free_{key}": round(free[key], 2) for key in keys}
        figures = {key: {"median": x, "low": x, "high": x, "runs": 1} for key, x in values.items()}
        machine = {"cores": os.cpu_count(), "processor": platform.machine(), "system": platform.system()}
        versions = {"python": platform.python_version(), "polars": pl.__version__}
        print(json.dumps({"work": WORK, "machine": machine, "versions": versions, "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
