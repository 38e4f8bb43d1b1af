"""Kill a training with SIGKILL at random moments and let it go on: its weights are an undisturbed run's, bit for bit.

    python soak/kill_train.py [--kills N] [--seed N] [--quick]

On one process and on two. Of three kills one comes while a snapshot is being written, one at any moment from the start
of the processes on, one at any moment after a snapshot. With two processes either all are killed, or one, and the other
must end by itself. A run that ends before its kill is compared, and another one is begun. Prints how far each training
had come when it was killed; checks that none goes on behind the snapshot it had.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import falconet as fl
from falconet.loader.loader import Loader
from falconet.models.mlp import MLP
from falconet.schema import FOOTER_KEY, Column, Schema, Tag
from falconet.train.settings import TrainConfig
from falconet.train.trainer import Trainer

TIMEOUT = 15.0  # seconds that processes wait for each other
ALONE = 4 * TIMEOUT  # seconds in which a process must end whose neighbour was killed
USERS, ITEMS, GENRES = 5000, 1000, 20
SCHEMA = Schema(
    (
        Column(name="user", dtype="int32", tags=frozenset({Tag.USER, Tag.ID, Tag.CATEGORICAL}), cardinality=USERS),
        Column(name="item", dtype="int32", tags=frozenset({Tag.ITEM, Tag.ID, Tag.CATEGORICAL}), cardinality=ITEMS),
        Column(
            name="genres", dtype="int32", list="ragged", tags=frozenset({Tag.ITEM, Tag.CATEGORICAL}), cardinality=GENRES
        ),
        Column(name="liked", dtype="float32", tags=frozenset({Tag.TARGET, Tag.BINARY})),
    )
)


def write_rows(folder: Path, rows: int, seed: int) -> None:
    """Some users like some items; files of at most 2,000 rows."""
    random = np.random.default_rng(seed)
    folder.mkdir()
    for i in range(0, rows, 2000):
        n = min(2000, rows - i)
        user, item = random.integers(1, USERS, n), random.integers(1, ITEMS, n)
        columns = {
            "user": pa.array(user, pa.int32()),
            "item": pa.array(item, pa.int32()),
            "genres": pa.array([[k % (GENRES - 1) + 1] * (k % 3) for k in item.tolist()], pa.list_(pa.int32())),
            "liked": pa.array((user * item) % 7 < 3, pa.float32()),
        }
        table = pa.table(columns).replace_schema_metadata({FOOTER_KEY: SCHEMA.to_json()})
        pq.write_table(table, folder / f"part-{i:05}.parquet")


def train(data: Path, run: Path, epochs: int, place: dict[str, str]) -> None:
    """One process of a training: dropout, BatchNorm, tables with a state, early stopping, snapshots every 5 steps."""
    told = os.open(run.parent / f"{run.name}-{place.get('RANK', '0')}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(told, sys.stdout.fileno())
    os.dup2(told, sys.stderr.fileno())
    os.environ |= place
    torch.set_num_threads(1)
    with fl.Runtime.start(timeout_s=TIMEOUT) as runtime:
        torch.manual_seed(1)
        model = MLP.from_schema(SCHEMA, MLP.Config(hidden=(32, 16), dropout=0.2))
        settings = TrainConfig(epochs=epochs, learning_rate=0.003, precision="float32", snapshot_steps=5, patience=3)
        loader = Loader(data / "train", batch_size=64, shuffle=True, seed=7)
        valid = Loader(data / "valid", batch_size=500)
        Trainer(settings, run, runtime).fit(model, loader, valid, resume="auto")


class Training:
    """The processes of one attempt, forked from one that has imported everything."""

    def __init__(self, data: Path, run: Path, epochs: int, world: int) -> None:
        self.run, self.start, self.steps_before = run, time.monotonic(), steps(run)
        context = multiprocessing.get_context("forkserver")
        with socket.socket() as asking:
            asking.bind(("127.0.0.1", 0))
            port = asking.getsockname()[1]
        self.processes: list[BaseProcess] = []
        for rank in range(world):
            place = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
            place |= {"LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            process = context.Process(target=train, args=(data, run, epochs, place if world > 1 else {}))
            process.start()
            self.processes.append(process)

    @property
    def running(self) -> bool:
        return all(process.is_alive() for process in self.processes)

    def lasts(self, seconds: float) -> bool:
        """Whether it still runs so many seconds later."""
        end = time.monotonic() + seconds
        return self._wait_until(lambda: time.monotonic() >= end)

    def saves(self) -> bool:
        """Whether it comes to another snapshot, once it does."""
        return self._wait_until(lambda: steps(self.run) > self.steps_before)

    def writes(self) -> bool:
        """Whether it comes to write a snapshot, once it does."""
        return self._wait_until(self.writing)

    def _wait_until(self, happened: Callable[[], bool]) -> bool:
        while self.running:
            if happened():
                return True
            time.sleep(0.0005)
        return False

    def writing(self) -> bool:
        """Whether a snapshot is being written."""
        try:
            return any(path.name.startswith(".tmp-") for path in (self.run / "snapshots").iterdir())
        except FileNotFoundError:
            return False

    def kill(self, victims: list[BaseProcess]) -> None:
        """Kill some; all must end."""
        for process in victims:
            process.kill()
        for process in self.processes:
            process.join(ALONE)
            if process.is_alive():
                process.kill()
                raise SystemExit(f"a process was left waiting for {ALONE:.0f} s after another one was killed")

    def finish(self) -> float:
        """Wait for the end; the seconds it took."""
        for process in self.processes:
            process.join()
        if any(process.exitcode for process in self.processes):
            told = sorted(self.run.parent.glob(f"{self.run.name}-*.txt"))
            raise SystemExit("a training failed:\n" + "\n".join(path.read_text()[-3000:] for path in told))
        return time.monotonic() - self.start


def steps(run: Path) -> int:
    """The steps of the last snapshot."""
    last = run / "last.json"
    return int(json.loads(last.read_text())["snapshot"]) if last.is_file() else 0


def log(run: Path, event: str) -> list[dict[str, Any]]:
    """Those lines of a run's log."""
    path = run / "run.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    return [entry for entry in map(json.loads, lines) if entry["event"] == event]


def starts(run: Path) -> list[int]:
    """The steps at which the training of a folder was started, the first time and after each kill."""
    return [entry["step"] for entry in log(run, "start")]


def same(one: Path, other: Path) -> bool:
    """Whether two runs left the same weights, figures and settings."""
    files = ("model/model.safetensors", "metrics.jsonl", "config.json")
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in files)


def reach(attempt: Training, kind: int, seconds: float, calm: Path, moments: random.Random) -> bool:
    """Wait for the moment of a kill; whether there is anything left to kill."""
    if kind == 0:
        return attempt.lasts(moments.uniform(0, seconds)) and attempt.writes()
    if kind == 1:
        return attempt.lasts(moments.uniform(0, seconds))
    training = sum(entry["seconds"] for entry in log(calm, "epoch"))
    return attempt.saves() and attempt.lasts(moments.uniform(0, training / 2))


def torment(data: Path, folder: Path, epochs: int, world: int, kills: int, moments: random.Random) -> list[str]:
    """Kill trainings in `world` processes so often; what went wrong."""
    calm = folder / f"calm-{world}"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "torch._dynamo"])  # which the first optimizer of a process imports
    context.Process(target=int).start()  # what the others are forked from takes its time
    seconds = Training(data, calm, epochs, world).finish()
    killed_at: list[int] = []
    failed, runs, writing, alone = [], 0, 0, 0
    run = folder / f"killed-{world}-{runs}"
    while True:
        attempt = Training(data, run, epochs, world)
        enough = len(killed_at) >= kills and writing > 0
        kind = len(killed_at) % 3 if len(killed_at) < kills else 0
        if not enough and reach(attempt, kind, seconds, calm, moments):
            one = world > 1 and moments.random() < 0.5
            victim = attempt.processes[0 if kind == 0 else moments.randrange(world)]  # the first one writes
            attempt.kill([victim] if one else attempt.processes)
            killed_at.append(steps(run))
            writing += kind == 0 and attempt.writing()
            alone += one
            continue
        attempt.finish()
        if not same(calm, run):
            failed.append(f"{run}: other weights or figures than the undisturbed run's")
        if (begun := starts(run)) != sorted(begun):
            failed.append(f"{run}: started at steps {begun}")
        runs += 1
        if enough:
            break
        run = folder / f"killed-{world}-{runs}"
    print(f"{world} process(es): {steps(calm)} steps in {seconds:.1f} s undisturbed; ", end="")
    print(f"killed {len(killed_at)} times in {runs} run(s), {writing} times inside a snapshot, {alone} times one alone")
    print("  steps of the last snapshot at each kill:", *killed_at, flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="for each number of processes")
    parser.add_argument("--seed", type=int, default=None, help="of the random moments")
    parser.add_argument("--quick", action="store_true", help="less data, three kills")
    options = parser.parse_args()
    kills, rows, epochs = (3, 2000, 1) if options.quick else (options.kills, 6000, 3)
    folder = Path(tempfile.mkdtemp(prefix="falconet-kill-"))
    data = folder / "data"
    data.mkdir()
    write_rows(data / "train", rows, seed=0)
    write_rows(data / "valid", 1001, seed=1)
    moments = random.Random(options.seed)
    failed = [line for world in (1, 2) for line in torment(data, folder, epochs, world, kills, moments)]
    if failed:
        print(*failed, sep="\n")
        print(f"left for inspection: {folder}")
        return 1
    shutil.rmtree(folder)
    print("ok: weights and figures equal byte for byte")
    return 0


if __name__ == "__main__":
    sys.exit(main())
