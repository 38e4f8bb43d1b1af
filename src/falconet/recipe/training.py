"""One model of a recipe on a folder of rows: trained, trained further from a former run, or fitted at once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

from falconet.config import from_plain
from falconet.evaluation.cut import count_items, read_interactions
from falconet.io.artifact import write_artifact
from falconet.io.footer import data_files, read_schema
from falconet.loader.loader import Loader
from falconet.models.base import MODELS, Model, Retriever
from falconet.models.closed_form import ClosedForm
from falconet.models.ranker import Ranker
from falconet.models.store import save_model
from falconet.progress import note
from falconet.recipe.config import StageConfig
from falconet.schema import Schema, Tag
from falconet.train.callbacks import Callback
from falconet.train.settings import TrainConfig
from falconet.train.trainer import Trainer
from falconet.train.weights import grow_weights

Watch = Callable[[Model], Sequence[Callback]]
"""Makes the callbacks of a model's training."""


@dataclass(frozen=True)
class Start:
    """Where training begins: at the weights of the same runs in another working folder, for so many epochs."""

    work: Path
    epochs: int


def train(
    stage: StageConfig,
    rows: Path,
    work: Path,
    run: str,
    seed: int,
    step: str,
    *,
    watch: Watch | None = None,
    start: Start | None = None,
) -> None:
    """Train a stage's model on a folder of rows, or fit it where it has a closed form, to the folder `work/run`.

    A run of this step goes on where it stopped, another's is replaced.
    """
    if issubclass(MODELS[stage.model], ClosedForm):
        model = fit(stage, rows, seed)
        with write_artifact(work / run, "run", extra={"step": step}, overwrite=True) as draft:
            save_model(model, draft.path / "model")
        return
    loader = Loader(rows, batch_size=stage.batch_size, shuffle=True, seed=seed)
    trained = _build(stage, loader.schema, seed)
    settings = {"seed": seed, **stage.train}
    if start is not None:
        settings["epochs"] = start.epochs
        if fresh := grow_weights(trained, start.work / run / "model"):
            note(f"these weights have other shapes now and begin anew: {', '.join(fresh)}")
    if isinstance(trained, Retriever):
        trained.set_counts(count_items(rows, len(trained.counts)))
    elif isinstance(trained, Ranker) and start is None and (mean := _mean(rows, loader.schema, trained.target)):
        trained.start_at(mean)
    config = from_plain(TrainConfig, settings, where="train")
    _remove_damaged(work / run)
    callbacks = () if watch is None else watch(trained)
    Trainer(config, folder=work / run, callbacks=callbacks).fit(trained, loader, resume="auto", step_key=step)


def fit(stage: StageConfig, rows: Path, seed: int) -> ClosedForm:
    """A model in closed form, fitted on a folder of rows."""
    model = _build(stage, read_schema(rows), seed)
    assert isinstance(model, ClosedForm)
    return model.fit(read_interactions(rows))


def _build(stage: StageConfig, schema: Schema, seed: int) -> Model:
    torch.manual_seed(seed)
    kind = MODELS[stage.model]
    return kind.from_schema(schema, from_plain(kind.Config, stage.config, where="config"))


def _mean(rows: Path, schema: Schema, target: str | None) -> float | None:
    """The mean of the target in a folder of rows, by their weights; None where it says nothing: all rows are alike."""
    weight = next(iter(schema.select(Tag.WEIGHT).names), None)
    names = [name for name in (target, weight) if name is not None]
    total = of_all = 0.0
    for path in data_files(rows):
        table = pq.read_table(path, columns=names, partitioning=None)
        values = table.column(str(target)).to_numpy().astype(np.float64)
        weights = np.ones(len(values)) if weight is None else table.column(weight).to_numpy().astype(np.float64)
        known = ~np.isnan(values)
        total, of_all = total + float(weights[known] @ values[known]), of_all + float(weights[known].sum())
    return total / of_all if 0 < total < of_all else None


def _remove_damaged(folder: Path) -> None:
    """Remove a run of ours whose settings cannot be read: nothing can go on from it."""
    try:
        json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        if (folder / "metrics.jsonl").is_file():
            note(f"`{folder}` is damaged: training anew")
            shutil.rmtree(folder)
