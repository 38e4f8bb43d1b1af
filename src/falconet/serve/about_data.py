"""The data behind a bundle, for people to look at: columns, popularity, workflow. Of users' columns no value is told.

Shapes of what is told are in docs/contracts.md. Rows of `features/train` are in random order, so their first ones are a
sample of all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from falconet.errors import FalconetError
from falconet.etl.dataset import Dataset
from falconet.etl.draw import DATA, OUTPUT
from falconet.etl.explain import Explanation, explain
from falconet.etl.workflow import FittedWorkflow
from falconet.io.footer import data_files, read_schema
from falconet.progress import note
from falconet.schema import Column, Tag
from falconet.serve.tables import SHOW, read_table

SAMPLE = 20_000  # rows that columns are looked at on
TRIED = 10_000  # rows that the workflow's steps are timed on
CHECKED = 100  # rows that go both ways, a server's and the training's
_BINS = 24
_TOP = 8  # values that are named
_LETTERS = 60  # of a value
_POINTS = 60  # of a curve
_PRIVATE = {Tag.USER, Tag.ID, Tag.SESSION}  # of columns with one of these tags no value is told
_NULL, _UNKNOWN = 1, 2  # codes (docs/contracts.md)


def data_summary(features: str | Path, workflow: FittedWorkflow, costs: Explanation | None = None) -> dict[str, Any]:
    """data.json: what the columns of the features' tables are like, how popular items are, and the workflow's steps.

    `costs`: the steps on some rows (`step_costs`), in whose absence none are told.
    """
    features = Path(features)
    items, _ = read_table(features / "items")
    users, _ = read_table(features / "users")
    counts = np.sort(items.column("count").to_numpy())[::-1]
    seen = pl.Series(users.column("seen")).list.len().to_numpy()
    return {
        "users": len(users),
        "items": len(items),
        "interactions": int(counts.sum()),
        "popularity": _popularity(counts),
        "activity": _histogram(seen[seen > 0], log=True),
        "tables": [
            {"name": "interactions", **_rows(features / "train", workflow)},
            {"name": "items", **_shown(features / "items")},
        ],
        "workflow": _graph(workflow, costs),
    }


def step_costs(workflow: FittedWorkflow, rows: Dataset) -> Explanation | None:
    """Each step on the first rows of the raw data; None, and a note, where one cannot do with those alone."""
    try:
        return explain(workflow.plan, rows.parts(), workflow.inputs, TRIED)
    except FalconetError as error:
        note(f"the steps of the workflow are not timed: {error.args[0]}")
        return None


def same_features(workflow: FittedWorkflow, rows: pl.DataFrame) -> dict[str, Any]:
    """Raw rows through the path of a server and through that of the training: in how many each column differs."""
    outputs = [c.name for c in workflow.schema.without_tags(Tag.TARGET, Tag.WEIGHT, Tag.SEQUENCE) if c.tags]
    serving = workflow.prune(outputs=outputs)
    trained = serving.transform(rows, out_of_fold=False)
    served = serving.online()(rows.to_dicts())
    differ = {
        name: sum(not _same(one[name], other) for one, other in zip(served, trained[name].to_list(), strict=True))
        for name in outputs
    }
    return {"rows": rows.height, "columns": differ}


def _same(one: object, other: object) -> bool:
    return one == other or (isinstance(one, float) and isinstance(other, float) and one != one and other != other)


# ---- columns


def _rows(folder: Path, workflow: FittedWorkflow) -> dict[str, Any]:
    """The columns of the training rows that models may read, of a sample."""
    columns = [c for c in read_schema(folder) if c.tags]
    frame = _first(folder, [c.name for c in columns])
    return {"rows": frame.height, "columns": [_column(frame[c.name], c, _names(c, workflow)) for c in columns]}


def _shown(folder: Path) -> dict[str, Any]:
    """What people see of the items: the columns as they came, of all items."""
    table, schema = read_table(folder)
    known = [c for c in schema if c.name.startswith(SHOW)]
    frame = pl.DataFrame(pl.from_arrow(table.select([c.name for c in known])))
    columns = [{**_column(frame[c.name], c, {}), "name": c.name.removeprefix(SHOW)} for c in known]
    return {"rows": len(table), "columns": columns}


def _first(folder: Path, names: Sequence[str]) -> pl.DataFrame:
    """The first rows of a folder of Parquet files."""
    return pl.concat(pl.scan_parquet(file).select(names) for file in data_files(folder)).head(SAMPLE).collect()


def _names(column: Column, workflow: FittedWorkflow) -> dict[int, str]:
    """The values of the first codes of a vocabulary; of none that could name a person, nor of ids."""
    if column.tags & _PRIVATE or Tag.CATEGORICAL not in column.tags or column.name not in workflow.schema.names:
        return {}
    try:
        known = workflow.vocabulary(column.name)
    except FalconetError:  # hashed, or given as codes
        return {}
    return dict(zip(known["code"].to_list(), map(str, known["value"].to_list()), strict=True))


def _column(values: pl.Series, column: Column, names: dict[int, str]) -> dict[str, Any]:
    """One column: what it is, what is missing, and how its values spread."""
    lists = isinstance(values.dtype, (pl.List, pl.Array))
    flat = values.explode().drop_nulls() if lists else values
    told = {
        "name": column.name,
        "type": column.dtype if column.list is None else f"list of {column.dtype}",
        "tags": sorted(column.tags),
        "cardinality": column.cardinality,
        "missing": _share(_missing(values, flat, column)),
        "unknown": _share(flat.is_between(_UNKNOWN, column.first_code - 1)) if column.cardinality else None,
        "lengths": _histogram(values.drop_nulls().list.len().to_numpy()) if isinstance(values.dtype, pl.List) else None,
        "histogram": None,
        "top": None,
    }
    if column.tags & _PRIVATE:
        return told
    if flat.dtype.is_numeric() and not column.cardinality:
        return {**told, "histogram": _histogram(flat.drop_nulls().to_numpy())}
    return {**told, "top": _top(flat, names)} if names or flat.dtype == pl.String else told


def _missing(values: pl.Series, flat: pl.Series, column: Column) -> pl.Series:
    """Which are missing: null, NaN, or the code of null; a list that is only that, but no empty one."""
    if column.cardinality and flat is not values:
        return values.list.eval(pl.element() == _NULL).list.all() & (values.list.len() > 0)
    if column.cardinality:
        return values == _NULL
    if flat is values and values.dtype.is_float():
        return values.is_null() | values.is_nan().fill_null(False)
    return values.is_null()


def _share(which: pl.Series) -> float:
    return round(float(which.fill_null(False).to_numpy().mean()), 6) if len(which) else 0.0


def _top(flat: pl.Series, names: dict[int, str]) -> list[list[Any]]:
    """The most frequent values and their shares; text that is hardly ever the same says nothing, so it is left out."""
    counted = flat.drop_nulls().value_counts().rows()
    known = [(str(names[value] if names else value), n) for value, n in counted if not names or value in names]
    known.sort(key=lambda pair: (-pair[1], pair[0]))
    if not known or known[0][1] < 2:
        return []
    return [[value[:_LETTERS], round(n / len(flat), 6)] for value, n in known[:_TOP]]


def _histogram(values: npt.NDArray[Any], *, log: bool = False) -> dict[str, Any] | None:
    """Counts in bins of one width between the smallest and the largest value; with `log`, of one ratio."""
    values = values[np.isfinite(values)].astype(np.float64)
    if not len(values):
        return None
    scaled = np.log10(values) if log else values
    low, high = float(scaled.min()), float(scaled.max())
    whole = not log and high - low < _BINS and bool((values == np.round(values)).all())  # a bin for each
    bins, beside = (int(high - low) + 1, 0.5) if whole else (_BINS if high > low else 1, 0.0)
    counts, _ = np.histogram(scaled, bins=bins, range=(low - beside, high + beside))
    told = {"low": values.min(), "high": values.max(), "mean": values.mean(), "median": np.median(values)}
    return {**{key: float(f"{value:.6g}") for key, value in told.items()}, "log": log, "counts": counts.tolist()}


# ---- popularity


def _popularity(counts: npt.NDArray[np.integer[Any]]) -> dict[str, Any]:
    """How interactions spread over items. `counts`: of each item, the largest first."""
    total = int(counts.sum())
    if not len(counts) or not total:
        return {"curve": [], "half": 0, "top_percent": 0.0, "once": 0}
    share = np.cumsum(counts) / total
    places = np.unique(np.geomspace(1, len(counts), _POINTS).round().astype(int))
    return {
        "curve": [[int(place), int(counts[place - 1])] for place in places],
        "half": int(np.searchsorted(share, 0.5)) + 1,
        "top_percent": round(float(share[math.ceil(len(counts) / 100) - 1]), 6),
        "once": int((counts <= 1).sum()),
    }


# ---- the workflow


def _graph(workflow: FittedWorkflow, costs: Explanation | None) -> dict[str, Any]:
    drawing = workflow.graph()
    of_step = {} if costs is None else {cost.step: cost for cost in costs.steps}
    names = {DATA: "data", OUTPUT: "features"}
    return {
        "tried": None if costs is None else costs.tried,
        "passes": None if costs is None else costs.passes,
        "steps": [
            {
                "id": vertex.id,
                "operator": names.get(vertex.id, vertex.title),
                "columns": [name for line in vertex.lines for name in line.split(", ")],
                "pass": None if vertex.id not in of_step else of_step[vertex.id].fit_pass,
                "rows": None if vertex.id not in of_step else of_step[vertex.id].rows,
            }
            for vertex in drawing.vertices
        ],
        "edges": [{"from": edge.start, "to": edge.end, "fit_only": edge.fit_only} for edge in drawing.edges],
        "outputs": [column.to_dict() for column in workflow.schema],
    }
