"""Layers and losses that models are made of."""

from falconet.nn import contrast
from falconet.nn.batchnorm import BatchNorm
from falconet.nn.embedding import Tables
from falconet.nn.item_loss import ItemLoss, ItemLossConfig
from falconet.nn.loss import bce, full_softmax, listwise_softmax, log_q, mse, sampled_softmax
from falconet.nn.mlp import MLP
from falconet.nn.pretrained import freeze_tables, get_vectors, put_vectors, unfreeze_tables, write_vectors
from falconet.nn.supervised import Supervised, freeze

__all__ = [
    "MLP",
    "BatchNorm",
    "ItemLoss",
    "ItemLossConfig",
    "Supervised",
    "Tables",
    "bce",
    "contrast",
    "freeze",
    "freeze_tables",
    "full_softmax",
    "get_vectors",
    "listwise_softmax",
    "log_q",
    "mse",
    "put_vectors",
    "sampled_softmax",
    "unfreeze_tables",
    "write_vectors",
]
