"""The models, by name: `list()` says which there are."""

from falconet.models.base import MODELS, Model, Retriever
from falconet.models.mlp import MLP
from falconet.models.popular import Popular
from falconet.models.store import load_model, save_model
from falconet.models.two_tower import TwoTower

__all__ = ["MLP", "MODELS", "Model", "Popular", "Retriever", "TwoTower", "list", "load_model", "save_model"]


def list() -> tuple[str, ...]:
    """The names of all models."""
    return tuple(MODELS)
