"""Two processes of one thread beside one process of one thread, at the same global batch.

    python benchmarks/scaling.py [--runs N] [--batch N] [--exchange TYPE] [--placement NAME]
                                 [--quick] [--json]

The model of benchmarks/train.py over 162,544 users, 59,050 films and their genres, with tables 64 and 512 wide, squared
error, Adam and row-wise RMSprop, layers in bfloat16 where the processor multiplies it, exact BatchNorm (sums over both
processes). Batches of 65,536 rows are made beforehand; each process takes its half. `python -m falconet launch -np 2`
starts the two, each on a core of its own; the one process has the first core. They take turns.

`two_over_one`: how many times as many steps two processes make. `bytes_per_step`: of ids and gradients of rows, given
by each process to the other (`--exchange`: in which type gradients travel); `dense_bytes_per_step`: what an all-reduce
of whole tables gives. `cpu_two_over_one` compares seconds of the processor instead, for a machine with other work.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np
import torch
from measured import Figures, as_json, child, middle

from falconet.batch import Batch, Feature, Ragged
from falconet.models.mlp import MLP
from falconet.progress import set_quiet
from falconet.schema import Column, Schema, Tag
from falconet.train.callbacks import Callback
from falconet.train.runtime import Runtime
from falconet.train.settings import TrainConfig
from falconet.train.tables import TableOptimizer
from falconet.train.trainer import Trainer

WORK = "steps of a recommender with large tables on two processes, beside one"
USERS, FILMS, GENRES = 162_544, 59_050, 23
BATCH, QUICK_BATCH = 65_536, 8_192
BATCHES, WARM, STEPS = 4, 3, 20
RATE = 0.01


def schema() -> Schema:
    user, film = frozenset({Tag.USER, Tag.ID, Tag.CATEGORICAL}), frozenset({Tag.ITEM, Tag.ID, Tag.CATEGORICAL})
    kind, target = frozenset({Tag.ITEM, Tag.CATEGORICAL}), frozenset({Tag.TARGET, Tag.BINARY})
    return Schema((
        Column(name="userId", dtype="int32", tags=user, cardinality=USERS),
        Column(name="movieId", dtype="int32", tags=film, cardinality=FILMS),
        Column(name="genres", dtype="int32", list="ragged", tags=kind, cardinality=GENRES),
        Column(name="rating", dtype="int8", tags=target),
    ))  # fmt: skip


class Prepared:
    """Batches in memory, the same on all processes, of which each takes its share; again and again."""

    def __init__(self, rows: int, steps: int) -> None:
        random = np.random.default_rng(0)
        users, films = random.lognormal(0, 1.1, USERS - 3), 1 / (np.arange(FILMS - 3) + 20.0)
        self._made = [self._make(random, rows, users / users.sum(), films / films.sum()) for _ in range(BATCHES)]
        self._steps, self.rows = steps, rows * steps

    @staticmethod
    def _make(random: np.random.Generator, rows: int, users: Any, films: Any) -> Batch:
        lengths = random.choice([1, 2, 3, 4, 5, 6], rows, p=[0.4, 0.3, 0.2, 0.06, 0.03, 0.01])
        offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
        features: dict[str, Feature] = {
            "userId": torch.from_numpy(random.choice(USERS - 3, rows, p=users) + 3).int(),
            "movieId": torch.from_numpy(random.choice(FILMS - 3, rows, p=films) + 3).int(),
            "genres": Ragged(torch.from_numpy(random.integers(3, GENRES, int(offsets[-1]))).int(), offsets),
        }
        return Batch.of(features, {"rating": torch.from_numpy(random.integers(0, 2, rows)).float()})

    def __len__(self) -> int:
        return self._steps

    def batches(self, epoch: int = 0, start: int = 0, rank: int = 0, world: int = 1) -> Generator[Batch]:
        shares = []
        for whole in self._made:
            share = whole[rank * whole.rows // world : (rank + 1) * whole.rows // world]
            shares.append(Batch(share.features, share.targets, share.rows, whole.rows))
        for step in range(start, self._steps):
            yield shares[step % BATCHES]

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}


class Clock(Callback):
    """When each step was done, on the clock and in seconds of this process's threads."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.cpu: list[float] = []

    def step(self, step: int, figures: Mapping[str, float]) -> None:
        self.times.append(time.perf_counter())
        self.cpu.append(time.process_time())


def work(width: int, rows: int, exchange: str, placement: str) -> dict[str, float]:
    """Steps of this process, alone or as one of several."""
    set_quiet(True)
    with Runtime.start() as runtime:
        if hasattr(os, "sched_setaffinity"):
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[runtime.local_rank % len(cores)]})
        torch.set_num_threads(1)
        torch.manual_seed(0)
        model = MLP.from_schema(schema(), MLP.Config(hidden=(128, 128, 128), loss="mse", dim=width))
        sent: list[int] = []
        step = TableOptimizer.step

        def counted(tables: TableOptimizer, *arguments: Any) -> torch.Tensor:
            sent.append(tables.sent)
            return step(tables, *arguments)

        TableOptimizer.step = counted  # type: ignore[method-assign]
        clock = Clock()
        config = TrainConfig(
            learning_rate=RATE,
            table_learning_rate=RATE,
            exchange_dtype=exchange,  # type: ignore[arg-type]
            table_placement=placement,  # type: ignore[arg-type]
        )
        Trainer(config, runtime=runtime, callbacks=[clock]).fit(model, Prepared(rows, WARM + STEPS))
        weights = sum(x.numel() for x in model.inputs.tables.parameters())
        return {
            "step_ms": 1000 * statistics.median(np.diff(clock.times[WARM - 1 :])),
            "cpu_ms": 1000 * statistics.median(np.diff(clock.cpu[WARM - 1 :])),
            "bytes_per_step": statistics.median(np.diff(sent)),
            "dense_bytes_per_step": 4 * weights * 2 * (runtime.world - 1) / runtime.world,
        }


def ask(processes: int, width: int, rows: int, exchange: str, placement: str) -> dict[str, float]:
    """What the first of so many processes found."""
    worker = [__file__, "--worker", str(width), str(rows), exchange, placement]
    started = ["-m", "falconet", "launch", "-np", str(processes), *worker] if processes > 1 else worker
    found: dict[str, float] = child(started, threads=1)
    print(
        f"{width} wide, {processes} process(es): {found['step_ms']:,.1f} ms a step, "
        f"{found['cpu_ms']:,.1f} ms of the processor",
        flush=True,
    )
    return found


def measure(runs: int, rows: int, exchange: str, placement: str) -> Figures:
    figures: Figures = {}
    for width in (64, 512):
        for _ in range(runs):
            one, two = (ask(n, width, rows, exchange, placement) for n in (1, 2))
            found = {
                "two_over_one": one["step_ms"] / two["step_ms"],
                "cpu_two_over_one": one["cpu_ms"] / two["cpu_ms"],
                "one_ms": one["step_ms"],
                "two_ms": two["step_ms"],
                "bytes_per_step": two["bytes_per_step"],
                "dense_bytes_per_step": two["dense_bytes_per_step"],
            }
            for key, value in found.items():
                figures.setdefault(f"{key}_{width}", []).append(value)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="how often each is taken")
    parser.add_argument("--batch", type=int, default=BATCH, help="rows of a global batch")
    parser.add_argument("--exchange", choices=("float32", "bfloat16"), default="bfloat16", help="of table gradients")
    parser.add_argument("--placement", choices=("auto", "replicated", "row", "table"), default="auto", help="of tables")
    parser.add_argument("--quick", action="store_true", help="batches of 8,192, once")
    parser.add_argument("--json", action="store_true", help="the figures as JSON, on the last line")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        width, rows, exchange, placement = options.worker
        found = work(int(width), int(rows), exchange, placement)
        if Runtime.peek()[0] == 0:
            print(json.dumps(found))
        return 0
    rows = QUICK_BATCH if options.quick else options.batch
    figures = measure(1 if options.quick else options.runs, rows, options.exchange, options.placement)
    found = middle(figures)
    for width in (64, 512):
        print(
            f"{width} wide: two processes {found[f'two_over_one_{width}']:.2f} × one, gradients exchanged in "
            f"{options.exchange}: {found[f'bytes_per_step_{width}'] / 1e6:,.1f} MB a step, a dense all-reduce "
            f"{found[f'dense_bytes_per_step_{width}'] / 1e6:,.0f} MB"
        )
    if options.json:
        print(as_json(WORK, figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
