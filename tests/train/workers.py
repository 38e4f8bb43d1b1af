"""What the tests of training share: small data, a small model, and functions that other processes can import."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from falconet.batch import Batch
from falconet.loader.loader import Loader
from falconet.nn.embedding import Tables
from falconet.nn.loss import bce
from falconet.schema import FOOTER_KEY, Column, Schema, Tag
from falconet.train.runtime import Runtime
from falconet.train.trainer import TrainConfig, Trainer

USERS, ITEMS, GENRES = 40, 30, 8
SCHEMA = Schema(
    (
        Column(name="user", dtype="int32", tags=frozenset({Tag.USER, Tag.ID, Tag.CATEGORICAL}), cardinality=USERS),
        Column(name="item", dtype="int32", tags=frozenset({Tag.ITEM, Tag.ID, Tag.CATEGORICAL}), cardinality=ITEMS),
        Column(
            name="genres", dtype="int32", list="ragged", tags=frozenset({Tag.ITEM, Tag.CATEGORICAL}), cardinality=GENRES
        ),
        Column(name="age", dtype="float32", tags=frozenset({Tag.USER, Tag.CONTINUOUS})),
        Column(name="liked", dtype="float32", tags=frozenset({Tag.TARGET, Tag.BINARY})),
    )
)


def write_rows(folder: Path, sizes: tuple[int, ...], seed: int = 0) -> Path:
    """Files of so many rows each, whose target follows hidden tastes."""
    random = np.random.default_rng(seed)
    taste, kind = random.normal(size=USERS), random.normal(size=ITEMS)
    folder.mkdir(parents=True, exist_ok=True)
    for i, n in enumerate(sizes):
        user, item = random.integers(1, USERS, n), random.integers(1, ITEMS, n)
        likes = taste[user] * kind[item] + random.normal(size=n) * 0.3 > 0
        genres = [random.integers(1, GENRES, random.integers(0, 4)).tolist() for _ in range(n)]
        table = pa.table(
            {
                "user": pa.array(user, pa.int32()),
                "item": pa.array(item, pa.int32()),
                "genres": pa.array(genres, pa.list_(pa.int32())),
                "age": pa.array(random.normal(size=n), pa.float32()),
                "liked": pa.array(likes.astype(np.float32), pa.float32()),
            }
        ).replace_schema_metadata({FOOTER_KEY: SCHEMA.to_json()})
        pq.write_table(table, folder / f"part_{i}.parquet")
    return folder


class Net(nn.Module):
    """Embeddings, an MLP with torch's own BatchNorm, and a table that no batch reads."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.tables = Tables([c for c in SCHEMA if Tag.CATEGORICAL in c.tags], 6)
        self.unused = Tables([Column(name="nobody", dtype="int32", cardinality=5)], 3)
        self.first = nn.Linear(self.tables.width + 1, 16)
        self.rest = nn.Sequential(nn.ReLU(), nn.BatchNorm1d(16), nn.Dropout(dropout), nn.Linear(16, 1))

    def forward(self, batch: Batch) -> Tensor:
        age = batch.features["age"]
        assert isinstance(age, Tensor)
        logits: Tensor = self.rest(self.tables.project(batch, self.first, extra=age.unsqueeze(1))).squeeze(1)
        return logits

    def loss(self, batch: Batch) -> Tensor:
        return bce(self(batch), batch.targets["liked"])


def net(seed: int = 1, dropout: float = 0.0) -> Net:
    torch.manual_seed(seed)
    return Net(dropout)


def config(**changes: Any) -> TrainConfig:
    return TrainConfig(**{"learning_rate": 0.01, "precision": "float32", **changes})


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in model.state_dict().items()}


def train(data: Path, batch_size: int, settings: Mapping[str, Any]) -> tuple[dict[str, Tensor], list[float], float]:
    """Weights, losses of the steps, loss of the last epoch; the replicas are equal or this fails."""
    torch.set_num_threads(1)
    losses: list[float] = []
    model = net()
    loader = Loader(data, batch_size=batch_size, shuffle=True, seed=7)
    result = Trainer(config(**settings)).fit(model, loader, on_step=lambda step, loss: losses.append(loss))
    assert_equal_replicas(model)
    return weights(model), losses, float(result.metrics["loss"])


def assert_equal_replicas(model: nn.Module) -> None:
    with Runtime.start() as runtime:
        for name, x in model.state_dict().items():
            bits = x.double()
            total = runtime.sums(bits)
            assert torch.equal(total, bits * runtime.world), f"rank {runtime.rank}: {name} differs"
