"""The figures of report.json: who finds what the test holds, over the full catalogue, with seen items removed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from falconet.errors import ConfigError
from falconet.evaluation.candidates import TAKEN, candidate_rows
from falconet.evaluation.luck import luck_auc
from falconet.evaluation.recommend import Recommends, Retrieval, TwoStage
from falconet.evaluation.tables import Items, Users, read_items, read_users
from falconet.io.artifact import read_manifest
from falconet.io.footer import row_groups
from falconet.loader.loader import Loader
from falconet.metrics.binary import BinaryMetrics
from falconet.metrics.compare import interval
from falconet.metrics.exact import mean
from falconet.metrics.ranking import RankingMetrics
from falconet.models.base import Model, Retriever
from falconet.models.popular import Popular
from falconet.progress import progress
from falconet.schema import Tag

FORMAT = 1
DIGITS = 6  # of every figure in a report
USER_ROWS = 256  # users scored at once
CANDIDATE_ROWS = 65_536  # ranker rows scored at once


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What is measured. `k`: length of the lists; `candidates`: how many items the ranker orders."""

    k: int = 10
    candidates: int = 200
    split: str = "random"  # said in the report

    def __post_init__(self) -> None:
        if not 1 <= self.k <= self.candidates:
            raise ConfigError(
                f"{self.candidates} candidates cannot fill a list of k={self.k}", hint="k from 1 to `candidates`"
            )


def evaluate(
    features: str | Path,
    retriever: Retriever,
    ranker: Model | None = None,
    candidates: str | Path | None = None,
    config: EvaluationConfig | None = None,
    *,
    key: str = "",
) -> dict[str, Any]:
    """The report on `features` as plain values: Popular, the retriever and, where there is a ranker, both stages.

    `candidates` is the folder that `build_candidates` wrote; with it and a ranker comes how well the ranker tells what
    is taken, beside a model that knows only how lucky users and items are. `key` stands in the report as it is.
    """
    config = config or EvaluationConfig()
    features = Path(features)
    items, users = read_items(features / "items"), read_users(features / "users")
    first = Retrieval(retriever, items)
    models: dict[str, Recommends] = {"Popular": Retrieval(popular(items), items), "retriever": first}
    if ranker is not None:
        models["two_stage"] = TwoStage(first, candidate_rows(users, items), ranker, config.candidates)
    tested = users.take(torch.nonzero(users.relevant.lengths + users.unknown).flatten())
    report: dict[str, Any] = {
        "format": FORMAT,
        "data": {
            "users": len(users),
            "items": items.features.rows,
            "train": sum(group.rows for group in row_groups(features / "train")),
            "test": sum(group.rows for group in row_groups(features / "test")),
            "sha256": read_manifest(features, "features").sha256,
        },
        "protocol": {
            "split": config.split,
            "k": config.k,
            "relevant": "every test row",
            "seen_removed": True,
            "users": len(tested),
        },
        "models": {name: ranking(model, tested, config.k, name) for name, model in models.items()},
    }
    if ranker is not None and candidates is not None:
        item = items.schema.one(Tag.ITEM, Tag.ID).name
        report["ranker"] = classification(ranker, Path(candidates), item)
    return {**report, "key": key}


def popular(items: Items) -> Popular:
    """The most frequent items first."""
    model = Popular.from_schema(items.schema)
    model.set_counts(items.counts_by_code(len(model.counts)))
    return model


def ranking(model: Recommends, users: Users, k: int, title: str) -> dict[str, dict[str, float | None]]:
    """Every ranking metric at k: its mean over users and the 95 % interval of that mean."""
    metrics = RankingMetrics((k,))
    states = []
    with progress(f"evaluating {title}", len(users), "users") as task:
        for start in range(0, len(users), USER_ROWS):
            some = users[start : start + USER_ROWS]
            _, codes = model.search(some.features, k, some.seen)
            states.append(metrics.partial(codes, some.relevant, some.unknown))
            task.advance(len(some))
    found = {}
    for name, values in metrics.per_user(metrics.merge(states)).items():
        low, high = interval(values)
        found[name] = {"value": rounded(mean(values)), "low": rounded(low), "high": rounded(high)}
    return found


@torch.inference_mode()
def classification(ranker: Model, candidates: Path, item: str) -> dict[str, float | None]:
    """AUC and log loss of the ranker on `candidates/test`, and the AUC of a model of users' and items' luck alone."""
    metrics = BinaryMetrics()
    ranker.eval()
    loader = Loader(candidates / "test", batch_size=CANDIDATE_ROWS)
    states = [metrics.partial(ranker(batch), batch.targets[TAKEN]) for batch in loader.batches()]
    figures = metrics.finish(metrics.merge(states))
    base = luck_auc(candidates, item)
    return {"auc": rounded(figures["auc"]), "log_loss": rounded(figures["log_loss"]), "base_auc": rounded(base)}


def rounded(value: float) -> float | None:
    """As it stands in a report: so many digits; None where there is no figure."""
    return None if math.isnan(value) else round(value, DIGITS)
