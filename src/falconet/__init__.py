"""falconet: recommender systems end to end, on whatever machine you have.

The public names are loaded when used: importing the package loads neither torch nor Polars.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "Batch": "falconet.batch",
    "Callback": "falconet.train.callbacks",
    "ColumnSelector": "falconet.etl.selector",
    "DaskExecutor": "falconet.compute.dask",
    "Dataset": "falconet.etl.dataset",
    "FalconetError": "falconet.errors",
    "FittedWorkflow": "falconet.etl.workflow",
    "Loader": "falconet.loader.loader",
    "LocalExecutor": "falconet.compute.local",
    "MLflow": "falconet.train.log",
    "MapLoader": "falconet.loader.map_style",
    "Ragged": "falconet.batch",
    "Recommender": "falconet.serve.recommender",
    "Runtime": "falconet.train.runtime",
    "Schema": "falconet.schema",
    "Shuffle": "falconet.etl.writer",
    "Tag": "falconet.schema",
    "TensorBoard": "falconet.train.log",
    "TrainConfig": "falconet.train.settings",
    "Trainer": "falconet.train.trainer",
    "Workflow": "falconet.etl.workflow",
    "build_bundle": "falconet.serve.bundle",
    "evaluate": "falconet.evaluation.evaluate",
    "get_embedding_sizes": "falconet.schema",
    "import_weights": "falconet.train.weights",
    "launch": "falconet.train.launch",
}
_MODULES = ("models", "nn", "ops")

__all__ = [
    "Batch",
    "Callback",
    "ColumnSelector",
    "DaskExecutor",
    "Dataset",
    "FalconetError",
    "FittedWorkflow",
    "Loader",
    "LocalExecutor",
    "MLflow",
    "MapLoader",
    "Ragged",
    "Recommender",
    "Runtime",
    "Schema",
    "Shuffle",
    "Tag",
    "TensorBoard",
    "TrainConfig",
    "Trainer",
    "Workflow",
    "build_bundle",
    "evaluate",
    "get_embedding_sizes",
    "import_weights",
    "launch",
    "models",
    "nn",
    "ops",
]

if TYPE_CHECKING:
    from falconet import models, nn, ops
    from falconet.batch import Batch, Ragged
    from falconet.compute.dask import DaskExecutor
    from falconet.compute.local import LocalExecutor
    from falconet.errors import FalconetError
    from falconet.etl.dataset import Dataset
    from falconet.etl.selector import ColumnSelector
    from falconet.etl.workflow import FittedWorkflow, Workflow
    from falconet.etl.writer import Shuffle
    from falconet.evaluation.evaluate import evaluate
    from falconet.loader.loader import Loader
    from falconet.loader.map_style import MapLoader
    from falconet.schema import Schema, Tag, get_embedding_sizes
    from falconet.serve.bundle import build_bundle
    from falconet.serve.recommender import Recommender
    from falconet.train.callbacks import Callback
    from falconet.train.launch import launch
    from falconet.train.log import MLflow, TensorBoard
    from falconet.train.runtime import Runtime
    from falconet.train.settings import TrainConfig
    from falconet.train.trainer import Trainer
    from falconet.train.weights import import_weights


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in _MODULES:
        return import_module(f"falconet.{name}")
    raise AttributeError(f"module 'falconet' has no attribute '{name}'", name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return __all__
