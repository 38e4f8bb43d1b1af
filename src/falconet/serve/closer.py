"""Why an item is where it is: what the ranker reads of it, what each of that changes, what of the past is near.

Shapes: K candidates, H items of the history.
"""

from __future__ import annotations

import torch
from torch import Tensor

from falconet.batch import Batch, Feature, Ragged
from falconet.serve.answers import Closer, FeatureOf, SimilarItem
from falconet.serve.engine import Engine, Query, probability

_UNKNOWN = 1  # the code of what is missing (docs/contracts.md)
_NEAR = 5  # items of the past that are named
_LEAST = 1e-6  # change of the score below which a feature has no say


def look_closer(engine: Engine, query: Query, row: int) -> Closer:
    """An item, by its row in the catalogue, as one of the candidates of a query.

    A feature is switched off by giving it, to all candidates, their mean, or of codes what stands for unknown. Features
    that change nothing are left out. Nothing is told of an item that is no candidate, and without a ranker.
    """
    near = _near(engine, query, row)
    if engine.is_stranger(query):
        return Closer([], near, 0)
    with torch.inference_mode():
        user, found = engine.retrieve(query)
        rows_K = engine.catalogue.rows(found.codes[0])
        here = (rows_K == row).nonzero().flatten().tolist()
        if engine.ranker is None or engine.rows is None or not here:
            return Closer([], near, len(rows_K))
        batch = engine.rows.rows(user, found)
        as_is = engine.ranker(batch)
        told = []
        for name, feature in batch.features.items():
            without = engine.ranker(Batch({**batch.features, name: _off(feature)}, {}, batch.rows, batch.global_rows))
            if bool((without - as_is).abs().max() > _LEAST):
                told.append(_told(name, feature, without, here[0]))
        score = float(as_is[here[0]])
    told.sort(key=lambda one: (-abs(one.score - probability(score)), one.name))
    return Closer(told, near, len(rows_K))


def _off(feature: Feature) -> Feature:
    if isinstance(feature, Ragged):
        return Ragged.of([[_UNKNOWN]] * (len(feature.offsets) - 1), dtype=feature.values.dtype)
    return (
        feature.mean(dim=0, keepdim=True).expand_as(feature) if feature.is_floating_point() else feature * 0 + _UNKNOWN
    )


def _told(name: str, feature: Feature, without_K: Tensor, here: int) -> FeatureOf:
    number = isinstance(feature, Tensor) and feature.is_floating_point() and feature.dim() == 1
    value = float(feature[here]) if number and isinstance(feature, Tensor) else None
    rank = 1 + int((without_K > without_K[here]).sum())
    return FeatureOf(name, value, probability(float(without_K[here])), rank)


def _near(engine: Engine, query: Query, row: int) -> list[SimilarItem]:
    """The items of the history nearest to this one."""
    catalogue = engine.catalogue
    past = [other for code in dict.fromkeys(query.history) if (other := catalogue.row_of_code(code)) is not None]
    if not past:
        return []
    with torch.inference_mode():
        near_H = engine.nearness.between([row], past)[0]
    best = torch.sort(near_H, descending=True, stable=True).indices[:_NEAR].tolist()
    return [
        SimilarItem(
            catalogue.ids.values[past[i]], catalogue.titles[past[i]], catalogue.attributes(past[i]), float(near_H[i])
        )
        for i in best
        if near_H[i] > 0
    ]
