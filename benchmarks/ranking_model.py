"""One ranking model on one split, in a process of its own. `ranking.py` calls it.

    python benchmarks/ranking_model.py JOB.json

A job is {"features": folder, "seed", "entry": one of ranking.toml, "python": that of the neighbours, or null, "folder":
for what is passed to them, "out": an .npz for the logits of the test rows}. The last line is what it took.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from measured import peak_mb
from neighbours import ask

from falconet import Loader, TrainConfig, Trainer
from falconet.batch import Ragged
from falconet.config import from_plain
from falconet.loader.transforms import Unknown
from falconet.models import MODELS, MultiTask
from falconet.progress import set_quiet

TARGET = "liked"
USER, ITEM, GENRES = "userId", "movieId", "genres"
FOLLOWS = {USER: ("TE_userId_liked", "userId_count"), ITEM: ("TE_movieId_liked", "movieId_count")}  # from the id
NUMBERS = ("TE_userId_liked", "TE_movieId_liked", "userId_count", "movieId_count", "year")

Floats = npt.NDArray[np.float64]


def table(folder: Path) -> dict[str, Any]:
    """All rows of a folder, as arrays; lists are 0 and 1 for every code."""
    batch = next(iter(Loader(folder, batch_size=10**9)))
    found = {name: x if isinstance(x, Ragged) else x.numpy() for name, x in batch.features.items()}
    return {**found, TARGET: batch.targets[TARGET].numpy()}


def bias_logits(train: dict[str, Any], test: dict[str, Any], ridge: float) -> Floats:
    """What a bias for every user and one for every film say, fitted by Newton's steps on one side after the other."""
    liked = train[TARGET].astype(np.float64)
    share = liked.mean()
    average = np.log(share / (1 - share))
    sizes = {name: int(max(train[name].max(), test[name].max())) + 1 for name in (USER, ITEM)}
    biases = {name: np.zeros(size) for name, size in sizes.items()}
    for _ in range(30):
        for name in (USER, ITEM):
            p = 1 / (1 + np.exp(-average - biases[USER][train[USER]] - biases[ITEM][train[ITEM]]))
            slope = np.bincount(train[name], liked - p, sizes[name]) - ridge * biases[name]
            biases[name] += slope / (np.bincount(train[name], p * (1 - p), sizes[name]) + ridge)
    return np.asarray(average + biases[USER][test[USER]] + biases[ITEM][test[ITEM]])


def matrix(rows: dict[str, Any], genres: int) -> npt.NDArray[np.float32]:
    """The columns that the other models read, as LightGBM takes them: ids, numbers, one column for each genre."""
    lists = rows[GENRES]
    flags = np.zeros((len(lists), genres), np.float32)
    flags[lists.row_of_value().numpy(), lists.values.numpy()] = 1.0
    plain = [rows[name].astype(np.float32) for name in (USER, ITEM, *NUMBERS)]
    return np.concatenate([np.stack(plain, 1), flags], 1)


def trees(job: dict[str, Any], train: dict[str, Any], test: dict[str, Any], genres: int) -> tuple[Floats, Any]:
    """LightGBM's logits, and what they took."""
    folder = Path(job["folder"])
    asked = matrix(test, genres)
    np.savez(folder / "rows.npz", x=matrix(train, genres), y=train[TARGET], asked=asked)
    entry = job["entry"]
    question = {"name": entry["neighbour"], "config": entry["config"], "seed": job["seed"], "categories": [0, 1]}
    question |= {"data": str(folder / "rows.npz"), "out": str(folder / "predicted.npz")}
    took = ask(Path(job["python"]), question, folder)
    with np.load(folder / "predicted.npz") as answer:
        p = answer["predicted"]
    return np.log(p / (1 - p)), took


def learned(job: dict[str, Any], features: Path) -> Floats:
    """The logits of a model of falconet's."""
    entry, seed = job["entry"], job["seed"]
    kind = MODELS[entry["model"]]
    columns = [USER, ITEM, GENRES, *NUMBERS, *(["history"] if entry.get("history") else [])]
    targets = [TARGET, *(["stars"] if issubclass(kind, MultiTask) else [])]
    hidden = []
    if share := entry.get("unknown"):
        unknown = json.loads((features / "unknown.json").read_text())
        hidden = [Unknown(values=values, share=share, stream=2 + i) for i, values in enumerate(unknown)]
    rows = features / "train"
    loader = Loader(rows, batch_size=1024, shuffle=True, seed=seed, columns=[*columns, *targets], transforms=hidden)
    torch.manual_seed(seed)
    config = {"target": TARGET, **entry.get("config", {})}
    model = kind.from_schema(loader.schema, from_plain(kind.Config, config, where="config"))
    Trainer(from_plain(TrainConfig, {"seed": seed, **entry.get("train", {})}, where="train")).fit(model, loader)
    model.eval()
    with torch.inference_mode():
        asked = Loader(features / "test", batch_size=4096, columns=[*columns, *targets])
        return torch.cat([model(batch) for batch in asked]).double().numpy()


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Train, write the logits of the test rows, and say what it took."""
    features, entry = Path(job["features"]), job["entry"]
    start, cpu = time.perf_counter(), time.process_time()
    took: dict[str, Any] = {}
    if "model" in entry:
        logits = learned(job, features)
    else:
        train, test = table(features / "train"), table(features / "test")
        if "bias" in entry:
            logits = bias_logits(train, test, entry["bias"])
        else:
            genres = Loader(features / "train", batch_size=1).schema[GENRES].cardinality or 0
            logits, took = trees(job, train, test, genres)
    ours = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu, "peak_mb": peak_mb()}
    np.savez(job["out"], logits=logits)
    return ours | took


def main() -> int:
    set_quiet(True)
    print(json.dumps(run(json.loads(Path(sys.argv[1]).read_text()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
