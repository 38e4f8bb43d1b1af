"""The model of NVIDIA's MovieLens notebook, trained by falconet and as the notebook does it, in plain PyTorch.

    python benchmarks/train.py [--data FOLDER] [--runs N] [--quality] [--ratings FILE] [--quick] [--json]

Users, films and genres (a bag) in tables as wide as the notebook's rule makes them (512 for users and films), three
hidden layers of 128 with BatchNorm, squared error on a 0/1 target, batches of 16,384 shuffled rows. falconet: tables by
row-wise RMSprop at a rate of .02, layers by Adam at .015, in bfloat16 where the processor multiplies it. The
notebook's way: dense gradients, Adam at .01 for all, float32. Both get their batches from falconet's loader, start from
the same weights, and take turns, each in a process of its own with as many threads as there are cores; then falconet
with one thread; then all of it with tables 64 wide (`_64`).

Rows per second, loading included, are those of the steps after the first few; `epoch_s` is what an epoch takes at that
rate. The peak is that of the resident memory (VmHWM). `parts`: one thread, milliseconds of a step in matrix products,
in reading rows, in their norms and in moving rows, each beside what the peak of a large matrix product,
or of a copy, measured in the same run, would take for the same products and bytes.

`--quality`: the squared error on held-out rows after one and three epochs, on generated data with hidden tastes as the
mean of three seeds, and on a `ratings.csv` of MovieLens, where `--ratings` names one, of twenty: one run of a small set
is a matter of luck, by .002.

The data (25,000,095 rows of `falconet data synth`, prepared by the notebook's ETL) is made where `--data` points, if
nothing is there, else in a temporary folder.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from measured import Figures, as_json, child, machine_peaks, middle, peak_mb

WORK = "steps of the MovieLens notebook's model, from Parquet files on"
SIZE = (162_541, 62_423, 25_000_095)  # users, films and rows of MovieLens 25M
QUICK = (5_000, 3_000, 400_000)
TASTES = (20_000, 8_000, 2_000_000)  # of the generated data by which quality is judged
BATCH, SMALL_BATCH = 16_384, 1_024
WARM, STEPS, SEED_STEPS = 5, 60, 10
EPOCHS, SEEDS, SMALL_SEEDS = 3, 3, 20
RATE = 0.01
RATES = {"learning_rate": 0.015, "table_learning_rate": 0.02}  # falconet's
NAMED = ("distinct", "rows", "norm", "form", "step")  # pieces of work that the profiler is told of
POINTWISE = "mkldnn::_linear_pointwise"  # a product with bias and ReLU
PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", POINTWISE)
PARTS = {  # whose floors are known
    "matrix": "matrix products",
    "look_up": "reading rows",
    "norm": "norms of gradients",
    "optimizer": "moving rows",
}


def make_data(folder: Path, users: int, items: int, rows: int, ratings: str) -> None:
    """Features of generated ratings, or of a file of MovieLens, by the notebook's ETL: `train` and `valid`."""
    import polars as pl

    import falconet as fl
    from falconet import ops
    from falconet.datasets.synthetic import synthesize

    raw = folder / "raw"
    if ratings:
        raw.mkdir(parents=True)
        table = pl.read_csv(ratings)
        movies = pl.read_csv(Path(ratings).with_name("movies.csv")).with_columns(pl.col("genres").str.split("|"))
    else:
        synthesize(raw, users=users, items=items, rows=rows)
        table, movies = pl.read_parquet(raw / "ratings" / "*.parquet"), pl.read_parquet(raw / "movies.parquet")
    table = table.select("userId", "movieId", "rating").sample(fraction=1.0, shuffle=True, seed=0)
    valid = len(table) // 5
    for name, some in (("train", table[valid:]), ("valid", table[:valid])):
        some.write_parquet(raw / f"{name}.parquet", row_group_size=1 << 20)
    joined = ["userId", "movieId"] >> ops.JoinExternal(movies.select("movieId", "genres"), on="movieId")
    label = ["rating"] >> ops.LambdaOp(lambda col: (col > 3).cast(pl.Int8)) >> ops.AddTags(["target", "binary"])
    fitted = fl.Workflow((joined >> ops.Categorify()) + label).fit(fl.Dataset(raw / "train.parquet"))
    for name in ("train", "valid"):
        data = fl.Dataset(raw / f"{name}.parquet")
        fitted.transform(data).to_parquet(folder / name, shuffle=fl.Shuffle.FULL, seed=0)
    shutil.rmtree(raw)


def load(data: Path, name: str, batch: int, seed: int = 0) -> Any:
    from falconet.loader.loader import Loader

    return Loader(data / name, batch_size=batch, shuffle=name == "train", seed=seed)


def model_of(schema: Any, width: int | None, seed: int) -> Any:
    import torch

    from falconet.models.mlp import MLP

    torch.manual_seed(seed)
    return MLP.from_schema(schema, MLP.Config(hidden=(128, 128, 128), loss="mse", dim=width))


class Enough(Exception):  # noqa: N818
    """Enough steps were timed."""


def clock(steps: int) -> tuple[list[float], Callable[[], None]]:
    """Times, and what to call after each step; it ends the training after WARM and so many steps."""
    times: list[float] = []

    def tick() -> None:
        times.append(time.perf_counter())
        if len(times) > WARM + steps:
            raise Enough

    return times, tick


def train_ours(
    model: Any, loader: Any, epochs: int, after: Callable[[], None], each: Callable[[], None], **settings: Any
) -> None:
    """falconet's way, with further settings of a TrainConfig; `after` each epoch and `each` step."""
    from falconet.train.callbacks import Callback
    from falconet.train.settings import TrainConfig
    from falconet.train.trainer import Trainer

    class Told(Callback):
        def step(self, step: int, figures: Mapping[str, float]) -> None:
            each()

        def epoch(self, epoch: int, figures: Mapping[str, Any]) -> bool:
            after()
            return False

    config = TrainConfig(**{"epochs": epochs, **RATES, **settings})
    Trainer(config, callbacks=[Told()]).fit(model, loader)


def plain(model: Any) -> Any:
    """The same network in torch's own layers, with the same weights."""
    import torch
    from torch import Tensor, nn

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            columns = model.inputs.tables.columns
            self.embeddings = nn.ModuleDict()
            for name, column in columns.items():
                weight = model.inputs.tables.weight(column.table).detach().clone()
                kind: Any = nn.EmbeddingBag if column.is_list else nn.Embedding
                self.embeddings[name] = kind.from_pretrained(weight, freeze=False, padding_idx=0)
            widths = (model.layers.first.in_features, 128, 128, 128)
            layers: list[nn.Module] = []
            for inputs, outputs in itertools.pairwise(widths):
                layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.BatchNorm1d(outputs)]
            self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], 1))
            ours = [model.layers.first, *(x for x in model.layers.rest if isinstance(x, nn.Linear))]
            theirs = [x for x in self.layers if isinstance(x, nn.Linear)]
            for mine, other in zip(theirs, ours, strict=True):
                mine.load_state_dict(other.state_dict())

        def loss(self, batch: Any) -> Tensor:
            vectors = []
            for name, embedding in self.embeddings.items():
                x = batch.features[name]
                vectors.append(embedding(x) if isinstance(x, Tensor) else embedding(x.values, x.offsets[:-1]))
            errors: Tensor = self.layers(torch.cat(vectors, dim=1)).squeeze(1) - batch.targets["rating"]
            return errors.square()

    return Plain()


def train_plain(
    model: Any, loader: Any, epochs: int, after: Callable[[], None], each: Callable[[], None], fused: bool = False
) -> None:
    """The notebook's way; `fused`: the same numbers, up to rounding, in less time."""
    import torch

    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=fused)
    for epoch in range(epochs):
        model.train()
        for batch in loader.batches(epoch):
            optimizer.zero_grad()
            model.loss(batch).mean().backward()
            optimizer.step()
            each()
        after()


def steps(way: str, data: Path, width: int | None, count: int) -> dict[str, float]:
    """Rows per second of some steps."""
    loader = load(data, "train", BATCH)
    model = model_of(loader.schema, width, 0)
    times, tick = clock(count)
    run = train_ours if way == "ours" else train_plain
    with contextlib.suppress(Enough):
        run(model if way == "ours" else plain(model), loader, 10**6, lambda: None, tick)
    rows = BATCH * (len(times) - 1 - WARM)
    rate = rows / (times[-1] - times[WARM])
    gaps = [later - before for before, later in zip(times[WARM:], times[WARM + 1 :], strict=False)]
    return {
        "rows_per_s": rate,
        "step_ms": 1000 * statistics.median(gaps),
        "epoch_s": loader.rows / rate,
        "peak_mb": peak_mb(),
    }


def losses(way: str, data: Path, batch: int, seed: int) -> dict[str, float]:
    """The squared error on held-out rows after each epoch."""
    from falconet.train.settings import TrainConfig
    from falconet.train.trainer import Trainer

    loader, valid = load(data, "train", batch, seed), load(data, "valid", 8 * BATCH)
    model = model_of(loader.schema, None, seed)
    found: list[float] = []
    run = train_ours if way == "ours" else train_plain
    model = model if way == "ours" else plain(model)
    judge = Trainer(TrainConfig())
    run(model, loader, EPOCHS, lambda: found.append(judge.evaluate(model, valid)["loss"]), lambda: None)
    return {"valid_loss": found[0], "valid_loss_3": found[EPOCHS - 1]}


def flops_of(event: Any) -> int:
    """Of all calls of a product: the profiler counts torch's own. Those with what is added behind [rows, inputs] scale
    a channel each, and count as none."""
    if event.key != POINTWISE:
        return int(event.flops)
    (rows, inputs), second, third, *_ = event.input_shapes
    return 2 * rows * inputs * second[0] * event.count if len(third) == 1 else 0


def parts(data: Path, width: int | None) -> dict[str, float]:
    """Milliseconds of a step in its parts, and the least they could take."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    from falconet.nn.embedding import Tables
    from falconet.nn.projection import Local
    from falconet.train import gradients
    from falconet.train.precision import choose
    from falconet.train.runtime import Runtime
    from falconet.train.tables import TableOptimizer

    dtype = choose("auto", Runtime())
    peaks = machine_peaks(str(dtype).removeprefix("torch."))
    loader = load(data, "train", BATCH)
    model = model_of(loader.schema, width, 0)
    read = 0

    def named(owner: Any, method: str, name: str) -> None:
        act = getattr(owner, method)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            nonlocal read
            with record_function(name):
                found = act(*arguments, **options)
            if name == "rows":
                read += found.numel()
            return found

        setattr(owner, method, wrapped)

    named(Tables, "_distinct", "distinct")
    named(Tables, "_rows_of", "rows")
    named(Local, "rows", "rows")
    named(gradients, "_squares", "norm")
    named(gradients, "_through", "form")
    named(TableOptimizer, "step", "step")
    times, tick = clock(20)
    with profile(activities=[ProfilerActivity.CPU], with_flops=True) as profiler, contextlib.suppress(Enough):
        train_ours(model, loader, 10**6, lambda: None, tick)
    count = len(times)
    events = {event.key: event for event in profiler.key_averages()}
    products = [event for event in profiler.key_averages(group_by_input_shape=True) if event.key in PRODUCTS]
    number = 2 if dtype == torch.bfloat16 else 4
    found = {
        "matrix_ms": sum(event.self_cpu_time_total for event in products) / count / 1e3,
        "matrix_floor_ms": sum(flops_of(event) for event in products) / count / peaks["flops"] * 1e3,
        "look_up_floor_ms": read / count * (4 + number) / peaks["bytes"] * 1e3,  # rows are read, and written as they
        "norm_floor_ms": read / count * number / peaks["bytes"] * 1e3,  # read once, for the sums of squares
        "optimizer_floor_ms": read / count * (number + 4 + 4) / peaks["bytes"] * 1e3,  # are multiplied; moved in place
        "profiled_step_ms": 1000 * (times[-1] - times[WARM]) / (count - 1 - WARM),
        "peak_gflop_per_s": peaks["flops"] / 1e9,
        "copy_gb_per_s": peaks["bytes"] / 1e9,
    }
    took = {key: events[key].cpu_time_total / count / 1e3 if key in events else 0.0 for key in NAMED}
    found["look_up_ms"] = took["distinct"] + took["rows"]
    found["norm_ms"] = took["norm"]
    found["optimizer_ms"] = took["step"] - took["norm"] - took["form"]  # what it forms are matrix products
    return found


def run(way: str, data: Path, width: str, number: int, batch: int) -> dict[str, float]:
    """One way in this process. `number`: of steps, or a seed."""
    from falconet.progress import set_quiet

    set_quiet(True)
    chosen = int(width) or None
    if way == "parts":
        return parts(data, chosen)
    kind, name = way.split("-")
    return steps(name, data, chosen, number) if kind == "steps" else losses(name, data, batch, number)


def ask(
    way: str, data: Path, width: int = 0, number: int = 0, batch: int = BATCH, threads: int = 0
) -> dict[str, float]:
    threads = threads or os.cpu_count() or 1
    found: dict[str, float] = child(
        [__file__, "--run", way, data, str(width), str(number), str(batch)], threads=threads
    )
    text = ", ".join(f"{key} {value:,.1f}" if value > 1 else f"{key} {value:.5f}" for key, value in found.items())
    print(f"{way}{f' {width} wide' if width else ''}, {threads} thread(s): {text}", flush=True)
    return found


def speed(data: Path, runs: int, quick: bool) -> Figures:
    """Both ways in turn."""
    figures: Figures = {}
    ours, theirs = (6, 3) if quick else (STEPS, SEED_STEPS)
    for width in (0, 64):
        end = f"_{width}" if width else ""
        for _ in range(runs):
            found = {
                "": ask("steps-ours", data, width, ours),
                "seed_": ask("steps-plain", data, width, theirs),
                "one_thread_": ask("steps-ours", data, width, ours, threads=1),
            }
            for start, values in found.items():
                for key, value in values.items():
                    figures.setdefault(f"{start}{key}{end}", []).append(value)
            ratio = found[""]["rows_per_s"] / found["seed_"]["rows_per_s"]
            figures.setdefault(f"ratio{end}", []).append(ratio)
        for key, value in ask("parts", data, width, threads=1).items():
            figures.setdefault(f"{key}{end}", []).append(value)
    return figures


def quality(data: Path, batch: int, seeds: int, end: str) -> Figures:
    """Errors of both ways: of each seed, and so the mean as well as the spread."""
    figures: Figures = {}
    for seed in range(seeds):
        for way, start in (("ours", ""), ("plain", "seed_")):
            for key, value in ask(f"losses-{way}", data, 0, seed, batch).items():
                figures.setdefault(f"{start}{key}{end}", []).append(value)
    for key in (f"valid_loss{end}", f"valid_loss_3{end}"):
        mean, other = statistics.mean(figures[key]), statistics.mean(figures[f"seed_{key}"])
        print(f"{key}: {mean:.5f}, the notebook's way {other:.5f} (means of {seeds} seeds)", flush=True)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder for the data, which is used again")
    parser.add_argument("--runs", type=int, default=3, help="how often each way is taken")
    parser.add_argument("--quality", action="store_true", help="held-out errors as well")
    parser.add_argument("--ratings", type=Path, help="a ratings.csv of MovieLens, beside its movies.csv, for --quality")
    parser.add_argument("--quick", action="store_true", help="400,000 rows, a few steps, once")
    parser.add_argument("--json", action="store_true", help="the figures as JSON, on the last line")
    parser.add_argument("--run", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--make", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        way, data, width, number, batch = options.run
        print(json.dumps(run(way, Path(data), width, int(number), int(batch))))
        return 0
    if options.make:
        folder, users, items, rows, ratings = options.make
        make_data(Path(folder), int(users), int(items), int(rows), ratings)
        print("{}")
        return 0
    room = Path(tempfile.mkdtemp(prefix="falconet-train-"))
    try:
        figures = measure(options, room)
    finally:
        shutil.rmtree(room, ignore_errors=True)
    found = middle(figures)
    for end in ("", "_64"):
        print(
            f"{end.strip('_') or 512} wide: {found[f'rows_per_s{end}']:,.0f} rows/s, {found[f'ratio{end}']:.1f} × the "
            f"notebook's way; {found[f'step_ms{end}']:.1f} ms a step, one thread "
            f"{found[f'one_thread_step_ms{end}']:.1f} ms; {found[f'peak_mb{end}']:,.0f} MB, the notebook's way "
            f"{found[f'seed_peak_mb{end}']:,.0f} MB"
        )
        print(f"  one thread, a step under the profiler: {found[f'profiled_step_ms{end}']:.1f} ms, of which")
        for key, name in PARTS.items():
            took, floor = found[f"{key}_ms{end}"], found[f"{key}_floor_ms{end}"]
            print(f"    {name}: {took:.1f} ms, {took / floor:.1f} × its floor of {floor:.1f} ms")
    if options.json:
        print(as_json(WORK, figures))
    return 0


def measure(options: argparse.Namespace, room: Path) -> Figures:
    def made(folder: Path, size: tuple[int, int, int], ratings: Path | str = "") -> Path:
        if not list(folder.glob("train/*.parquet")):
            child([__file__, "--make", folder, *map(str, size), ratings], threads=os.cpu_count() or 1)
        return folder

    data = made(options.data or room / "data", QUICK if options.quick else SIZE)
    figures = speed(data, 1 if options.quick else options.runs, options.quick)
    if options.quality:
        tastes = data if options.quick else made(room / "tastes", TASTES)
        figures |= quality(tastes, BATCH, 1 if options.quick else SEEDS, "")
        if options.ratings:
            small = made(room / "small", (0, 0, 0), options.ratings)
            figures |= quality(small, SMALL_BATCH, SMALL_SEEDS, "_small")
    return figures


if __name__ == "__main__":
    sys.exit(main())
