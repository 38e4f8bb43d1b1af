"""The steps after the features: train the retrievers, train the ranker on what they return, evaluate, bundle.

The ranker's training rows come from scouts: retrievers trained like the real ones, but on a part of the rows alone. It
learns from what those never saw.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from falconet.config import config_hash, to_plain
from falconet.errors import FalconetError
from falconet.evaluation.candidates import build_candidates, candidate_rows
from falconet.evaluation.cut import CandidateConfig, write_scout_rows
from falconet.evaluation.evaluate import EvaluationConfig, listed
from falconet.evaluation.evaluate import evaluate as evaluate_models
from falconet.evaluation.recommend import Recommends, Together, TwoStage, sources_of
from falconet.evaluation.report import read_report, write_report
from falconet.evaluation.tables import HELD_OUT, Items, read_items, read_users
from falconet.io.artifact import is_complete, read_manifest
from falconet.io.footer import data_files, read_schema
from falconet.models.base import MODELS, Retriever
from falconet.models.closed_form import ClosedForm
from falconet.models.store import load_model
from falconet.progress import note
from falconet.recipe.about import about
from falconet.recipe.check import MERGED, TWO_STAGE, check_compared, check_models, ranker_reads, with_columns
from falconet.recipe.config import Recipe
from falconet.recipe.names import inner_columns
from falconet.recipe.protocol import protocol_of
from falconet.recipe.training import Start, Watch, fit, train
from falconet.retrieval.sources import Sources
from falconet.serve.bundle import ServingConfig, build_bundle

SCOUTS = "runs/scout"


def train_retriever(
    recipe: Recipe, work: Path, name: str, *, step: str, watch: Watch | None = None, start: Start | None = None
) -> None:
    """`work/features/train` to `work/runs/NAME`. `watch` looks on while it trains."""
    check_models(recipe, work / "features")
    one = recipe.retrievers[name]
    train(one, work / "features/train", work, f"runs/{name}", recipe.seed, step, watch=watch, start=start)


def train_scout(recipe: Recipe, work: Path, name: str, *, step: str, start: Start | None = None) -> None:
    """The rows that are not held out to `work/scout`, and the retriever again, on those, to `work/runs/scout/NAME`."""
    check_models(recipe, work / "features")
    rows = work / "scout"
    features = read_manifest(work / "features", "features").sha256
    made_from = config_hash({"step": "scout rows", "seed": recipe.seed, "inputs": features})
    if not is_complete(rows, "rows", step=made_from):
        write_scout_rows(work / "features/train", rows, _candidate_config(recipe), step=made_from)
    note("the same model again, on a part of the rows: the ranker learns from what it never saw")
    train(recipe.retrievers[name], rows, work, f"{SCOUTS}/{name}", recipe.seed, step, start=start)


def candidate_settings(recipe: Recipe) -> Mapping[str, Any]:
    """The settings that decide what is in `work/candidates`, beside the models that make them."""
    return {
        "seed": recipe.seed,
        "candidates": recipe.bundle.candidates,
        "weights": {name: one.weight for name, one in recipe.retrievers.items()},
        "reads": to_plain(ranker_reads(recipe)),
    }


def make_candidates(recipe: Recipe, work: Path, *, step: str) -> None:
    """What the retrievers return for training users to `work/candidates`: what the ranker learns from."""
    check_models(recipe, work / "features")
    held_out = work / "features" / HELD_OUT
    reads, items = ranker_reads(recipe), read_items(work / "features/items")
    folders = [work / where / name for where in ("runs", SCOUTS) for name in recipe.retrievers]
    build_candidates(
        _sources(recipe, work, items),
        items,
        read_users(work / "features/users"),
        work / "candidates",
        _candidate_config(recipe),
        scout=_sources(recipe, work, items, SCOUTS),
        strangers=read_users(held_out) if held_out.is_dir() else None,
        ids=reads.ids,
        history=reads.history,
        rows=work / "features/train",
        parents={folder.relative_to(work).as_posix(): read_manifest(folder, "run").sha256 for folder in folders},
        step=step,
    )


def train_ranker(recipe: Recipe, work: Path, *, step: str, start: Start | None = None) -> None:
    """`work/candidates/train` to `work/runs/ranker`."""
    check_models(recipe, work / "features")
    rows = work / "candidates/train"
    stage = with_columns(recipe.ranker, read_schema(rows))
    train(stage, rows, work, "runs/ranker", recipe.seed, step, start=start)


def _candidate_config(recipe: Recipe) -> CandidateConfig:
    return CandidateConfig(candidates=recipe.bundle.candidates, seed=recipe.seed)


def _sources(recipe: Recipe, work: Path, items: Items, where: str = "runs") -> Sources:
    models = {name: _retriever(work / where / name) for name in recipe.retrievers}
    return sources_of(models, items, {name: one.weight for name, one in recipe.retrievers.items()})


def evaluate(recipe: Recipe, work: Path, *, step: str) -> None:
    """Everything trained, and what `[[compare]]` names, to `work/report.json`."""
    models = chain(compared(recipe, work), own(recipe, work))
    ranker = load_model(work / "runs/ranker/model")
    report = evaluate_models(
        work / "features",
        models,
        evaluation_config(recipe),
        ranker=ranker,
        candidates=work / "candidates",
        key=step,
    )
    write_report(report, work / "report.json")
    _warn(recipe, report)


def _warn(recipe: Recipe, report: Mapping[str, Any]) -> None:
    """Say where a stage is below what it should beat."""
    metric = f"ndcg@{recipe.evaluate.k}"
    ndcg = {name: one["ranking"][metric]["value"] or 0.0 for name, one in report["models"].items()}
    best = max(recipe.retrievers, key=lambda name: ndcg[name])
    for better, worse in (("Popular", best), (best, TWO_STAGE)):
        if ndcg[worse] < ndcg[better]:
            note(
                f"warning: {worse} ({ndcg[worse]:.4f}) is below {better} ({ndcg[better]:.4f}) in ndcg: "
                "more epochs, more data, or other settings of its training may help"
            )


def compare(recipe: Recipe, work: Path, *, step: str) -> None:
    """What `[[compare]]` names, beside Popular and EASE, to `work/report.json`: no stage needs to be trained."""
    check_compared(recipe, work / "features")
    report = evaluate_models(work / "features", compared(recipe, work), evaluation_config(recipe), key=step)
    write_report(report, work / "report.json")


def evaluation_config(recipe: Recipe) -> EvaluationConfig:
    """What a recipe measures, and by whose protocol."""
    published = None if recipe.protocol is None else protocol_of(recipe.protocol).published
    return EvaluationConfig(
        k=recipe.evaluate.k,
        ks=recipe.evaluate.ks,
        map_by=recipe.evaluate.map_by,
        recall_by=recipe.evaluate.recall_by,
        items=recipe.evaluate.items,
        split=recipe.split.kind,
        protocol=recipe.protocol,
        published={} if published is None else to_plain(published),
    )


def compared(recipe: Recipe, work: Path) -> Iterator[tuple[str, Retriever]]:
    """The models of `[[compare]]`, one after the other; what is trained by gradient is kept in `work/runs/compare`."""
    rows = work / "features/train"
    features = read_manifest(work / "features", "features").sha256
    for one in recipe.compare:
        if issubclass(MODELS[one.model], ClosedForm):
            yield one.name, fit(one, rows, recipe.seed)
            continue
        run = f"runs/compare/{one.name}"
        step = config_hash({"step": "compare", "settings": one, "seed": recipe.seed, "inputs": features})
        if not is_complete(work / run, "run", step=step):
            note(f"{one.name} …")
            train(one, rows, work, run, recipe.seed, step)
        yield one.name, _retriever(work / run)


def own(recipe: Recipe, work: Path) -> Iterator[tuple[str, Retriever | Recommends]]:
    """The recipe's retrievers, what they name together, and its two stages as one."""
    items, users = read_items(work / "features/items"), read_users(work / "features/users")
    first = _sources(recipe, work, listed(items, evaluation_config(recipe)))
    reads = ranker_reads(recipe)
    for source in first.sources:
        assert isinstance(source.retriever, Retriever)
        yield source.name, source.retriever
    if len(first.sources) > 1:
        yield MERGED, Together(first, recipe.bundle.candidates)
    rows = candidate_rows(users, items, first.names, ids=reads.ids, history=reads.history)
    ranker = load_model(work / "runs/ranker/model")
    yield TWO_STAGE, TwoStage(first, rows, ranker, recipe.bundle.candidates)


def report_key(work: Path) -> str | None:
    """The step key in `work/report.json`; None where there is no whole report."""
    try:
        return str(read_report(work / "report.json").get("key"))
    except FalconetError:
        return None


def bundle(recipe: Recipe, work: Path, out: Path, *, step: str, measured: bool) -> None:
    """Everything a server needs to the folder `out`. `measured`: whether the report is of these models."""
    columns = inner_columns(recipe.columns)
    build_bundle(
        out,
        workflow=work / "workflow",
        retriever={name: work / "runs" / name / "model" for name in recipe.retrievers},
        ranker=work / "runs/ranker/model",
        items=work / "features/items",
        users=work / "features/users",
        config=ServingConfig(
            user=columns.user,
            item=columns.item,
            candidates=recipe.bundle.candidates,
            history=recipe.prepare.max_items,
            verb=recipe.verb,
            index=recipe.bundle.index,
            ranker=recipe.bundle.ranker,
        ),
        weights={name: one.weight for name, one in recipe.retrievers.items()},
        data=_span(work / "split/train", columns.time),
        extra={"step": step},
        about=about(recipe, work, measured=measured),
        overwrite=True,
    )


def _span(folder: Path, time: str | None) -> dict[str, object]:
    """How many rows the training data has, and from when to when."""
    rows, first, last = 0, None, None
    for file in data_files(folder):
        table = pq.read_table(file, columns=[] if time is None else [time], partitioning=None)
        rows += table.num_rows
        if time is not None and table.num_rows:
            span = pc.min_max(table.column(time)).as_py()
            first = span["min"] if first is None else min(first, span["min"])
            last = span["max"] if last is None else max(last, span["max"])
    return {"rows": rows, "from": _plain(first), "to": _plain(last)}


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, (int, float, str)) else str(value)


def _retriever(folder: Path) -> Retriever:
    model = load_model(folder / "model")
    assert isinstance(model, Retriever)
    return model
