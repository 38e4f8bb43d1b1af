"""The public names are a promise: changing this list is changing the API."""

from __future__ import annotations

import falconet as fl

PUBLIC = {
    "Batch", "Callback", "ColumnSelector", "DaskExecutor", "Dataset", "FalconetError", "FittedWorkflow", "Loader",
    "LocalExecutor", "MLflow", "MapLoader", "Ragged", "Recommender", "Runtime", "Schema", "Shuffle", "Tag",
    "TensorBoard", "TrainConfig", "Trainer", "Workflow", "build_bundle", "evaluate", "get_embedding_sizes",
    "import_weights", "launch", "models", "nn", "ops",
}  # fmt: skip


def test_the_public_names_are_these() -> None:
    assert set(dir(fl)) == PUBLIC


def test_every_public_name_loads() -> None:
    for name in PUBLIC:
        assert getattr(fl, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(fl, "Standardise")
