"""The models, by name: `list()` says which there are, `describe(name)` what one is."""

import dataclasses
import sys
from typing import Any

from falconet.config import to_plain
from falconet.models.base import MODELS, Model, Retriever
from falconet.models.dcn import DCN
from falconet.models.deepfm import DeepFM
from falconet.models.din import DIN
from falconet.models.dlrm import DLRM
from falconet.models.ease import EASE
from falconet.models.gru4rec import GRU4Rec
from falconet.models.ials import IALS
from falconet.models.item_knn import ItemKNN
from falconet.models.mf import MF
from falconet.models.mlp import MLP
from falconet.models.mmoe import MMoE
from falconet.models.mult_vae import MultVAE
from falconet.models.multi_task import MultiTask
from falconet.models.ple import PLE
from falconet.models.popular import Popular
from falconet.models.ranker import Ranker
from falconet.models.rec_vae import RecVAE
from falconet.models.sasrec import SASRec
from falconet.models.shared_bottom import SharedBottom
from falconet.models.store import load_model, save_model
from falconet.models.two_tower import TwoTower
from falconet.models.wide_deep import WideDeep
from falconet.models.youtube_dnn import YouTubeDNN
from falconet.nn.export import export

__all__ = [
    "DCN",
    "DIN",
    "DLRM",
    "EASE",
    "IALS",
    "MF",
    "MLP",
    "MODELS",
    "PLE",
    "DeepFM",
    "GRU4Rec",
    "ItemKNN",
    "MMoE",
    "Model",
    "MultVAE",
    "MultiTask",
    "Popular",
    "Ranker",
    "RecVAE",
    "Retriever",
    "SASRec",
    "SharedBottom",
    "TwoTower",
    "WideDeep",
    "YouTubeDNN",
    "describe",
    "export",
    "list",
    "load_model",
    "save_model",
]


def list() -> tuple[str, ...]:
    """The names of all models."""
    return tuple(MODELS)


def describe(name: str) -> dict[str, Any]:
    """What a model is, as plain values: its name, kind, a sentence, and its settings, each with type and default.

    Raises ConfigError for a name that no model has.
    """
    model = MODELS[name]
    about = " ".join((sys.modules[model.__module__].__doc__ or "").partition("\n\n")[0].split())
    defaults = to_plain(model.Config())
    settings = {
        one.name: {"type": one.type if isinstance(one.type, str) else str(one.type), "default": defaults[one.name]}
        for one in dataclasses.fields(model.Config)
    }
    return {"name": name, "kind": _kind(model), "about": about, "settings": settings}


def _kind(model: type[Model]) -> str:
    kinds = {Retriever: "retriever", MultiTask: "ranker of several targets", Ranker: "ranker"}
    return next((words for kind, words in kinds.items() if issubclass(model, kind)), "model")
