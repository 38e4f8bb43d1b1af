"""What a recipe's bundle tells of its making: its runs, its data, and how long they took."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import polars as pl

from falconet.etl.dataset import Dataset
from falconet.etl.workflow import FittedWorkflow
from falconet.evaluation.report import read_report
from falconet.io.footer import data_files
from falconet.recipe.config import Recipe
from falconet.recipe.names import inner_columns
from falconet.recipe.weeks import by_week
from falconet.serve.about_data import CHECKED, data_summary, same_features, step_costs
from falconet.serve.about_runs import run_times, runs_summary


def about(recipe: Recipe, work: Path, *, measured: bool) -> dict[str, dict[str, Any]]:
    """The files of serve/about.py. `measured`: whether `work/report.json` is of the models that are bundled."""
    folders = {name: work / "runs" / name for name in (*recipe.retrievers, "ranker")}
    folders |= {f"scout/{name}": work / "runs/scout" / name for name in recipe.retrievers}
    folders = {name: folder for name, folder in folders.items() if folder.is_dir()}
    workflow = FittedWorkflow.load(work / "workflow")
    costs = step_costs(workflow, Dataset(work / "split/train"))
    return {
        "runs": runs_summary(folders, read_report(work / "report.json") if measured else None),
        "data": {
            **data_summary(work / "features", workflow, costs),
            "weeks": by_week(_rows(work / "split/train"), inner_columns(recipe.columns), _titles(work / "features")),
            "same_features": same_features(workflow, _rows(work / "split/train").head(CHECKED).collect()),
        },
        "times": {
            "built": int(time.time()),
            "runs": run_times(folders),
            "steps": {} if costs is None else {str(c.step): round(c.seconds + c.fit_seconds, 6) for c in costs.steps},
        },
    }


def _rows(folder: Path) -> pl.LazyFrame:
    return pl.scan_parquet(list(data_files(folder)))


def _titles(features: Path) -> dict[Any, str]:
    """The titles of the items by their raw ids."""
    return dict(_rows(features / "items").select("item_id", pl.col("title").cast(pl.String)).collect().iter_rows())
