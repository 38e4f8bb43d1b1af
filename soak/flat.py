"""Many epochs over a small set, iterations abandoned in between: threads, file handles and memory stay as they are.

    python soak/flat.py [--epochs N] [--quick]

Each epoch trains on every row and, before that, begins to read in every way there is and lets go: a plain loop that
breaks off, an iterator that is dropped, one that is closed, one that an error ends, torch's DataLoader with two workers
(in every tenth epoch), and a training that a callback breaks off, with a folder and snapshots. In memory and streaming
take turns. Linux only: it reads /proc.

After every epoch but the first fifth, in which caches fill: as many threads, child processes and file handles as
before, and by a straight line through the resident memory at most 1 % more in all.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from kill_train import SCHEMA, write_rows
from torch.utils.data import Dataset

from falconet.loader.loader import Loader
from falconet.loader.map_style import MapLoader
from falconet.models.mlp import MLP
from falconet.progress import set_quiet
from falconet.train.callbacks import Callback
from falconet.train.settings import TrainConfig
from falconet.train.trainer import Trainer

GROWTH = 0.01  # of the resident memory, over all epochs that count


class BrokenOffError(Exception):
    """Somebody had enough."""


class BreakOff(Callback):
    """Ends a training after some steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def step(self, step: int, figures: Mapping[str, float]) -> None:
        """Enough."""
        if step == self.steps:
            raise BrokenOffError


class Squares(Dataset[tuple[float, float]]):
    """Numbers and their squares."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, i: int) -> tuple[float, float]:
        return float(i), float(i * i)


def abandon(data: Path, memory: str, folder: Path, workers: bool) -> None:
    """Begin to read in every way there is, and let go."""
    loader = Loader(data, batch_size=50, shuffle=True, memory=memory)  # type: ignore[arg-type]
    for _ in loader:
        break
    iterator = iter(loader)
    next(iterator)
    del iterator
    batches = loader.batches(epoch=1)
    next(batches)
    batches.close()
    with suppress(BrokenOffError):
        for _ in loader.batches(epoch=2, start=1):
            raise BrokenOffError
    if workers:
        for _ in MapLoader(Squares(), batch_size=10, workers=2).batches():
            break
    settings = TrainConfig(snapshot_steps=2, precision="float32")
    model = MLP.from_schema(SCHEMA, MLP.Config(hidden=(8,), dim=4))
    with suppress(BrokenOffError):
        Trainer(settings, folder, callbacks=[BreakOff(3)]).fit(model, loader)
    shutil.rmtree(folder)


def train(data: Path, memory: str) -> None:
    """An epoch."""
    model = MLP.from_schema(SCHEMA, MLP.Config(hidden=(8,), dim=4))
    loader = Loader(data, batch_size=50, shuffle=True, memory=memory)  # type: ignore[arg-type]
    Trainer(TrainConfig(precision="float32")).fit(model, loader)


def measure() -> dict[str, float]:
    """What this process holds now, once what ended had a moment to go."""
    gc.collect()
    deadline = time.monotonic() + 2
    while threading.active_count() > 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {
        "threads": int(status["Threads"]),
        "Python threads": threading.active_count(),
        "child processes": len(children),
        "file handles": len(list(Path("/proc/self/fd").iterdir())),
        "MB": int(status["VmRSS"].split()[0]) / 1000,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="30 epochs")
    options = parser.parse_args()
    epochs = 30 if options.quick else options.epochs
    set_quiet(True)
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="falconet-flat-"))
    write_rows(folder / "rows", 500, seed=0)
    found = []
    for epoch in range(epochs):
        mode = ("memory", "stream")[epoch % 2]
        abandon(folder / "rows", mode, folder / "run", workers=epoch % 10 == 0)
        train(folder / "rows", mode)
        found.append(measure())
    shutil.rmtree(folder)
    counted = found[epochs // 5 :]
    failed = []
    for what in ("threads", "Python threads", "child processes", "file handles"):
        values = [one[what] for one in counted]
        print(f"{what}: {min(values):.0f} to {max(values):.0f}")
        if len(set(values)) > 1:
            failed.append(f"{what} after each epoch: {' '.join(f'{x:.0f}' for x in values)}")
    memory = [one["MB"] for one in counted]
    slope = float(np.polyfit(range(len(memory)), memory, 1)[0])
    growth = slope * len(memory)
    print(f"resident memory: {memory[0]:.1f} to {memory[-1]:.1f} MB; the line through it rises by {growth:.2f} MB")
    if growth > GROWTH * memory[0]:
        failed.append(f"memory grows by {slope * 1000:.0f} KB an epoch: {' '.join(f'{x:.1f}' for x in memory)}")
    print("\n".join(failed) if failed else f"ok: flat over {len(counted)} of {epochs} epochs")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
