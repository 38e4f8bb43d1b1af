"""How good the retrieval models are on ml-latest-small, beside Popular and beside what other packages have.

    FALCONET_DATA=FOLDER python benchmarks/quality.py [--protocol P] [--seeds 0 1 …] [--models NAME …] [--validation]
                                                      [--work FOLDER] [--table] [--quick] [--json]

`user-ratio`: a random fifth of each user's ratings is the test, another one for every seed. `leave-last-out`: each
user's last rating, ties in time in file order; seeds are those of the training alone. `cold-items`: all ratings of a
tenth of the films, another one for every seed, in lists of films that training has no rating of. Lists otherwise are
made from the full catalogue without what a user has in training, every test rating is relevant, films that training
does not know stay in the denominators. Settings: quality.toml. With `--validation` the training part of split 0 is
split once more, which is how they were chosen.

Every model is a process of its own with one thread. Results are appended to WORK/results.jsonl: what was killed goes on
where it stopped. implicit and LensKit are installed under WORK/neighbours (neighbours.py pins them); where that fails,
it says so and goes on without them. Intervals are those of a bootstrap over users of each user's mean
over seeds, or over the users of all seeds where other users are in the test of another one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measured import as_json
from results import AGAIN, Record, append, entries, measured, missing, options_of, python_of_others, there

from falconet.metrics.compare import difference, interval
from falconet.progress import set_quiet
from falconet.recipe.config import recipe_of
from falconet.recipe.run import run as run_recipe

PROTOCOLS = ("user-ratio", "leave-last-out", "cold-items")
METRICS = ("ndcg@10", "recall@10", "mrr@10")
RESULTS = "results.jsonl"
CLOSED = ["Popular", "EASE", "ItemKNN"]
QUICK = {"user-ratio": CLOSED, "leave-last-out": CLOSED, "cold-items": ["Popular"]}
FLOORS = {"EASE": 0.37, "TwoTower": 0.32, "ItemKNN": 0.27, "MultVAE": 0.26, "YouTubeDNN": 0.24}
PAIRS = (("IALS", "implicit ALS"), ("MF, BPR", "implicit BPR"), ("MF, BPR of one negative", "implicit BPR"))
NEURAL = ("TwoTower", "YouTubeDNN", "MultVAE", "RecVAE", "MF, softmax")


def prepared(data: Path, work: Path, protocol: str, seed: int, *, validation: bool) -> Path:
    """The features of a split, made where they are not there."""
    out = work / f"{protocol}-{seed}"
    source: dict[str, Any] = {"reader": "movielens", "path": str(data)}
    columns: dict[str, Any] = {}
    if validation:
        whole = prepared(data, work, protocol, seed, validation=False).parent
        out, seed = work / f"{protocol}-{seed}-validation", seed + AGAIN
        source = {"reader": "files", "path": str(whole / "split/train"), "items": str(whole / "data/movies.parquet")}
        columns = {"item_features": ["genres"]}
    plain = {"format": 1, "protocol": protocol, "seed": seed, "data": source, "columns": columns}
    run_recipe(recipe_of({**plain, "split": {"seed": seed}}), out, only="prepare")
    return out / "features"


def run_all(data: Path, work: Path, protocol: str, chosen: list[Record], seeds: list[int], again: bool) -> None:
    """Measure what is not measured yet."""
    python, folder, results = python_of_others(work, chosen), work / "exchange/quality", work / RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        features = prepared(data, work, protocol, 0 if protocol == "leave-last-out" else seed, validation=again)
        for entry, what in missing(results, protocol, seed, chosen, python, validation=again):
            job = {"features": str(features), "seed": seed, "entry": entry, "folder": str(folder)}
            job |= {"python": str(python), "untrained": protocol == "cold-items"}
            found = measured("quality_model.py", job, folder)
            if found is not None:
                append(results, {**what, **found})
                values = " ".join(f"{name} {found[name]:.4f}" for name in METRICS)
                print(f"{protocol} {seed} {entry['name']}: {values}, {found['cpu_seconds']:.1f} s", flush=True)


def table(found: dict[str, list[Record]]) -> Iterable[str]:
    """Lines of Markdown, one for every model."""
    yield "| model | nDCG@10 | lowest to highest of the seeds | recall@10 | MRR@10 | coverage | seconds | MB |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, records in found.items():
        cells = []
        for metric in METRICS:
            low, high = interval(by_user(records, metric))
            cells.append(f"{short(mean(records, metric))} ({short(low)} to {short(high)})")
        spread = [record["ndcg@10"] for record in records]
        cells.insert(1, f"{short(min(spread))} to {short(max(spread))}, {len(records)}")
        seconds = max(record["cpu_seconds"] for record in records)
        peak = max(record["peak_mb"] for record in records)
        cells += [short(mean(records, "coverage@10")), f"{seconds:.0f}", f"{peak:,.0f}"]
        yield f"| {name} | {' | '.join(cells)} |"


def by_user(records: Sequence[Record], metric: str) -> Any:
    """Each user's mean over the seeds; where these have different users in the test, what each has in each."""
    values = [np.asarray(record["per_user"][metric]) for record in records]
    return np.mean(values, axis=0) if len({len(some) for some in values}) == 1 else np.concatenate(values)


def checks(found: dict[str, list[Record]]) -> Iterable[str]:
    """What was asked for, beside what came out."""
    for name, floor in FLOORS.items():
        if name in found:
            yield f"{name}: {short(mean(found[name], 'ndcg@10'))}, at least {short(floor)} was asked for"
    for ours, theirs in PAIRS:
        if ours in found and theirs in found:
            pair = shared(found[ours], found[theirs])
            both = [np.mean([r["per_user"]["ndcg@10"] for r in one], axis=0) for one in pair]
            apart = difference(*both)
            yield f"{ours} - {theirs}: {apart.value:+.4f} ({apart.low:+.4f} to {apart.high:+.4f}), -0.005 was allowed"
    neural = [name for name in NEURAL if name in found]
    if neural and "EASE" in found:
        best = max(neural, key=lambda name: mean(found[name], "ndcg@10"))
        ours_too, ease = shared(found[best], found["EASE"])
        share = mean(ours_too, "ndcg@10") / mean(ease, "ndcg@10")
        yield f"best neural: {best}, {share:.3f} of EASE, .9 was asked for"
    for record in found.get("EASE", []):
        if "from_numpy" in record:
            yield f"EASE's weights are at most {record['from_numpy']:.1e} from numpy's, 1e-5 was asked for"


def shared(first: list[Record], second: list[Record]) -> tuple[list[Record], list[Record]]:
    """The records of the seeds that both have."""
    seeds = {r["seed"] for r in first} & {r["seed"] for r in second}
    return [r for r in first if r["seed"] in seeds], [r for r in second if r["seed"] in seeds]


def mean(records: Sequence[Record], metric: str) -> float:
    return float(np.mean([record[metric] for record in records]))


def short(value: float) -> str:
    return f"{value:.4f}".removeprefix("0")


def main() -> int:
    options = options_of(__doc__, "--protocol", PROTOCOLS, "quality.toml")
    set_quiet(True)
    figures: dict[str, list[float]] = {}
    for protocol in options.splits:
        chosen = entries("quality.toml", protocol, QUICK[protocol] if options.quick else options.models)
        if not options.table:
            run_all(options.data, options.work, protocol, chosen, options.seeds, options.validation)
        found = there(options.work / RESULTS, protocol, options.seeds, chosen, validation=options.validation)
        print(f"\n{protocol}\n", *table(found), sep="\n")
        print("", *checks(found) if protocol == "user-ratio" else (), sep="\n", flush=True)
        figures |= {
            f"{'' if protocol == PROTOCOLS[0] else protocol + ' '}{name}.ndcg@10": [r["ndcg@10"] for r in mine]
            for name, mine in found.items()
        }
    if options.json:
        print(as_json("the quality of retrieval models on ml-latest-small", figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
