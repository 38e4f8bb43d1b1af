"""What a ranker must beat: knowing only how often a user takes what is offered, and how often an item is taken."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import torch

from falconet.evaluation.candidates import GROUP, TAKEN
from falconet.io.footer import data_files
from falconet.metrics.binary import BinaryMetrics

PRIOR = 10.0  # candidates of average luck that every user and every item starts with

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Luck:
    """Log odds: of everything, and what each user and each item adds."""

    average: float
    users: Floats
    items: Floats

    @classmethod
    def fit(cls, users: Ints, items: Ints, taken: Floats) -> Luck:
        """From one user, item and 0 or 1 per candidate; unknown users and items stay average."""
        share = (taken.sum() + 0.5) / (len(taken) + 1)
        average = float(np.log(share / (1 - share)))

        def extra(keys: Ints) -> Floats:
            offered = np.bincount(keys)
            wins = np.bincount(keys, weights=taken) + PRIOR * share
            return np.asarray(np.log(wins / (offered + PRIOR - wins)) - average)

        return cls(average, extra(users), extra(items))

    def logits(self, users: Ints, items: Ints) -> Floats:
        return self.average + _at(self.users, users) + _at(self.items, items)


def luck_auc(candidates: Path, item: str) -> float:
    """The AUC on `candidates/test` of luck fitted on `candidates/train`. `item`: the column of item codes."""
    train, test = _read(candidates / "train", item), _read(candidates / "test", item)
    logits = Luck.fit(*train).logits(test[0], test[1])
    metrics = BinaryMetrics()
    return metrics.finish(metrics.partial(torch.from_numpy(logits), torch.from_numpy(test[2])))["auc"]


def _at(values: Floats, keys: Ints) -> Floats:
    known = keys < len(values)
    return np.where(known, values[np.where(known, keys, 0)], 0.0)


def _read(folder: Path, item: str) -> tuple[Ints, Ints, Floats]:
    tables = [pq.read_table(file, columns=[GROUP, item, TAKEN], partitioning=None) for file in data_files(folder)]
    users, items, taken = (np.concatenate([t.column(name).to_numpy() for t in tables]) for name in (GROUP, item, TAKEN))
    return users.astype(np.int64), items.astype(np.int64), taken.astype(np.float64)
