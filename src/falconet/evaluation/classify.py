"""How well a ranker tells what is taken of what a retriever returns, and how far its probabilities can be believed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

from falconet.evaluation.candidates import GROUP, TAKEN
from falconet.evaluation.judge import rounded
from falconet.evaluation.luck import luck_auc
from falconet.io.footer import data_files
from falconet.loader.loader import Loader
from falconet.metrics.binary import BinaryMetrics
from falconet.metrics.calibration import Calibration
from falconet.metrics.grouped import GroupedAUC
from falconet.models.base import Model

CANDIDATE_ROWS = 65_536  # ranker rows scored at once


@torch.inference_mode()
def classification(ranker: Model, candidates: Path, item: str) -> dict[str, Any]:
    """AUC, AUC within users, log loss and calibration on `candidates/test`.

    `base_auc` is the AUC of a model of users' and items' luck alone. `item`: the column of item codes.
    """
    ranker.eval()
    rows, grouped, calibration = BinaryMetrics(), GroupedAUC(), Calibration()
    loader = Loader(candidates / "test", batch_size=CANDIDATE_ROWS)
    state = rows.merge([rows.partial(ranker(batch), batch.targets[TAKEN]) for batch in loader.batches()])
    groups = torch.from_numpy(_groups(candidates / "test"))
    figures = {
        **rows.finish(state),
        **grouped.finish(grouped.partial(state["logits"], state["targets"], groups)),
        "base_auc": luck_auc(candidates, item),
        **calibration.finish(state),
    }
    curve = [
        {"predicted": rounded(predicted), "happened": rounded(happened), "rows": number}
        for predicted, happened, number in calibration.curve(state)
    ]
    return {"rows": len(groups), **{name: rounded(x) for name, x in figures.items()}, "curve": curve}


def _groups(folder: Path) -> np.ndarray[Any, np.dtype[np.int64]]:
    tables = [pq.read_table(file, columns=[GROUP], partitioning=None) for file in data_files(folder)]
    return np.concatenate([table.column(GROUP).to_numpy() for table in tables]).astype(np.int64)
