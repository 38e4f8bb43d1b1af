#!/usr/bin/env python3
"""Does training work on this machine's GPU, does it come to what the CPU comes to, and how fast is it?

Makes its own data; tries the loader's modes, the precisions, the placements of tables, accumulation, a run cut off and
taken up, and the model and the epoch of NVTabular's multi-GPU MovieLens example, which took two GPUs 82.45 s. Prints
one table. Exit code 1 where something does not hold or there is no GPU.

Needs torch, pyarrow, numpy, safetensors and rich: `PYTHONPATH=src python scripts/gpu_check.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from falconet.batch import Ragged
from falconet.loader.loader import Loader
from falconet.models.mlp import MLP
from falconet.progress import set_quiet
from falconet.schema import FOOTER_KEY, Column, Schema, Tag
from falconet.train.callbacks import Callback
from falconet.train.launch import launch
from falconet.train.runtime import Runtime
from falconet.train.settings import TrainConfig
from falconet.train.trainer import Trainer

BATCH = 2048
SMALL = MLP.Config(hidden=(64, 64), dim=32, dropout=0.0)
SEEDS = MLP.Config(hidden=(128, 128, 128), dropout=0.0, loss="mse")  # tables by NVTabular's rule: 512 wide
SEEDS_SECONDS, SEEDS_ROWS = 82.45, 20_022_000


@dataclass(frozen=True)
class Line:
    """A line of the table; `fine` is None for a figure that is nothing to hold to."""

    work: str
    figure: str
    fine: bool | None = None


def write(folder: Path, rows: int, users: int, items: int) -> Path:
    """Rows of a user, an item and its genres, whose answer follows hidden tastes; a million a file."""
    random = np.random.default_rng(0)
    taste, kind = random.normal(size=users), random.normal(size=items)
    sizes = {"user": users, "item": items, "genres": 21}
    codes = [
        Column(name=name, dtype="int32", cardinality=size, tags=frozenset({Tag.CATEGORICAL}),
               list="ragged" if name == "genres" else None)
        for name, size in sizes.items()
    ]  # fmt: skip
    target = Column(name="liked", dtype="float32", tags=frozenset({Tag.TARGET, Tag.BINARY}))
    schema = Schema((*codes, target))
    folder.mkdir()
    for number, first in enumerate(range(0, rows, 1_000_000)):
        n = min(1_000_000, rows - first)
        user, item = random.integers(1, users, n), random.integers(1, items, n)
        offsets = np.concatenate([[0], np.cumsum(random.integers(1, 4, n))]).astype(np.int32)
        genres = pa.ListArray.from_arrays(offsets, pa.array(random.integers(1, 21, offsets[-1]), pa.int32()))
        liked = (taste[user] * kind[item] + random.normal(size=n) > 0).astype(np.float32)
        table = pa.table({"user": user.astype(np.int32), "item": item.astype(np.int32), "genres": genres})
        table = table.append_column("liked", pa.array(liked))
        pq.write_table(table.replace_schema_metadata({FOOTER_KEY: schema.to_json()}), folder / f"part_{number}.parquet")
    return folder


class Watch(Callback):
    """The loss of every step; breaks the run off after step `stop`."""

    def __init__(self, stop: int | None) -> None:
        self.losses: list[float] = []
        self.stop = stop

    def step(self, step: int, figures: Mapping[str, float]) -> None:
        self.losses.append(figures["loss"])
        if step == self.stop:
            raise InterruptedError


def train(
    data: Path, device: str, folder: Path | None = None, stop: int | None = None, **settings: Any
) -> tuple[list[float], float]:
    """The losses of all steps of two epochs, and rows a second."""
    set_quiet(True)
    torch.manual_seed(0)
    watch, start = Watch(stop), time.perf_counter()
    config = TrainConfig(**{"epochs": 2, "precision": "float32", "snapshot_steps": 10, **settings})
    with Runtime.start(device=device) as runtime:
        loader = Loader(data, batch_size=BATCH, shuffle=True, runtime=runtime)
        model = MLP.from_schema(loader.schema, SMALL)
        with suppress(InterruptedError):
            Trainer(config, folder, runtime, [watch]).fit(model, loader, resume="auto" if folder else "never")
    return watch.losses, len(watch.losses) * BATCH / (time.perf_counter() - start)


def on_two(data: Path, device: str, placement: str) -> list[float]:
    """The losses on each of two processes' parts together."""
    return train(data, device, table_placement=placement)[0]


def apart(found: list[float], wanted: list[float]) -> float:
    """How far the first ten losses are from others, relative."""
    return max(abs(a - b) / b for a, b in zip(found[:10], wanted[:10], strict=True))


def modes(data: Path, device: str) -> Iterator[Line]:
    """The loader's ways to fetch rows: the same batches, how fast."""
    sums: list[int] = []
    for mode in ("memory", "stream", "device"):
        loader = Loader(data, batch_size=BATCH, shuffle=True, memory=mode, device=device)  # type: ignore[arg-type]
        total = rows = 0
        for step, batch in enumerate(loader.batches(0)):
            columns = [x.values if isinstance(x, Ragged) else x for x in batch.features.values()]
            total += (step + 1) * sum(int(x.sum()) for x in columns)
        start = time.perf_counter()
        for batch in loader.batches(1):
            rows += batch.rows
        if device == "cuda":
            torch.cuda.synchronize()
        rate = rows / (time.perf_counter() - start)
        sums.append(total)
        yield Line(f"loader, {mode}", f"{rate:,.0f} rows/s", total == sums[0] and rows == loader.rows)


def precisions(data: Path, device: str, full: list[float]) -> Iterator[Line]:
    for name in ("auto", "bfloat16", "float16"):
        losses, rate = train(data, device, precision=name)
        yield Line(f"training, {name}", f"{rate:,.0f} rows/s", abs(losses[-1] - full[-1]) < 0.02)
    losses, rate = train(data, device, table_dtype="bfloat16")
    yield Line("tables in bfloat16", f"{rate:,.0f} rows/s", abs(losses[-1] - full[-1]) < 0.02)


def placements(data: Path, device: str, full: list[float]) -> Iterator[Line]:
    """Where tables lie: on one process, and on two where there are two GPUs."""
    for placement in ("replicated", "host"):
        losses, rate = train(data, device, table_placement=placement)
        far = apart(losses, full)
        yield Line(f"tables {placement}", f"{rate:,.0f} rows/s, {far:.0e} apart", far < 1e-4)
    if device == "cuda" and torch.cuda.device_count() < 2:
        yield Line("tables table, row on two processes", "left out: one GPU")
        return
    for placement in ("replicated", "table", "row"):
        far = apart(launch(on_two, 2, (data, device, placement)), full)
        yield Line(f"tables {placement} on two processes", f"{far:.0e} apart", far < 1e-3)


def recovery(data: Path, device: str, full: list[float], folder: Path) -> Line:
    train(data, device, folder / "run", stop=13)
    resumed, _ = train(data, device, folder / "run")
    far = apart(resumed[-10:], full[-10:])
    return Line(
        "cut off after step 13, taken up", f"{far:.0e} apart", 10 <= len(resumed) <= len(full) - 10 and far < 1e-3
    )


def seeds_epoch(folder: Path, device: str, rows: int) -> Iterator[Line]:
    """NVTabular's example: two tables 512 wide, batch 16,384, an epoch of 20 million rows."""
    data = write(folder / "seed", rows, 162_541, 59_047)
    torch.manual_seed(0)
    with Runtime.start(device=device) as runtime:
        loader = Loader(data, batch_size=16_384, shuffle=True, runtime=runtime)
        start = time.perf_counter()
        result = Trainer(TrainConfig(), None, runtime).fit(MLP.from_schema(loader.schema, SEEDS), loader)
        seconds = time.perf_counter() - start
    theirs = SEEDS_ROWS / SEEDS_SECONDS
    yield Line("the seed's epoch", f"{rows:,} rows in {seconds:.1f} s, loss {result.metrics['loss']:.4f}")
    yield Line("beside its two GPUs", f"{rows / seconds:,.0f} rows/s, {rows / seconds / theirs:.1f} times theirs")
    if device == "cuda":
        yield Line("memory of the GPU, at most", f"{torch.cuda.max_memory_allocated() / 1e9:.1f} GB")


def check(device: str, rows: int, epoch_rows: int) -> Iterator[Line]:
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    yield Line("device", f"{name}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data = write(folder / "data", rows, 5_000, 2_000)
        yield from modes(data, device)
        cpu, _ = train(data, "cpu")
        full, rate = train(data, device)
        far = apart(full, cpu)
        yield Line("training, float32", f"{rate:,.0f} rows/s, {far:.0e} from the CPU", far < 1e-4)
        yield Line("it learns", f"{full[0]:.4f} to {full[-1]:.4f}", full[-1] < full[0])
        yield from precisions(data, device, full)
        parts, _ = train(data, device, accumulate=4)
        yield Line("in four parts a step", f"{abs(parts[-1] - full[-1]):.0e} apart", abs(parts[-1] - full[-1]) < 0.02)
        yield from placements(data, device, full)
        yield recovery(data, device, full, folder)
        yield from seeds_epoch(folder, device, epoch_rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu checks the script itself")
    parser.add_argument("--rows", type=int, default=200_000, help="rows of the checks")
    parser.add_argument("--epoch-rows", type=int, default=20_000_000, help="rows of the seed's epoch")
    parser.add_argument("--json", action="store_true", help="the same as JSON, one line")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("no GPU that this torch can use", file=sys.stderr)
        return 1
    set_quiet(True)
    lines = []
    for line in check(args.device, args.rows, args.epoch_rows):
        lines.append(line)
        if not args.json:
            mark = {None: "", True: "ok", False: "NOT OK"}[line.fine]
            print(f"{line.work:<36} {line.figure:<44} {mark}".rstrip(), flush=True)
    if args.json:
        print(json.dumps([asdict(line) for line in lines]))
    return 0 if all(line.fine is not False for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
