"""Which rule of embedding tables generalises how well: held-out squared error of the MovieLens notebook's model.

    python benchmarks/optimizers.py [--ratings FILE] [--ways WAY ...] [--seeds N] [--work FOLDER] [--quick] [--json]

A way is `notebook` (dense gradients, Adam at .01 for all, float32, in plain PyTorch), or settings of a TrainConfig, as
in `table_optimizer=lazy_adam,table_learning_rate=0.005`; `default` is none. Unless a way says otherwise its rates are
those of benchmarks/train.py, .015 for layers and .02 for tables. For a seed all ways start from the same weights and
see the same batches, so ways are compared by the mean over seeds of their differences, with its standard error.

One run ends on a single step, and the error moves by some .003 within a few steps. `end` is the error after the last
step of an epoch, `late` the mean of those 8 and 4 steps before the end and at the end, which is less a matter of luck.

The data is a `ratings.csv` of MovieLens, beside its movies.csv, in batches of 1,024; without `--ratings` it is
generated, 200,000 rows with hidden tastes in batches of 2,048. Results are kept line by line in `--work`, so a
benchmark that was stopped goes on; figures are those of seeds that both ways have.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import results
from measured import Figures, as_json

import train

WORK = "held-out error of the MovieLens notebook's model by the rule of its tables"
TASTES = (3_000, 2_000, 200_000)  # users, films and rows that are generated
QUICK = (500, 300, 20_000)
BATCH, SMALL_BATCH, QUICK_BATCH = 2_048, 1_024, 512
WAYS = ("notebook", "default", "table_optimizer=lazy_adam", "table_optimizer=rowwise_adam")
LATE = (8, 4, 0)  # steps before the end of an epoch

Errors = list[list[float]]
"""By epoch, the errors at LATE."""


def settings_of(way: str) -> dict[str, Any]:
    """What a way sets of a TrainConfig."""
    given = {} if way == "default" else dict(part.split("=", 1) for part in way.split(","))
    return {name: _plain(value) for name, value in given.items()}


def _plain(text: str) -> Any:
    if text == "None":
        return None
    try:
        return float(text)
    except ValueError:
        return text


def errors(way: str, data: Path, batch: int, seed: int, epochs: int) -> Errors:
    """What a way comes to from one seed."""
    from falconet.train.settings import TrainConfig
    from falconet.train.trainer import Trainer

    loader, valid = train.load(data, "train", batch, seed), train.load(data, "valid", 8 * train.BATCH)
    model = train.model_of(loader.schema, None, seed)
    if way == "notebook":
        model = train.plain(model)
    judge, found, step = Trainer(TrainConfig()), Errors(), 0

    def look() -> None:
        nonlocal step
        step += 1
        left = -step % len(loader)
        if left in LATE:
            if left == max(LATE):
                found.append([])
            found[-1].append(judge.evaluate(model, valid)["loss"])
            model.train()

    if way == "notebook":
        train.train_plain(model, loader, epochs, lambda: None, look, fused=True)
    else:
        train.train_ours(model, loader, epochs, lambda: None, look, **settings_of(way))
    return found


def collect(options: argparse.Namespace, data: Path, batch: int, kept: Path) -> list[results.Record]:
    """A record for every way and seed: those that are kept, and those that are made now."""
    for seed in range(options.seeds):
        for way in options.ways:
            what = {"way": way, "seed": seed, "epochs": options.epochs, "batch": batch}
            if not results.of(what, results.read(kept)):
                found = errors(way, data, batch, seed, options.epochs)
                results.append(kept, {**what, "errors": found})
                print(f"{way}, seed {seed}: {' '.join(f'{epoch[-1]:.4f}' for epoch in found)}", flush=True)
    wanted = {"epochs": options.epochs, "batch": batch}
    return [record for record in results.of(wanted, results.read(kept)) if record["seed"] < options.seeds]


def by_way(ways: Sequence[str], records: Sequence[results.Record]) -> dict[str, dict[int, Errors]]:
    """Way to seed to errors."""
    return {way: {r["seed"]: r["errors"] for r in results.of({"way": way}, records)} for way in ways}


def figures_of(found: Mapping[str, Mapping[int, Errors]]) -> Figures:
    """`WAY.end_EPOCH` and `WAY.late_EPOCH`: a value per seed."""
    figures: Figures = {}
    for way, seeds in found.items():
        for epochs in seeds.values():
            for number, epoch in enumerate(epochs, start=1):
                figures.setdefault(f"{way}.end_{number}", []).append(epoch[-1])
                figures.setdefault(f"{way}.late_{number}", []).append(statistics.mean(epoch))
    return figures


def table(found: Mapping[str, Mapping[int, Errors]], base: str) -> str:
    """Means over seeds, and mean differences to another way with their standard errors."""
    lines = []
    for way, seeds in found.items():
        both = sorted(seeds.keys() & found[base].keys())
        lines.append(f"{way}, {len(seeds)} seeds")
        for kind in ("end", "late"):
            parts = []
            for epoch in range(len(seeds[both[0]])):
                own = [_figure(seeds[seed][epoch], kind) for seed in both]
                others = [_figure(found[base][seed][epoch], kind) for seed in both]
                gaps = [mine - other for mine, other in zip(own, others, strict=True)]
                error = statistics.stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else float("nan")
                beside = "" if way == base else f" ({statistics.mean(gaps):+.4f} ± {error:.4f})"
                parts.append(f"{statistics.mean(own):.4f}{beside}")
            lines.append(f"  {kind:4s} {'   '.join(parts)}")
    return "\n".join(lines)


def _figure(epoch: Sequence[float], kind: str) -> float:
    return epoch[-1] if kind == "end" else statistics.mean(epoch)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ratings", type=Path, help="a ratings.csv of MovieLens; without it data is generated")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), help="the first is what the others are compared with")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--work", type=Path, help="a folder for data and results, which are used again")
    parser.add_argument("--quick", action="store_true", help="20,000 generated rows, one seed, one epoch")
    parser.add_argument("--json", action="store_true", help="the figures as JSON, on the last line")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.epochs, options.ratings = 1, 1, None
    room = options.work or Path(tempfile.mkdtemp(prefix="falconet-optimizers-"))
    try:
        found = measure(options, room)
    finally:
        if options.work is None:
            shutil.rmtree(room, ignore_errors=True)
    print(table(found, options.ways[0]))
    if options.json:
        print(as_json(WORK, figures_of(found)))
    return 0


def measure(options: argparse.Namespace, room: Path) -> dict[str, dict[int, Errors]]:
    from falconet.progress import set_quiet

    set_quiet(True)
    name = "ratings" if options.ratings else "quick" if options.quick else "tastes"
    data, kept = room / name, room / f"{name}.jsonl"
    if not list(data.glob("train/*.parquet")):
        size = (0, 0, 0) if options.ratings else QUICK if options.quick else TASTES
        train.make_data(data, *size, str(options.ratings or ""))
    batch = SMALL_BATCH if options.ratings else QUICK_BATCH if options.quick else BATCH
    return by_way(options.ways, collect(options, data, batch, kept))


if __name__ == "__main__":
    sys.exit(main())
