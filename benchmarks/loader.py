"""The loader beside torch's DataLoader: rows with lists of genres, shuffled, from Parquet files.

    python benchmarks/loader.py [--data FOLDER] [--rows N] [--batch N] [--runs N] [--quick] [--json]

Three ways take turns, each in a process of its own: falconet in memory, falconet streaming from the files, and torch's
DataLoader over rows that lie in memory already, item by item with its default collation, genres padded to six. Rows per
second are those of a whole epoch from the making of the loader on, footers and reading included (`_later_` those of the
epoch after it); of the DataLoader those of its first 200,000 rows. The peak is that of the resident memory (VmHWM),
imports included. Then each of ours again with a consumer that takes 10 ms for every batch: the largest gap is the
longest that it waited for a batch, the first one left out. CPU seconds are those of all threads.

The data (20,000,000 rows in files of 4,194,304, row groups of 131,072) is made where `--data` points, if nothing is
there, else in a temporary folder.
"""

from __future__ import annotations

import argparse
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
from typing import Any

import numpy as np

WORK = "an epoch of shuffled rows with genres, from Parquet files to batches of tensors"
ROWS, QUICK_ROWS = 20_000_000, 600_000
FILE, GROUP = 4_194_304, 131_072
USERS, FILMS, GENRES, MOST = 162_541, 59_047, 20, 6
BATCH = 16_384
DATALOADER_ROWS = 200_000
CONSUMER_S, CONSUMER_BATCHES = 0.01, 400


def make_data(folder: Path, rows: int) -> None:
    """Users, films, the genres of each film, and a target, as falconet's writer leaves them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from falconet.schema import FOOTER_KEY, Column, Schema

    tags = ("user", "id", "categorical"), ("item", "id", "categorical"), ("item", "categorical"), ("target", "binary")
    schema = Schema((
        Column(name="userId", dtype="int32", tags=tags[0], cardinality=USERS + 3, oov=1),
        Column(name="movieId", dtype="int32", tags=tags[1], cardinality=FILMS + 3, oov=1),
        Column(name="genres", dtype="int32", list="ragged", tags=tags[2], cardinality=GENRES + 3, oov=1),
        Column(name="rating", dtype="int8", tags=tags[3]),
    ))  # fmt: skip
    random = np.random.default_rng(0)
    lengths = random.choice([1, 2, 3, 4, 5, 6], FILMS, p=[0.4, 0.3, 0.2, 0.06, 0.03, 0.01])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    genres = random.integers(3, GENRES + 3, starts[-1], dtype=np.int32)
    folder.mkdir(parents=True, exist_ok=True)
    for number, first in enumerate(range(0, rows, FILE)):
        n = min(FILE, rows - first)
        film = (FILMS * random.random(n) ** 2).astype(np.int32)  # some films have many rows
        offsets = np.concatenate([[0], np.cumsum(lengths[film])]).astype(np.int32)
        places = np.repeat(starts[film] - offsets[:-1], lengths[film]) + np.arange(offsets[-1])
        columns = {
            "userId": pa.array(random.integers(3, USERS + 3, n, dtype=np.int32)),
            "movieId": pa.array(film + 3),
            "genres": pa.ListArray.from_arrays(offsets, genres[places]),
            "rating": pa.array(random.integers(0, 2, n, dtype=np.int8)),
        }
        table = pa.table(columns).replace_schema_metadata({FOOTER_KEY: schema.to_json()})
        pq.write_table(table, folder / f"part-{number:05d}.parquet", row_group_size=GROUP, compression="zstd")


def peak_mb() -> float:
    """The most memory that this process had so far."""
    if Path("/proc/self/status").exists():
        line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def ours(mode: str, data: Path, batch: int) -> dict[str, float]:
    """Two whole epochs."""
    from falconet.loader.loader import Loader
    from falconet.progress import set_quiet

    set_quiet(True)
    start, cpu = time.perf_counter(), time.process_time()
    loader: Any = Loader(data, batch_size=batch, shuffle=True, seed=1, memory=mode)
    first, rows = 0.0, 0
    for found in loader:
        first = first or time.perf_counter() - start
        rows += found.rows
    middle, spent = time.perf_counter(), time.process_time() - cpu
    later = sum(found.rows for found in loader)
    end = time.perf_counter()
    return {
        "rows_per_s": rows / (middle - start),
        "later_rows_per_s": later / (end - middle),
        "first_batch_s": first,
        "cpu_s": spent,
        "peak_mb": peak_mb(),
    }


def gaps(mode: str, data: Path, batch: int) -> dict[str, float]:
    """The longest wait of a consumer that takes its time, in milliseconds."""
    from falconet.loader.loader import Loader
    from falconet.progress import set_quiet

    set_quiet(True)
    loader: Any = Loader(data, batch_size=batch, shuffle=True, seed=1, memory=mode)
    batches = loader.batches()
    next(batches)
    waits = []
    for _ in range(min(CONSUMER_BATCHES, len(loader) - 1)):
        time.sleep(CONSUMER_S)
        asked = time.perf_counter()
        next(batches)
        waits.append(1000 * (time.perf_counter() - asked))
    batches.close()
    return {"largest_gap_ms": max(waits), "median_gap_ms": statistics.median(waits)}


def dataloader(data: Path, batch: int) -> dict[str, float]:
    """torch's own, over columns that were read before the clock starts."""
    import pyarrow.parquet as pq
    import torch
    from torch.utils.data import DataLoader, Dataset

    table = pq.read_table(sorted(data.glob("*.parquet"))[0])
    user, film, label = (torch.from_numpy(table[name].to_numpy()) for name in ("userId", "movieId", "rating"))
    lists = table["genres"].combine_chunks()
    lengths = lists.value_lengths().to_numpy()
    padded = np.zeros((len(user), MOST), np.int32)
    padded[np.arange(MOST) < lengths[:, None]] = lists.flatten().to_numpy()
    genres = torch.from_numpy(padded)

    class Rows(Dataset[Any]):
        def __len__(self) -> int:
            return len(user)

        def __getitem__(self, i: int) -> Any:
            return {"userId": user[i], "movieId": film[i], "genres": genres[i]}, label[i]

    start, rows = time.perf_counter(), 0
    for _, found in DataLoader(Rows(), batch_size=batch, shuffle=True):
        rows += len(found)
        if rows >= DATALOADER_ROWS:
            break
    return {"rows_per_s": rows / (time.perf_counter() - start)}


def child(*arguments: str | Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--run", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def run(way: str, data: Path, number: int) -> dict[str, float]:
    """One way in this process; `number` is that of rows for `data`, else of a batch's rows."""
    if way == "data":
        make_data(data, number)
        return {}
    if way == "dataloader":
        return dataloader(data, number)
    kind, mode = way.split("-")
    return ours(mode, data, number) if kind == "epochs" else gaps(mode, data, number)


def measure(data: Path, batch: int, runs: int) -> dict[str, list[float]]:
    """All ways in turn, `runs` times."""
    figures: dict[str, list[float]] = {}
    for _ in range(runs):
        for way, name in (("dataloader", "dataloader"), ("memory", "memory"), ("stream", "streaming")):
            found = child(way, data, str(batch)) if way == "dataloader" else {
                **child(f"epochs-{way}", data, str(batch)), **child(f"gaps-{way}", data, str(batch))
            }  # fmt: skip
            print(f"{name}: " + ", ".join(f"{key} {value:,.3g}" if value < 1e3 else f"{key} {value:,.0f}"
                                          for key, value in found.items()), flush=True)  # fmt: skip
            for key, value in found.items():
                figures.setdefault(f"{name}_{key}", []).append(value)
        for name in ("memory", "streaming"):
            times = figures[f"{name}_rows_per_s"][-1] / figures["dataloader_rows_per_s"][-1]
            figures.setdefault(f"{name}_over_dataloader", []).append(times)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder for the data, which is used again")
    parser.add_argument("--rows", type=int, default=ROWS, help="of the data, where it is made")
    parser.add_argument("--batch", type=int, default=BATCH, help="rows of a batch")
    parser.add_argument("--runs", type=int, default=3, help="how often each way is taken")
    parser.add_argument("--quick", action="store_true", help="600,000 rows, once")
    parser.add_argument("--json", action="store_true", help="the figures as JSON, on the last line")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        way, data, number = options.run
        print(json.dumps(run(way, Path(data), int(number))))
        return 0
    room = Path(tempfile.mkdtemp(prefix="falconet-loader-"))
    try:
        data = options.data or room / "data"
        if not list(data.glob("*.parquet")):
            child("data", data, str(QUICK_ROWS if options.quick else options.rows))
        figures = measure(data, options.batch, 1 if options.quick else options.runs)
    finally:
        shutil.rmtree(room, ignore_errors=True)
    middle = {key: statistics.median(values) for key, values in figures.items()}
    print(
        f"over the DataLoader: in memory {middle['memory_over_dataloader']:.0f} ×, "
        f"streaming {middle['streaming_over_dataloader']:.0f} ×"
    )
    if options.json:
        import pyarrow
        import torch

        summed = {
            key: {
                "median": round(middle[key], 3),
                "low": round(min(values), 3),
                "high": round(max(values), 3),
                "runs": len(values),
            }
            for key, values in figures.items()
        }
        machine = {"cores": os.cpu_count(), "processor": platform.machine(), "system": platform.system()}
        versions = {"python": platform.python_version(), "torch": torch.__version__, "pyarrow": pyarrow.__version__}
        print(json.dumps({"work": WORK, "machine": machine, "versions": versions, "figures": summed}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
