"""How well the ranking models tell what people like: whether a rating of ml-latest-small is above 3.

    FALCONET_DATA=FOLDER python benchmarks/ranking.py [--split S] [--seeds 0 1 …] [--models NAME …] [--validation]
                                                      [--unknown SHARE] [--work FOLDER] [--table] [--quick] [--json]

`random`: a random fifth of each user's ratings is the test, another one for every seed. `time`: everything from the
0.8 quantile of all times on, users and films that training knows and those that it does not apart; seeds are those of
the training alone. All models read the same columns: ids, genres, year, how often user and film are rated and what
share of that is liked, out of fold (DIN the films rated before as well). Ours see a tenth of the rows of the split by
time as if training did not know the user, another one as if it did not know the film (`--unknown`). Beside them: a bias
for every user and film, and LightGBM, installed under WORK/neighbours (neighbours.py). Settings: ranking.toml.

Every model is a process of its own with one thread; results are appended to WORK/ranking.jsonl, and what was killed
goes on where it stopped. Differences are those of a paired bootstrap over test rows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from measured import as_json
from ranking_model import FOLLOWS, GENRES, ITEM, TARGET, USER, table
from results import AGAIN, Record, append, entries, measured, missing, options_of, python_of_others, there

from falconet import ColumnSelector, Dataset, Shuffle, Workflow, ops
from falconet.etl.split import write_split
from falconet.metrics.binary import BinaryMetrics
from falconet.progress import set_quiet
from falconet.recipe.config import recipe_of
from falconet.recipe.run import run as run_recipe

SPLITS = {"random": "user-ratio", "time": "global-time"}
UNKNOWN = {"random": 0.0, "time": 0.1}  # share of the training rows that look like those of unknown users, of films
RESAMPLES = 1000
RESULTS = "ranking.jsonl"

Floats = npt.NDArray[np.float64]


def workflow(films: pl.DataFrame) -> Workflow:
    """Ids, what the film is, how often and how much liked, what was rated before; liked or not, and the stars."""
    ids = [USER, ITEM] >> ops.Categorify()
    item = [ITEM] >> ops.Categorify() >> ops.AddTags(tags=("item", "id"))
    film = [ITEM] >> ops.JoinExternal(films.select(ITEM, GENRES, pl.col("year").cast(pl.Float64)), on=ITEM)
    year = film[["year"]] >> ops.Normalize() >> ops.FillMissing(fill_val=0.0)
    liked = ["rating"] >> ops.LambdaOp(lambda x: (x.cast(pl.Float64) > 3).cast(pl.Float32)) >> ops.Rename(name=TARGET)
    shares = [USER, ITEM] >> ops.TargetEncoding(target=liked, kfold=5, p_smooth=10)
    counts = [USER, ITEM] >> ops.JoinGroupby(stats=["count"]) >> ops.LogOp() >> ops.Normalize()
    events = ColumnSelector([USER, "timestamp"]) + item
    history = events >> ops.History(key=USER, item=ITEM, time="timestamp", length=50)
    stars = ["rating"] >> ops.Rename(name="stars") >> ops.Normalize()
    return Workflow(
        ids
        + (film[[GENRES]] >> ops.Categorify())
        + year
        + (shares >> ops.Normalize())
        + counts
        + history["history"]
        + (liked >> ops.AddTags(tags=("target", "binary")))
        + (stars >> ops.AddTags(tags=("target", "regression")))
    )


def prepared(data: Path, work: Path, split: str, seed: int, *, validation: bool) -> Path:
    """The features of a split, made where they are not there."""
    whole = work / f"{SPLITS[split]}-{seed}"
    source = {"reader": "movielens", "path": str(data)}
    plain = {"format": 1, "protocol": SPLITS[split], "seed": seed, "data": source, "split": {"seed": seed}}
    run_recipe(recipe_of(plain), whole, only="prepare")
    rows, out = whole / "split", work / f"ranking-{split}-{seed}"
    if validation:
        rows, out = work / f"ranking-{split}-{seed}-validation-rows", work / f"ranking-{split}-{seed}-validation"
    if (out / "done").is_file():
        return out
    if validation:
        kind = "random" if split == "random" else "time"
        train = Dataset(whole / "split/train").scan().drop("row").collect()
        write_split(
            Dataset(train), rows, kind=kind, user=USER, time="timestamp", ratio=0.8, seed=seed + AGAIN, overwrite=True
        )
    train = Dataset(rows / "train")
    fitted = workflow(pl.read_parquet(whole / "data/movies.parquet")).fit(train)
    fitted.transform(train, out_of_fold=True).to_parquet(out / "train", shuffle=Shuffle.FULL, seed=seed)
    fitted.transform(Dataset(rows / "test")).to_parquet(out / "test", shuffle=Shuffle.NONE)
    nobody = Dataset(rows / "test").scan().head(1).with_columns(pl.lit(-1).alias(name) for name in FOLLOWS).collect()
    made = fitted.transform(nobody).row(0, named=True)
    unknown = [{name: made[name] for name in (side, *of)} for side, of in FOLLOWS.items()]
    (out / "unknown.json").write_text(json.dumps(unknown))
    (out / "done").touch()
    return out


def logits_of(work: Path, record: Record) -> Path:
    return work / f"logits/{'-'.join(str(record[x]) for x in ('split', 'part', 'seed', 'name', 'key'))}.npz"


def run_all(data: Path, work: Path, split: str, chosen: list[Record], seeds: list[int], again: bool) -> None:
    """Measure what is not measured yet."""
    python, results = python_of_others(work, chosen), work / RESULTS
    for folder in ("exchange/ranking", "logits"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        features = prepared(data, work, split, 0 if split == "time" else seed, validation=again)
        liked = table(features / "test")[TARGET]
        for entry, what in missing(results, split, seed, chosen, python, validation=again):
            job = {"features": str(features), "seed": seed, "entry": entry, "python": str(python)}
            job |= {"folder": str(work / "exchange/ranking"), "out": str(logits_of(work, what))}
            took = measured("ranking_model.py", job, work / "exchange/ranking")
            if took is not None:
                figures = figures_of(np.load(logits_of(work, what))["logits"], liked)
                append(results, {**what, **figures, **took})
                print(f"{split} {seed} {entry['name']}: {figures}, {took['cpu_seconds']:.1f} s", flush=True)


def figures_of(logits: Floats, liked: npt.NDArray[np.float32]) -> dict[str, float]:
    """AUC and log loss."""
    metrics = BinaryMetrics()
    state = metrics.partial(torch.from_numpy(logits), torch.from_numpy(liked))
    return {name: round(value, 6) for name, value in metrics.finish(state).items()}


def resampled(logits: Floats, liked: npt.NDArray[np.float32], seed: int) -> Floats:
    """The AUC of so many samples of the rows with replacement; the same ones for every model, so that they pair."""
    random = np.random.Generator(np.random.Philox(seed))
    order = logits.argsort(kind="stable")
    ends = np.flatnonzero(np.append(np.diff(logits[order]) != 0, True))
    positive = liked[order] > 0
    found = np.empty(RESAMPLES)
    for i in range(RESAMPLES):
        times = np.bincount(random.integers(0, len(logits), len(logits)), minlength=len(logits))[order]
        below = np.append(0, np.cumsum(times * ~positive)[ends])
        wins = np.diff(np.append(0, np.cumsum(times * positive)[ends])) * (below[1:] + below[:-1]) / 2
        found[i] = wins.sum() / max((times * positive).sum() * below[-1], 1)
    return found


class Judged:
    """What all seeds of a model come to, on all rows or on those of a segment."""

    def __init__(
        self, work: Path, records: list[Record], rows: dict[int, Any], known: tuple[bool, bool] | None
    ) -> None:
        self.records, self.parts = records, []
        for record in records:
            liked, flags = rows[record["seed"]]
            chosen = np.ones(len(liked), bool) if known is None else (flags == known).all(1)
            self.parts.append((np.load(logits_of(work, record))["logits"][chosen], liked[chosen], record["seed"]))

    def mean(self, metric: str) -> float:
        return float(np.mean([figures_of(logits, liked)[metric] for logits, liked, _ in self.parts]))

    def samples(self) -> Floats:
        return np.asarray(np.mean([resampled(*part) for part in self.parts], axis=0))


def known_rows(features: Path) -> npt.NDArray[np.bool_]:
    """Whether training knows the user and the film of every test row: [rows, 2]."""
    train, test = table(features / "train"), table(features / "test")
    return np.stack([np.isin(test[name], train[name]) & (test[name] > 2) for name in (USER, ITEM)], 1)


def show(
    work: Path, data: Path, split: str, found: dict[str, list[Record]], seeds: list[int], again: bool
) -> Iterable[str]:
    """Lines of Markdown: AUC and log loss of all rows, differences, and of the split by time the segments."""
    folders = {seed: prepared(data, work, split, 0 if split == "time" else seed, validation=again) for seed in seeds}
    rows = {seed: (table(folder / "test")[TARGET], known_rows(folder)) for seed, folder in folders.items()}
    segments: dict[str, tuple[bool, bool] | None] = {"all rows": None}
    if split == "time":
        for user in (True, False):
            for film in (True, False):
                segments[f"{'known' if user else 'new'} users, {'known' if film else 'new'} films"] = (user, film)
    for title, known in segments.items():
        judged = {name: Judged(work, records, rows, known) for name, records in found.items()}
        number = len(next(iter(judged.values())).parts[0][0]) if judged else 0
        yield f"\n{title}: {number:,} in a test\n"
        yield "| model | AUC | log loss | AUC - bias only | AUC - LightGBM | seeds | seconds | MB |"
        yield "|---|---|---|---|---|---|---|---|"
        samples = {name: one.samples() for name, one in judged.items()}
        for name, one in judged.items():
            cells = [f"{one.mean('auc'):.4f}", f"{one.mean('log_loss'):.4f}"]
            for other in ("bias only", "LightGBM"):
                if other in judged and other != name and len(one.parts) == len(judged[other].parts):
                    low, high = np.quantile(samples[name] - samples[other], [0.025, 0.975])
                    apart = one.mean("auc") - judged[other].mean("auc")
                    cells.append(f"{apart:+.4f} ({low:+.4f} to {high:+.4f})")
                else:
                    cells.append("")
            seconds, peak = (max(r[key] for r in one.records) for key in ("cpu_seconds", "peak_mb"))
            yield f"| {name} | {' | '.join(cells)} | {len(one.parts)} | {seconds:.0f} | {peak:,.0f} |"


def main() -> int:
    options = options_of(__doc__, "--split", tuple(SPLITS), "ranking.toml")
    set_quiet(True)
    data, work, seeds, again = options.data, options.work, options.seeds, options.validation
    named = entries("ranking.toml", "models", ["bias only", "MLP"] if options.quick else options.models)
    figures: dict[str, list[float]] = {}
    for split in options.splits:
        share = UNKNOWN[split] if options.unknown is None else options.unknown
        chosen = [{**entry, "unknown": share} if "model" in entry and share else entry for entry in named]
        if not options.table:
            run_all(data, work, split, chosen, seeds, again)
        found = there(work / RESULTS, split, seeds, chosen, validation=again)
        print(f"\n{split}", *show(work, data, split, found, seeds, again), sep="\n", flush=True)
        figures |= {f"{split} {name}.auc": [record["auc"] for record in mine] for name, mine in found.items()}
    if options.json:
        print(as_json("the quality of ranking models on ml-latest-small", figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
