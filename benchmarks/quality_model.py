"""One model on one split, in a process of its own: trained, then judged. `quality.py` calls it.

    python benchmarks/quality_model.py JOB.json

A job is {"features": folder, "seed", "entry": one of quality.toml, "untrained": whether lists are of untrained items
alone, "python": that of the neighbours, or null, "folder": for what is passed to them}. The last line is what came out:
figures, the values of every user, what it took.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measured import peak_mb
from neighbours import K, ask
from torch import Tensor

from falconet import Loader, TrainConfig, Trainer
from falconet.config import from_plain
from falconet.evaluation.cut import count_items, read_interactions
from falconet.evaluation.recommend import Retrieval
from falconet.evaluation.tables import Items, Users, read_items, read_users
from falconet.io.footer import read_schema
from falconet.metrics.ranking import RankingMetrics
from falconet.models import EASE, MODELS, Retriever
from falconet.models.closed_form import ClosedForm
from falconet.progress import set_quiet
from falconet.schema import Tag

METRICS = ("ndcg@10", "recall@10", "mrr@10")
AT_ONCE = 256  # users


def trained(entry: dict[str, Any], features: Path, seed: int) -> Retriever:
    """A model with the settings of an entry, fitted or trained on `features/train`, or on whole users."""
    kind = MODELS[entry["model"]]
    torch.manual_seed(seed)
    rows = features / "train"
    config = from_plain(kind.Config, entry.get("config", {}), where="config")
    model = kind.from_schema(read_schema(rows), config)
    if isinstance(model, ClosedForm):
        return model.fit(read_interactions(rows))
    if not isinstance(model, Retriever):
        raise TypeError(f"{entry['model']} ranks, it does not retrieve")
    model.set_counts(count_items(rows, len(model.counts)))
    batch_size = entry.get("batch_size", 512)
    if entry.get("rows") == "users":
        loader = Loader(features / "users", batch_size=batch_size, shuffle=True, seed=seed, columns=["history"])
    else:
        loader = Loader(rows, batch_size=batch_size, shuffle=True, seed=seed)
    Trainer(from_plain(TrainConfig, {"seed": seed, **entry.get("train", {})}, where="train")).fit(model, loader)
    return model.eval()


def lists(model: Retriever, users: Users, items: Items) -> Tensor:
    """The best K items of everybody, over the whole catalogue but what they have taken: codes, [users, K]."""
    shows = Retrieval(model, items)
    parts = [users[start : start + AT_ONCE] for start in range(0, len(users), AT_ONCE)]
    return torch.cat([shows.search(part.features, K, part.seen)[1] for part in parts])


def theirs(job: dict[str, Any], features: Path, users: Users) -> tuple[Tensor, dict[str, Any]]:
    """The lists of another package's model, fitted on the same pairs, and what that took."""
    pairs, folder, entry = read_interactions(features / "train"), Path(job["folder"]), job["entry"]
    asked = users.features.features[users.schema.one(Tag.USER, Tag.ID).name]
    shape = (int(pairs.users.max()) + 1, int(pairs.items.max()) + 1)
    np.savez(folder / "pairs.npz", users=pairs.users, items=pairs.items, shape=shape, asked=asked)
    question = {"name": entry["neighbour"], "config": entry.get("config", {}), "seed": job["seed"]}
    question |= {"data": str(folder / "pairs.npz"), "out": str(folder / "lists.npz")}
    took = ask(Path(job["python"]), question, folder)
    with np.load(folder / "lists.npz") as written:
        return torch.from_numpy(written["codes"].astype(np.int64)), took


def from_numpy(model: EASE, features: Path) -> float:
    """The largest difference between EASE's weights and those of the formula in numpy, in float64."""
    pairs = read_interactions(features / "train")
    there = np.unique(pairs.items.numpy())
    x = np.zeros((int(pairs.users.max()) + 1, len(there)))
    x[pairs.users.numpy(), np.searchsorted(there, pairs.items.numpy())] = 1.0
    p = np.linalg.inv(x.T @ x + model.config.regularisation * np.eye(len(there)))
    weights = -p / np.diag(p)
    np.fill_diagonal(weights, 0.0)
    return float(np.abs(weights - model.weights[there][:, there].numpy()).max())


def run(job: dict[str, Any]) -> dict[str, Any]:
    """What a job's model comes to."""
    features, entry = Path(job["features"]), job["entry"]
    items, everybody = read_items(features / "items"), read_users(features / "users")
    listed = items.untrained() if job["untrained"] else items
    users = everybody.take(torch.nonzero(everybody.relevant.lengths + everybody.unknown).flatten())
    if "neighbour" in entry:
        codes, found = theirs(job, features, users)
    else:
        start, cpu = time.perf_counter(), time.process_time()
        model = trained(entry, features, job["seed"])
        found = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
        codes = lists(model, users, listed)
        found["peak_mb"] = peak_mb()
        if isinstance(model, EASE) and job["seed"] == 0:
            found["from_numpy"] = from_numpy(model, features)
    metrics = RankingMetrics((K,))
    values = metrics.per_user(metrics.partial(codes, users.relevant, users.unknown))
    shown = len(torch.unique(codes[codes >= 0]))
    return {
        **{name: round(float(values[name].mean()), 6) for name in METRICS},
        "coverage@10": round(shown / len(listed.codes), 6),
        "per_user": {name: [round(x, 5) for x in values[name].tolist()] for name in METRICS},
        **found,
    }


def main() -> int:
    set_quiet(True)
    print(json.dumps(run(json.loads(Path(sys.argv[1]).read_text()))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
