"""One row at a time through a fitted workflow: `fitted.online()`, beside Polars on a frame of one row.

    python benchmarks/online.py [--rows N] [--users N] [--movies N] [--asked N] [--runs N] [--quick] [--json]

The pipeline is that of NVIDIA's MovieLens notebook: genres joined to ratings by movieId, userId, movieId and genres
coded, the label `rating > 3`. It is fitted on generated ratings; then rows are asked for one after the other, a dict in
and a dict out, each timed by itself, ten for each one that Polars is asked for. The answers must be equal.
Figures: the 50th and 99th percentile of a run in microseconds; median, lowest and highest of the runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl

from falconet import Dataset, FittedWorkflow, Workflow, ops
from falconet.progress import set_quiet

WORK = "one row of the MovieLens pipeline (join, three Categorify, a label), a dict in and a dict out"
GENRES = [f"genre {n}" for n in range(20)]
PER_POLARS = 10
"""How many rows are asked for in plain Python for each one that Polars is asked for."""

Row = dict[str, Any]


def generate(rows: int, users: int, movies: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Ratings, in which some users and movies are frequent, and movies with up to five genres."""
    random = np.random.default_rng(0)
    table = pl.DataFrame(
        {
            "movieId": np.arange(1, movies + 1),
            "genres": [list(random.choice(GENRES, random.integers(0, 6), replace=False)) for _ in range(movies)],
        },
        schema_overrides={"genres": pl.List(pl.String)},
    )
    ratings = pl.DataFrame(
        {
            "userId": (random.random(rows) ** 2 * users).astype(np.int64) + 1,
            "movieId": (random.random(rows) ** 3 * movies).astype(np.int64) + 1,
            "rating": random.integers(1, 11, rows) / 2,
        }
    )
    return ratings, table


def fit(ratings: pl.DataFrame, movies: pl.DataFrame) -> FittedWorkflow:
    joined = ["userId", "movieId"] >> ops.JoinExternal(movies, on="movieId")
    label = ["rating"] >> ops.LambdaOp(lambda col: (col > 3).cast(pl.Int8)) >> ops.AddTags(["target", "binary"])
    return Workflow((joined >> ops.Categorify()) + label).fit(Dataset(ratings))


def timed(ask: Callable[[Row], Row], rows: list[Row]) -> tuple[list[Row], float, float]:
    """The answers, and the 50th and 99th percentile of the time of one, in microseconds."""
    answers, times = [], []
    for row in rows:
        start = time.perf_counter_ns()
        answer = ask(row)
        times.append(time.perf_counter_ns() - start)
        answers.append(answer)
    times.sort()
    return answers, times[len(times) // 2] / 1e3, times[len(times) * 99 // 100] / 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000, help="ratings to fit on")
    parser.add_argument("--users", type=int, default=162_541)
    parser.add_argument("--movies", type=int, default=62_423)
    parser.add_argument("--asked", type=int, default=20_000, help="rows asked for in a run")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="20,000 ratings, 2,000 rows, two runs")
    parser.add_argument("--json", action="store_true", help="the figures as JSON, on the last line")
    options = parser.parse_args()
    rows, users, movies, asked, runs = options.rows, options.users, options.movies, options.asked, options.runs
    if options.quick:
        rows, users, movies, asked, runs = 20_000, 1_000, 1_000, 2_000, 2
    set_quiet(True)
    ratings, table = generate(rows, users, movies)
    fitted = fit(ratings, table)
    online, schema = fitted.online(), ratings.schema
    figures: dict[str, list[float]] = {"p50_us": [], "p99_us": [], "polars_p50_us": [], "polars_p99_us": []}
    for run in range(runs):
        sample = ratings.sample(asked, seed=run).to_dicts()
        answers, p50, p99 = timed(online, sample)
        by_polars, slow_p50, slow_p99 = timed(
            lambda row: fitted.transform(pl.DataFrame([row], schema=schema)).row(0, named=True),
            sample[: asked // PER_POLARS],
        )
        if answers[: len(by_polars)] != by_polars:
            print("not equal: the answers of the two")
            return 1
        for values, value in zip(figures.values(), (p50, p99, slow_p50, slow_p99), strict=True):
            values.append(value)
    found = {
        key: {"median": statistics.median(x), "low": min(x), "high": max(x), "runs": runs} for key, x in figures.items()
    }
    for key, values in found.items():
        print(f"{key}: {values['median']:,.1f} ({values['low']:,.1f} to {values['high']:,.1f})")
    print(f"{runs} runs of {asked:,} rows, answers equal")
    if options.json:
        machine = {"cores": os.cpu_count(), "processor": platform.machine(), "system": platform.system()}
        versions = {"python": platform.python_version(), "polars": pl.__version__}
        print(json.dumps({"work": WORK, "machine": machine, "versions": versions, "figures": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
