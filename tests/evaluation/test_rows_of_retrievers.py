"""What retrievers are trained on: interactions, whole users, or all at once, from the tables that the road makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from falconet.evaluation.cut import count_items, read_interactions
from falconet.evaluation.evaluate import popular, ranking
from falconet.evaluation.recommend import Retrieval
from falconet.evaluation.tables import read_items, read_users
from falconet.loader.loader import Loader
from falconet.models import EASE, IALS, GRU4Rec, ItemKNN, MultVAE, RecVAE, SASRec
from falconet.models.base import Retriever
from falconet.train.trainer import TrainConfig, Trainer


def recall(model: Retriever, features: Path) -> float:
    found = ranking(Retrieval(model, read_items(features / "items")), read_users(features / "users"), 4, "model")
    value = found["recall@4"]["value"]
    assert value is not None
    return value


@pytest.mark.parametrize("table", ["train", "users"])
@pytest.mark.parametrize(
    "model",
    [
        (SASRec, SASRec.Config(dim=16, length=8, blocks=1, dropout=0.0)),
        (GRU4Rec, GRU4Rec.Config(dim=16, length=8, hidden=32, dropout=0.0)),
        (MultVAE, MultVAE.Config(hidden=32, latent=8, beta=0.01)),
        (RecVAE, RecVAE.Config(hidden=32, latent=8, layers=2, gamma=0.001)),
    ],
    ids=lambda pair: pair[0].__name__,
)
def test_what_reads_histories_learns_from_users_as_from_interactions(
    model: tuple[Any, Any], table: str, tastes: Path
) -> None:
    torch.manual_seed(0)
    kind, config = model
    made: Retriever = kind.from_schema(Loader(tastes / "train", batch_size=8).schema, config)
    made.set_counts(count_items(tastes / "train", len(made.counts)))
    columns = ["history"] if table == "users" else None
    loader = Loader(tastes / table, batch_size=20 if table == "users" else 160, shuffle=True, columns=columns)
    settings = TrainConfig(epochs=12, learning_rate=0.01, table_learning_rate=0.03, precision="float32")
    Trainer(settings).fit(made, loader)
    assert recall(made, tastes) > 1.5 * recall(popular(read_items(tastes / "items")), tastes)


@pytest.mark.parametrize("kind", [EASE, IALS, ItemKNN])
def test_models_in_closed_form_are_fitted_on_the_rows_of_training(kind: Any, tastes: Path) -> None:
    model = kind.from_schema(Loader(tastes / "train", batch_size=8).schema).fit(read_interactions(tastes / "train"))
    assert model.counts.tolist() == count_items(tastes / "train", len(model.counts)).tolist()
    assert recall(model, tastes) > 1.5 * recall(popular(read_items(tastes / "items")), tastes)
