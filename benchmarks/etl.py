"""The ETL of the MovieLens notebook: raw rows to shuffled features, beside the same by hand.

    python benchmarks/etl.py [--data FOLDER] [--runs N] [--scale] [--quick] [--json]

Films' genres are joined to ratings, `userId`, `movieId` and `genres` become codes, `rating > 3` the target: `fit` on
the training rows, then both splits transformed, shuffled as a whole (`Shuffle.FULL`) and written. Three ways take
turns, each run in a process of its own: falconet as it comes, falconet with a memory budget of 1.5GB, which shuffles
through files, and etl_by_hand.py, a script in Polars and numpy for this data alone. All must write the same rows in the
same order.

Figures: seconds without imports, seconds of all cores (`_cpu_s`), the peak of the resident memory (VmHWM). `--scale`
then writes four and ten times all the rows with a budget of 2GB. The data (25,000,095 rows of `falconet data synth`,
shuffled, every fifth row for validation) is made once where `--data` points, else in a temporary folder.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import etl_by_hand
import polars as pl

import falconet as fl
from falconet import ops
from falconet.datasets.synthetic import synthesize
from falconet.progress import set_quiet

WORK = "the MovieLens notebook's ETL: join, codes, target, full shuffle and write of both splits"
SIZE = (162_541, 62_423, 25_000_095)  # users, films and rows of MovieLens 25M
QUICK = (2_000, 1_000, 200_000)
WAYS: dict[str, str | None] = {"ours": None, "external": "1.5GB"}
SCALES = (4, 10)


def make_data(folder: Path, users: int, items: int, rows: int) -> None:
    """train.parquet, valid.parquet and movies.parquet: the columns the notebook keeps."""
    made = synthesize(folder / "synth", users=users, items=items, rows=rows)
    ratings = pl.read_parquet(made / "ratings" / "*.parquet", columns=["userId", "movieId", "rating"])
    ratings = ratings.sample(fraction=1.0, shuffle=True, seed=0)
    valid = rows // 5
    ratings[: rows - valid].write_parquet(folder / "train.parquet", row_group_size=1 << 20)
    ratings[rows - valid :].write_parquet(folder / "valid.parquet", row_group_size=1 << 20)
    pl.read_parquet(made / "movies.parquet", columns=["movieId", "genres"]).write_parquet(folder / "movies.parquet")
    shutil.rmtree(made)


def ours(train: fl.Dataset, valid: fl.Dataset | None, movies: Path, out: Path, memory: str | None) -> None:
    joined = ["userId", "movieId"] >> ops.JoinExternal(movies, on="movieId")
    label = ["rating"] >> ops.LambdaOp(lambda col: (col > 3).cast(pl.Int8)) >> ops.AddTags(["target", "binary"])
    fitted = fl.Workflow((joined >> ops.Categorify()) + label).fit(train, fl.LocalExecutor(memory=memory))
    for name, data in (("train", train), ("valid", valid)):
        if data is not None:
            fitted.transform(data).to_parquet(out / name, shuffle=fl.Shuffle.FULL, seed=0)


def peak_mb() -> float:
    """The most memory that this process had so far."""
    if Path("/proc/self/status").exists():
        line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def run(way: str, data: Path, out: Path) -> dict[str, float]:
    """One way in this process: `by_hand`, one of WAYS, or how many times all the rows."""
    _ = fl.Workflow, fl.Dataset, fl.LocalExecutor, ops.Categorify  # imported now, not on the clock
    start, cpu = time.perf_counter(), time.process_time()
    if way == "by_hand":
        etl_by_hand.run(data, out)
    elif way in WAYS:
        both = (fl.Dataset(data / f"{name}.parquet") for name in ("train", "valid"))
        ours(*both, data / "movies.parquet", out, WAYS[way])
    else:
        files = [data / f"{i}-{name}.parquet" for i in range(int(way)) for name in ("train", "valid")]
        ours(fl.Dataset(files), None, data / "movies.parquet", out, "2GB")
    return {"s": time.perf_counter() - start, "cpu_s": time.process_time() - cpu, "peak_mb": peak_mb()}


def child(*arguments: str | Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--run", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def say(what: str, found: dict[str, float]) -> None:
    seconds, cpu, peak = found["s"], found["cpu_s"], found["peak_mb"]
    print(f"{what}: {seconds:.2f} s, {cpu:.2f} s of all cores, {peak:,.0f} MB", flush=True)


def digest(out: Path) -> str:
    """The values of all rows in their order."""
    whole = hashlib.sha256()
    for path in sorted(out.glob("*/*.parquet")):
        whole.update(path.name.encode())
        for name, column in pl.read_parquet(path).to_dict().items():
            flat = column.explode() if column.dtype == pl.List else column
            lengths = column.list.len().to_numpy().tobytes() if column.dtype == pl.List else b""
            whole.update(f"{name} {column.dtype}".encode() + lengths + flat.to_numpy().tobytes())
    return whole.hexdigest()


def compare(data: Path, room: Path, runs: int) -> dict[str, list[float]]:
    """All ways in turn, `runs` times: lists of figures."""
    figures: dict[str, list[float]] = {}
    digests: dict[str, str] = {}
    for _ in range(runs):
        for way in (*WAYS, "by_hand"):
            out = room / way
            shutil.rmtree(out, ignore_errors=True)
            found = child(way, data, out)
            digests[way] = digest(out)
            say(way, found)
            for unit, value in found.items():
                name = unit if (way, unit) == ("ours", "peak_mb") else f"{way}_{unit}"
                figures.setdefault(name, []).append(value)
            shutil.rmtree(out)
        figures.setdefault("ratio", []).append(figures["ours_s"][-1] / figures["by_hand_s"][-1])
        figures.setdefault("cpu_ratio", []).append(figures["ours_cpu_s"][-1] / figures["by_hand_cpu_s"][-1])
    if len(set(digests.values())) > 1:
        raise SystemExit(f"the rows differ: {digests}")
    print("the same rows in the same order", flush=True)
    return figures


def scale(data: Path, room: Path) -> dict[str, list[float]]:
    """Four and ten times all the rows, as links to the files."""
    figures: dict[str, list[float]] = {}
    links = room / "links"
    links.mkdir()
    (links / "movies.parquet").hardlink_to(data / "movies.parquet")
    for i in range(max(SCALES)):
        for name in ("train", "valid"):
            (links / f"{i}-{name}.parquet").hardlink_to(data / f"{name}.parquet")
    for times in SCALES:
        found = child(str(times), links, room / "scaled")
        shutil.rmtree(room / "scaled")
        say(f"{times} times all rows", found)
        for unit, value in found.items():
            figures[f"times_{times}_{unit}"] = [value]
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder for the data, which is used again")
    parser.add_argument("--runs", type=int, default=3, help="how often each way is taken")
    parser.add_argument("--scale", action="store_true", help="also four and ten times all the rows, in 2GB")
    parser.add_argument("--quick", action="store_true", help="200,000 rows, once")
    parser.add_argument("--json", action="store_true", help="the figures as JSON, on the last line")
    parser.add_argument("--run", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    set_quiet(True)
    if options.run:
        way, data, *rest = options.run
        print(json.dumps({} if way == "data" else run(way, Path(data), Path(*rest))))
        if way == "data":
            make_data(Path(data), *map(int, rest))
        return 0
    # Beside the data, so that its files can be linked.
    room = Path(
        tempfile.mkdtemp(prefix="falconet-etl-", dir=options.data if options.data and options.data.is_dir() else None)
    )
    try:
        data = options.data or room / "data"
        data.mkdir(parents=True, exist_ok=True)
        if not (data / "movies.parquet").is_file():
            child("data", data, *map(str, QUICK if options.quick else SIZE))
        figures = compare(data, room, 1 if options.quick else options.runs)
        if options.scale:
            figures |= scale(data, room)
    finally:
        shutil.rmtree(room, ignore_errors=True)
    ratio, cpu = (statistics.median(figures[key]) for key in ("ratio", "cpu_ratio"))
    print(f"ours / by hand: {ratio:.2f}, of all cores' seconds {cpu:.2f}")
    if options.json:
        summed = {
            key: {
                "median": round(statistics.median(x), 3),
                "low": round(min(x), 3),
                "high": round(max(x), 3),
                "runs": len(x),
            }
            for key, x in figures.items()
        }
        machine = {"cores": os.cpu_count(), "processor": platform.machine(), "system": platform.system()}
        versions = {"python": platform.python_version(), "polars": pl.__version__}
        print(json.dumps({"work": WORK, "machine": machine, "versions": versions, "figures": summed}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
