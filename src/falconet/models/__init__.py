"""The models, by name: `list()` says which there are."""

from falconet.models.base import MODELS, Model, Retriever
from falconet.models.dcn import DCN
from falconet.models.deepfm import DeepFM
from falconet.models.din import DIN
from falconet.models.dlrm import DLRM
from falconet.models.mlp import MLP
from falconet.models.mmoe import MMoE
from falconet.models.ple import PLE
from falconet.models.popular import Popular
from falconet.models.shared_bottom import SharedBottom
from falconet.models.store import load_model, save_model
from falconet.models.two_tower import TwoTower
from falconet.models.wide_deep import WideDeep

__all__ = [
    "DCN",
    "DIN",
    "DLRM",
    "MLP",
    "MODELS",
    "PLE",
    "DeepFM",
    "MMoE",
    "Model",
    "Popular",
    "Retriever",
    "SharedBottom",
    "TwoTower",
    "WideDeep",
    "list",
    "load_model",
    "save_model",
]


def list() -> tuple[str, ...]:
    """The names of all models."""
    return tuple(MODELS)
