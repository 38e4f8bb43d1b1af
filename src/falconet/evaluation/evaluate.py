"""The figures of report.json: who finds what the test holds, over the full catalogue, with seen items removed.

Popular and EASE are always among what is compared: a model that does not beat them is not worth its training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from falconet.errors import ConfigError, DataError, SchemaError, suggest
from falconet.evaluation.baselines import ease, popular
from falconet.evaluation.classify import classification
from falconet.evaluation.examples import Examples
from falconet.evaluation.judge import Judge, Judged, difference_figure
from falconet.evaluation.recommend import Recommends, Retrieval
from falconet.evaluation.tables import Items, Users, read_items, read_users, tested_table
from falconet.io.artifact import read_manifest
from falconet.io.footer import row_groups
from falconet.metrics.compare import difference
from falconet.metrics.ranking import Divisor
from falconet.models.base import Model, Retriever
from falconet.nn.modes import evaluating
from falconet.progress import note
from falconet.schema import Tag

FORMAT = 2

Named = Mapping[str, Retriever | Recommends] | Iterable[tuple[str, Retriever | Recommends]]


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What is measured. `k`: length of the lists; `ks`: other lengths; `map_by`, `recall_by`: what those divide by.

    `items`: what lists are made of, the whole catalogue or those of its items that training has no row of.
    `split`, `protocol` and `published` (the figures of others, to stand beside ours) are said in the report.
    """

    k: int = 10
    ks: tuple[int, ...] = ()
    map_by: Divisor = "all"
    recall_by: Divisor = "all"
    items: Literal["all", "untrained"] = "all"
    split: str = "random"
    protocol: str | None = None
    published: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for k in (self.k, *self.ks):
            if k < 1:
                raise ConfigError(f"k={k}", hint="a list has one place at least")


def evaluate(
    features: str | Path,
    models: Named,
    config: EvaluationConfig | None = None,
    *,
    ranker: Model | None = None,
    candidates: str | Path | None = None,
    key: str = "",
) -> dict[str, Any]:
    """The report on `features` as plain values (docs/contracts.md): every model beside Popular and EASE.

    `models` by name, retrievers or whatever gives lists, such as `TwoStage`; pairs from a generator are looked at one
    after the other, so that only one is in memory. A model called EASE stands in place of ours. `candidates` is the
    folder that `build_candidates` wrote; with it and a ranker comes how well the ranker tells what is taken. `key`
    stands in the report as it is.

    Raises ConfigError for two models of one name, DataError where nobody has anything in the test.
    """
    config = config or EvaluationConfig()
    features = Path(features)
    catalogue, everybody = read_items(features / "items"), read_users(features / "users")
    items = listed(catalogue, config)
    table = tested_table(features)
    users, tested = _tested(table)
    asked = users.take(tested)
    judge = _judge(asked, items, config)
    examples = Examples(features / "items", table, users, tested, catalogue, config.k)
    judged: dict[str, Judged] = {}
    left_out: dict[str, str] = {}

    def measure(name: str, model: Retriever | Recommends) -> None:
        if name in judged:
            raise ConfigError(f"two models are called `{name}`", hint="the name `Popular` is taken")
        with evaluating(model) if isinstance(model, Retriever) else nullcontext():
            shows = Retrieval(model, items) if isinstance(model, Retriever) else model
            judged[name] = judge.judge(shows, name)
            examples.add(name, shows)

    measure("Popular", popular(items))
    for name, model in models.items() if isinstance(models, Mapping) else models:
        measure(name, model)
    if "EASE" not in judged:
        try:
            baseline = ease(features / "train", users, items)
        except (ConfigError, SchemaError) as error:
            left_out["EASE"] = str(error.args[0])
            note(f"EASE is left out of the comparison: {error.args[0]}")
        else:
            measure("EASE", baseline)
    report: dict[str, Any] = {
        "format": FORMAT,
        "data": {
            "users": len(everybody),
            "items": catalogue.features.rows,
            "train": sum(group.rows for group in row_groups(features / "train")),
            "test": sum(group.rows for group in row_groups(features / "test")),
            "unknown": int(users.unknown.sum()),
            "sha256": read_manifest(features, "features").sha256,
        },
        "protocol": {
            "name": config.protocol,
            "split": config.split,
            "k": config.k,
            "relevant": "every test row",
            "map_by": config.map_by,
            "recall_by": config.recall_by,
            "items": config.items,
            "seen_removed": True,
            "users": len(tested),
        },
        "segments": judge.segments.described(asked, items),
        **_compared(judged, judge.compared),
        "left_out": left_out,
    }
    if config.published:
        report["published"] = dict(config.published)
    if ranker is not None and candidates is not None:
        with evaluating(ranker):
            report["ranker"] = classification(ranker, Path(candidates), items.schema.one(Tag.ITEM, Tag.ID).name)
    return {**report, "examples": examples.plain(), "key": key}


def figure(
    features: str | Path, name: str, model: Retriever | Recommends, config: EvaluationConfig, metric: str
) -> float:
    """One figure of one model, as `evaluate` finds it: `metric` is one of the report's `ranking` or `lists`.

    Raises ConfigError for a metric that there is not, DataError where nobody has anything in the test, or the metric no
    value.
    """
    features = Path(features)
    items, (users, tested) = listed(read_items(features / "items"), config), _tested(tested_table(features))
    shows = Retrieval(model, items) if isinstance(model, Retriever) else model
    figures = _judge(users.take(tested), items, config).judge(shows, name).figures
    known = {**figures["lists"], **{key: one["value"] for key, one in figures["ranking"].items()}}
    if metric not in known:
        raise ConfigError(f"there is no metric `{metric}`", hint=suggest(metric, known))
    if known[metric] is None:
        raise DataError(f"`{metric}` of `{name}` has no value here", hint="another metric")
    return float(known[metric])


def listed(catalogue: Items, config: EvaluationConfig) -> Items:
    """What lists are made of. Raises DataError for a catalogue of which training knows everything."""
    items = catalogue if config.items == "all" else catalogue.untrained()
    if not len(items.codes):
        raise DataError(
            "the catalogue has no item that training has no row of, so there are none to list",
            hint='`prepare.untrained_items = true`, and `split.kind = "items"`, which holds some out',
        )
    return items


def _tested(table: Path) -> tuple[Users, Tensor]:
    """A table of users, and the places in it of those who have something in the test."""
    users = read_users(table)
    tested = torch.nonzero(users.relevant.lengths + users.unknown).flatten()
    if not len(tested):
        raise DataError(f"nobody in `{table}` has anything in the test", hint="another split")
    return users, tested


def _judge(asked: Users, items: Items, config: EvaluationConfig) -> Judge:
    ks = tuple(sorted({config.k, *config.ks}))
    return Judge(asked, items, config.k, ks, map_by=config.map_by, recall_by=config.recall_by)


def _compared(judged: Mapping[str, Judged], metrics: tuple[str, ...]) -> dict[str, Any]:
    """The models' figures, baselines first, each with how far it is from Popular and from the best one by nDCG."""
    by = metrics[0]
    best = max(judged, key=lambda name: judged[name].figures["ranking"][by]["value"])
    order = [name for name in ("Popular", "EASE") if name in judged]
    order += [name for name in judged if name not in order]
    models = {}
    for name in order:
        one = judged[name]
        models[name] = {
            **one.figures,
            **{
                key: {
                    metric: difference_figure(difference(one.per_user[metric], judged[other].per_user[metric]))
                    for metric in metrics
                }
                for key, other in (("to_popular", "Popular"), ("to_best", best))
                if other != name
            },
        }
    return {"best": best, "models": models}
