#!/usr/bin/env python3
"""Does training work on this machine's GPU, and does it come to what the CPU comes to?

Makes its own small data, trains one model with one shared and one pooled table on the CPU and on the device, cuts a run
off and takes it up, and prints one JSON line. Exit code 1 where something does not hold or there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from falconet.batch import Batch
from falconet.loader.loader import Loader
from falconet.nn import MLP, Tables, bce
from falconet.schema import FOOTER_KEY, Column, Schema, Tag
from falconet.train.runtime import Runtime
from falconet.train.trainer import TrainConfig, Trainer

ITEMS = 5_000
CODES = frozenset({Tag.CATEGORICAL, Tag.ITEM})
SCHEMA = Schema(
    (
        Column(name="item", dtype="int32", tags=CODES, cardinality=ITEMS, domain="item"),
        Column(name="history", dtype="int32", list="ragged", tags=CODES, cardinality=ITEMS, domain="item"),
        Column(name="liked", dtype="float32", tags=frozenset({Tag.TARGET, Tag.BINARY})),
    )
)


class Net(nn.Module):
    """An item and the items before it, through one table, to a logit."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = Tables([c for c in SCHEMA if Tag.CATEGORICAL in c.tags], 32)
        self.layers = MLP(self.tables.width, (64, 64), 1)

    def loss(self, batch: Batch) -> Tensor:
        first = self.tables.project(batch, self.layers.first)
        return bce(self.layers.rest(first).squeeze(1), batch.targets["liked"])


def write(folder: Path, rows: int) -> None:
    random = np.random.default_rng(0)
    taste = random.normal(size=ITEMS)
    item, lengths = random.integers(1, ITEMS, rows), random.integers(0, 20, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    history = pa.ListArray.from_arrays(offsets, pa.array(random.integers(1, ITEMS, offsets[-1]), pa.int32()))
    liked = (taste[item] + random.normal(size=rows) > 0).astype(np.float32)
    table = pa.table({"item": pa.array(item, pa.int32()), "history": history, "liked": liked})
    folder.mkdir()
    pq.write_table(table.replace_schema_metadata({FOOTER_KEY: SCHEMA.to_json()}), folder / "part_0.parquet")


def train(
    data: Path, device: str, precision: str, folder: Path | None = None, stop: int = 0
) -> tuple[list[float], float]:
    """The losses of all steps, and rows a second; with `stop`, a run cut off after that step."""
    losses: list[float] = []

    def on_step(step: int, loss: float) -> None:
        losses.append(loss)
        if step == stop:
            raise InterruptedError

    torch.manual_seed(0)
    loader = Loader(data, batch_size=4096, shuffle=True, seed=0)
    config = TrainConfig(epochs=2, precision=precision, snapshot_steps=10)  # type: ignore[arg-type]
    start = time.perf_counter()
    try:
        with Runtime.start(device=device) as runtime:
            Trainer(config, folder, runtime).fit(Net(), loader, resume="auto", on_step=on_step)
    except InterruptedError:
        pass
    return losses, len(losses) * 4096 / (time.perf_counter() - start)


def check(device: str, rows: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "data", rows)
        cpu, _ = train(folder / "data", "cpu", "float32")
        full, rate = train(folder / "data", device, "float32")
        half, half_rate = train(folder / "data", device, "auto")
        train(folder / "data", device, "float32", folder / "run", stop=13)
        resumed, _ = train(folder / "data", device, "float32", folder / "run")
    apart = max(abs(a - b) / a for a, b in zip(cpu[:10], full[:10], strict=True))
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "torch": torch.__version__,
        "loss": [full[0], full[-1]],
        "rows_per_s": round(rate),
        "rows_per_s_auto": round(half_rate),
        "apart_from_cpu": apart,
        "agrees_with_cpu": apart < 1e-4,
        "auto_agrees": abs(half[-1] - full[-1]) < 0.02,
        "learns": full[-1] < full[0],
        "resumes": len(resumed) == len(full) - 10 and abs(resumed[-1] - full[-1]) < 1e-3,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu checks the script itself")
    parser.add_argument("--rows", type=int, default=200_000, help="rows of data")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("no GPU that this torch can use", file=sys.stderr)
        return 1
    result = check(args.device, args.rows)
    print(json.dumps(result))
    return 0 if all(value for value in result.values() if isinstance(value, bool)) else 1


if __name__ == "__main__":
    sys.exit(main())
