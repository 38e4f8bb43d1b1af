"""What retrievers are trained on: interactions, whole users, or all at once, from the tables that the road makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from falconet.evaluation.cut import count_items, read_interactions
from falconet.evaluation.evaluate import EvaluationConfig, evaluate
from falconet.loader.loader import Loader
from falconet.models import EASE, IALS, GRU4Rec, ItemKNN, MultVAE, RecVAE, SASRec
from falconet.models.base import Retriever
from falconet.train.settings import TrainConfig
from falconet.train.trainer import Trainer


def recalls(model: Retriever, features: Path) -> tuple[float, float]:
    """recall@4 of the model and of Popular."""
    models = evaluate(features, {"model": model}, EvaluationConfig(k=4))["models"]
    own, popular = (models[name]["ranking"]["recall@4"]["value"] for name in ("model", "Popular"))
    return own, popular


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
    own, popular = recalls(made, tastes)
    assert own > 1.5 * popular


@pytest.mark.parametrize("kind", [EASE, IALS, ItemKNN])
def test_models_in_closed_form_are_fitted_on_the_rows_of_training(kind: Any, tastes: Path) -> None:
    model = kind.from_schema(Loader(tastes / "train", batch_size=8).schema).fit(read_interactions(tastes / "train"))
    assert model.counts.tolist() == count_items(tastes / "train", len(model.counts)).tolist()
    own, popular = recalls(model, tastes)
    assert own > 1.5 * popular
