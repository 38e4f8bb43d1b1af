"""One Dask worker beside two, on the same job: fit and FULL shuffled write of a MovieLens pipeline.

    python benchmarks/dask_etl.py [--rows N] [--runs N] [--quick] [--json]

Each worker is a process with one Polars thread, on a core of its own where the system allows it. Generated ratings are
joined with the films' genres; users, films and genres become codes, times are normalized, ratings become a label. The
files of all runs must be equal, byte for byte. `ratio` is the seconds of one worker over those of two, run by run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl

from falconet import DaskExecutor, Dataset, Shuffle, Workflow, ops
from falconet.datasets.synthetic import synthesize
from falconet.io.artifact import read_manifest
from falconet.progress import set_quiet

WORK = "fit and FULL write of the MovieLens pipeline, Dask workers of one thread each"


def workflow(movies: pl.DataFrame) -> Workflow:
    joined = ["movieId"] >> ops.JoinExternal(movies, on="movieId", columns_ext=["genres"])
    codes = [joined, "userId"] >> ops.Categorify()
    label = ["rating"] >> ops.LambdaOp(lambda col: (col > 3).cast(pl.Int8)) >> ops.AddTags(["target", "binary"])
    return Workflow(codes + (["timestamp"] >> ops.Normalize()) + label)


def pin(executor: DaskExecutor, cores: list[int]) -> None:
    """Each worker's process on a core of its own, and this one, which waits most of the time, on all of them."""
    if not hasattr(os, "sched_setaffinity"):
        return
    client = executor._open()
    for core, address in zip(cores, sorted(client.nthreads()), strict=False):
        client.run(lambda core=core: os.sched_setaffinity(0, {core}), workers=[address])


def run(workers: int, data: Path, out: Path, part_size: str, cores: list[int]) -> tuple[dict[str, float], str]:
    """The seconds of one job by step, and the hashes of its files. Starting the workers is not counted."""
    options = {"n_workers": workers, "env": {"POLARS_MAX_THREADS": "1"}, "memory_limit": 0}
    with DaskExecutor(cluster=options) as executor:
        pin(executor, cores)
        start = time.perf_counter()
        dataset = Dataset(data / "ratings", part_size=part_size)
        fitted = workflow(pl.read_parquet(data / "movies.parquet")).fit(dataset, executor=executor)
        fitted_at = time.perf_counter()
        fitted.transform(dataset, out_of_fold=False).to_parquet(out, shuffle=Shuffle.FULL, seed=1, output_files=8)
        end = time.perf_counter()
    files = {name: entry["sha256"] for name, entry in read_manifest(out).files.items()}
    shutil.rmtree(out)
    return {"fit": fitted_at - start, "write": end - fitted_at, "all": end - start}, json.dumps(files)


def figure(values: list[float]) -> dict[str, float]:
    return {"median": round(median(values), 3), "low": round(min(values), 3), "high": round(max(values), 3)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=3, help="of each, in turns")
    parser.add_argument("--part-size", default="16MB")
    parser.add_argument("--quick", action="store_true", help="200,000 rows, once")
    parser.add_argument("--json", action="store_true", help="the figures as JSON, on the last line")
    options = parser.parse_args()
    rows, runs = (200_000, 1) if options.quick else (options.rows, options.runs)
    set_quiet(True)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    folder = Path(tempfile.mkdtemp(prefix="falconet-dask-"))
    try:
        data = synthesize(folder / "data", users=max(100, rows // 154), items=max(100, rows // 400), rows=rows)
        part_size = "1MB" if options.quick else options.part_size
        seconds: dict[int, list[dict[str, float]]] = {1: [], 2: []}
        seen = set()
        for _ in range(runs):
            for workers in seconds:
                took, files = run(workers, data, folder / "out", part_size, cores)
                seconds[workers].append(took)
                seen.add(files)
                print(f"{workers} worker{'s' * (workers > 1)}:", *(f"{k} {v:.2f} s" for k, v in took.items()))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if len(seen) != 1:
        print("the files of the runs differ")
        return 1
    ones, twos = ([took["all"] for took in seconds[workers]] for workers in (1, 2))
    figures: dict[str, dict[str, Any]] = {
        "one_s": figure(ones),
        "two_s": figure(twos),
        "ratio": figure([one / two for one, two in zip(ones, twos, strict=True)]),
    }
    for entry in figures.values():
        entry["runs"] = runs
    print(
        f"{rows:,} rows: two workers are {figures['ratio']['median']:.2f} × as fast as one; files equal byte for byte"
    )
    if options.json:
        machine = {"cores": len(cores), "processor": platform.machine(), "system": platform.system()}
        versions = {"python": platform.python_version(), "polars": pl.__version__}
        print(json.dumps({"work": WORK, "machine": machine, "versions": versions, "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
