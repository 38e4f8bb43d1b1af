"""The models, by name: `list()` says which there are."""

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
from falconet.models.ple import PLE
from falconet.models.popular import Popular
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
    "Popular",
    "RecVAE",
    "Retriever",
    "SASRec",
    "SharedBottom",
    "TwoTower",
    "WideDeep",
    "YouTubeDNN",
    "export",
    "list",
    "load_model",
    "save_model",
]


def list() -> tuple[str, ...]:
    """The names of all models."""
    return tuple(MODELS)
