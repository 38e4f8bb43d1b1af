"""Dropout of what lists hold: a row sees a random part of its history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from falconet.batch import Batch, Feature, Ragged, feature_of


def drop_values(batch: Batch, names: Sequence[str], share: float) -> Batch:
    """The batch with a random `share` of the values of each list left out, in the named columns."""
    shorter = {name: drop(feature_of(batch, name), share) for name in names}
    return replace(batch, features={**batch.features, **shorter})


def drop(feature: Feature, share: float) -> Feature:
    """Lists without a random `share` of their values; in lists of one length these become padding."""
    if isinstance(feature, Tensor):
        return feature.masked_fill(torch.rand(feature.shape, device=feature.device) < share, 0)
    keep_V = torch.rand(len(feature.values), device=feature.values.device) >= share
    kept_before = F.pad(keep_V.cumsum(0), (1, 0))
    return Ragged(feature.values[keep_V], kept_before[feature.offsets])
