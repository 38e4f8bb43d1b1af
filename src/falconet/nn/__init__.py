"""Layers that models are made of."""

from falconet.nn.batchnorm import BatchNorm
from falconet.nn.embedding import Tables
from falconet.nn.loss import bce, log_q, mse, sampled_softmax
from falconet.nn.mlp import MLP
from falconet.nn.supervised import Supervised, freeze

__all__ = ["MLP", "BatchNorm", "Supervised", "Tables", "bce", "freeze", "log_q", "mse", "sampled_softmax"]
