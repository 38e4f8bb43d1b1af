"""The rows a ranker sees: one function for training, evaluation and serving, so that they cannot drift apart.

Shapes: R users, K candidates of each, N catalogue items, V values of a multi-hot column.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from falconet.batch import Batch, Feature, Ragged, as_ragged
from falconet.errors import ColumnNotFoundError, DataError, SchemaError
from falconet.schema import Column, Schema, Tag

SCORE = "retriever_score"
SHARE = "retriever_share"
RANK = "retriever_rank"
LENGTH = "history_length"
POPULARITY = "log_popularity"
AFFINITY = "_affinity"  # follows the name of a multi-hot item column


class CandidateRows:
    """Makes ranker rows from users and from what the retriever returned for them.

    `schema` holds the user, context and item columns; `items` is the catalogue, one row per item by ascending code.

    `.schema` describes the rows: the user's, the context's and the item's columns (ids only with `ids=True`), and
      retriever_score   as the retriever gave it; comparable between the candidates of one user only
      retriever_share   ln of the softmax of the scores over the user's candidates: comparable between users too
      retriever_rank    ln(1 + place), places from 1
      history_length    ln(1 + items in the history), where there is a history
      log_popularity    as in the catalogue
      C_affinity        for every multi-hot item column C: how much the history is of this item's kind, which is the
                        mean over the item's values of the share of the history's items that have the value
    """

    def __init__(self, schema: Schema, items: Batch, *, ids: bool = False) -> None:
        self.item_id = schema.one(Tag.ITEM, Tag.ID)
        if POPULARITY not in items.features:
            raise ColumnNotFoundError.of(POPULARITY, items.features, where="the table of items")
        self.codes_N = _tensor(items.features[self.item_id.name], self.item_id.name).long()
        if bool((self.codes_N[1:] <= self.codes_N[:-1]).any()):
            raise DataError(f"the table of items is not sorted by `{self.item_id.name}`, or holds a code twice")
        self.items = items
        asked = schema if ids else schema.without_tags(Tag.ID)
        self.user_columns = tuple(c for c in asked if {Tag.USER, Tag.CONTEXT} & c.tags and Tag.SEQUENCE not in c.tags)
        self.item_columns = tuple(c for c in asked.select(Tag.ITEM).without_tags(Tag.SEQUENCE) if c.name != POPULARITY)
        for column in self.item_columns:
            if column.name not in items.features:
                raise ColumnNotFoundError.of(column.name, items.features, where="the table of items")
        self.bags = tuple(c for c in self.item_columns if c.is_list and Tag.CATEGORICAL in c.tags)
        for column in self.bags:
            if column.cardinality is None:
                raise SchemaError(f"`{column.name}` has no cardinality", hint="`Categorify` sets it")
        self.history = _history_column(schema, self.item_id)
        length = [] if self.history is None else [LENGTH]
        made = [SCORE, SHARE, RANK, *length, POPULARITY, *(c.name + AFFINITY for c in self.bags)]
        self.schema = Schema((*self.user_columns, *self.item_columns, *map(_continuous, made)))
        self._bags_N = {c.name: as_ragged(items.features[c.name]) for c in self.bags}

    def rows(self, users: Batch, codes_RK: Tensor, scores_RK: Tensor) -> Batch:
        """R * K rows, those of the first user first.

        Code -1 (fewer than K candidates) gives a row that stands for nothing: the caller leaves it out.
        """
        rows, places = codes_RK.shape
        if users.rows != rows or scores_RK.shape != codes_RK.shape:
            raise DataError(
                f"{users.rows} users, codes of {tuple(codes_RK.shape)} and scores of {tuple(scores_RK.shape)} "
                "do not fit together"
            )
        user_of_row = torch.arange(rows, device=codes_RK.device).repeat_interleave(places)
        there = codes_RK.flatten() >= 0
        item_of_row = self._positions(codes_RK.flatten(), there)
        features: dict[str, Feature] = {}
        for column in self.user_columns:
            if column.name not in users.features:
                raise ColumnNotFoundError.of(column.name, users.features, where="the batch of users")
            features[column.name] = _take(users.features[column.name], user_of_row)
        for column in self.item_columns:
            features[column.name] = _take(self.items.features[column.name], item_of_row)
        features[SCORE] = scores_RK.flatten().float().masked_fill(~there, 0.0)
        features[SHARE] = _share(scores_RK.float(), codes_RK >= 0).flatten()
        place_K = torch.arange(1, places + 1, dtype=torch.float32, device=codes_RK.device)
        features[RANK] = place_K.log1p().repeat(rows)
        history = self._history(users)
        if history is not None:
            features[LENGTH] = history.lengths.float().log1p()[user_of_row]
        features[POPULARITY] = _tensor(self.items.features[POPULARITY], POPULARITY)[item_of_row]
        for column in self.bags:
            features[column.name + AFFINITY] = self._affinity(column, history, users.rows, user_of_row, item_of_row)
        return Batch(features, {}, rows * places, rows * places)

    def _positions(self, codes: Tensor, there: Tensor) -> Tensor:
        """Where the codes stand in the catalogue; 0 for those that are not there."""
        found = torch.searchsorted(self.codes_N, codes).clamp_(max=max(len(self.codes_N) - 1, 0))
        known = self.codes_N[found] == codes if len(self.codes_N) else torch.zeros_like(there)
        if bool((there & ~known).any()):
            stranger = int(codes[there & ~known][0])
            raise DataError(f"the candidate with code {stranger} is not in the table of items")
        return torch.where(there, found, 0)

    def _history(self, users: Batch) -> Ragged | None:
        """The items of every user's history, as positions in the catalogue; unknown ones are left out."""
        if self.history is None:
            return None
        if self.history.name not in users.features:
            raise ColumnNotFoundError.of(self.history.name, users.features, where="the batch of users")
        codes = as_ragged(users.features[self.history.name])
        if not len(self.codes_N):
            return Ragged(codes.values[:0].long(), torch.zeros_like(codes.offsets))
        found = torch.searchsorted(self.codes_N, codes.values.long()).clamp_(max=len(self.codes_N) - 1)
        known = self.codes_N[found] == codes.values
        return Ragged(found[known], F.pad(known.long().cumsum(0), (1, 0))[codes.offsets])

    def _affinity(
        self, column: Column, history: Ragged | None, rows: int, user_of_row: Tensor, item_of_row: Tensor
    ) -> Tensor:
        """float32 of [R * K]; 0 without history, or for an item without values."""
        assert column.cardinality is not None
        bag_N = self._bags_N[column.name]
        share_RV = torch.zeros(rows, column.cardinality, device=bag_N.values.device)
        if history is not None:
            seen = bag_N.take(history.values)
            user = history.row_of_value()[seen.row_of_value()]
            one = torch.ones(len(user), device=share_RV.device)
            share_RV.index_put_((user, seen.values.long()), one, accumulate=True)
            share_RV /= history.lengths.clamp(min=1)[:, None]
        bag = bag_N.take(item_of_row)
        row_of_value = bag.row_of_value()
        total = torch.zeros(len(bag), device=share_RV.device)
        total.index_add_(0, row_of_value, share_RV[user_of_row[row_of_value], bag.values.long()])
        return total / bag.lengths.clamp(min=1)


def _share(scores_RK: Tensor, there_RK: Tensor) -> Tensor:
    """ln of the softmax over the candidates that are there; 0 for the others."""
    shares_RK = scores_RK.masked_fill(~there_RK, -torch.inf).log_softmax(dim=1)
    return shares_RK.masked_fill(~there_RK, 0.0)


def _history_column(schema: Schema, item_id: Column) -> Column | None:
    found = [c for c in schema.select(Tag.SEQUENCE, Tag.CATEGORICAL) if c.table == item_id.table]
    if len(found) > 1:
        raise SchemaError(f"two columns are histories of `{item_id.name}`: {found[0].name}, {found[1].name}")
    return found[0] if found else None


def _continuous(name: str) -> Column:
    return Column(name=name, dtype="float32", nullable=False, tags=frozenset({Tag.CONTINUOUS}))


def _tensor(feature: Feature, name: str) -> Tensor:
    if isinstance(feature, Ragged):
        raise DataError(f"`{name}` holds lists where one value per row is needed")
    return feature


def _take(feature: Feature, rows: Tensor) -> Feature:
    return feature.take(rows) if isinstance(feature, Ragged) else feature[rows]
