"""The rows a ranker sees: one function for training, evaluation and serving, so that they cannot drift apart.

Shapes: R users, K candidates of each, S sources, N catalogue items, V values of a multi-hot column.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from falconet.batch import Batch, Feature, Ragged, TakenRows, as_ragged
from falconet.errors import ColumnNotFoundError, DataError, SchemaError
from falconet.retrieval.bags import Bag
from falconet.retrieval.overlay import Overlay
from falconet.retrieval.places import Places
from falconet.retrieval.sources import Found
from falconet.schema import Column, Schema, Tag

RETRIEVER = "retriever"  # what a single source is called, and all of them together
SCORE, SHARE, STANDING, RANK = "_score", "_share", "_standing", "_rank"  # follow the name of a source
LENGTH = "history_length"
POPULARITY = "log_popularity"
AFFINITY = "_affinity"  # follows the name of a multi-hot item column


class CandidateRows:
    """Makes ranker rows from users and from what the retrievers returned for them.

    `schema` holds the user, context and item columns; `items` is the catalogue, one row per item by ascending code;
    `sources` are the names of the retrievers. `.schema` describes the rows (`row_schema`).
    """

    def __init__(
        self,
        schema: Schema,
        items: Batch,
        *,
        sources: Sequence[str] = (RETRIEVER,),
        ids: bool = False,
        history: bool = False,
    ) -> None:
        self.sources = tuple(sources)
        self.schema = row_schema(schema, self.sources, ids=ids, history=history)
        self.item_id = schema.one(Tag.ITEM, Tag.ID)
        if POPULARITY not in items.features:
            raise ColumnNotFoundError.of(POPULARITY, items.features, where="the table of items")
        self.codes_N = _tensor(items.features[self.item_id.name], self.item_id.name).long()
        if bool((self.codes_N[1:] <= self.codes_N[:-1]).any()):
            raise DataError(f"the table of items is not sorted by `{self.item_id.name}`, or holds a code twice")
        self.items, self._place_of = items, Places(self.codes_N)
        self.user_columns, self.item_columns = _sides(schema, ids=ids, history=history)
        for column in self.item_columns:
            if column.name not in items.features:
                raise ColumnNotFoundError.of(column.name, items.features, where="the table of items")
        self.bags = _bags(self.item_columns)
        self.history = _history_column(schema, self.item_id)
        self._bags_N = {c.name: Bag(as_ragged(items.features[c.name]), c.cardinality or 0) for c in self.bags}
        self._said: tuple[Batch, dict[str, Ragged], Overlay] | None = None

    def over(self, said: Batch, overlay: Overlay) -> CandidateRows:
        """The same over a catalogue of which something is said since: `said` has those items, as `overlay` has them.

        Retrievers call the new ones by the codes from the cardinality of the items' column on.
        """
        other = copy.copy(self)
        other._said = said, {c.name: as_ragged(said.features[c.name]) for c in self.bags}, overlay
        return other

    def rows(self, users: Batch, found: Found) -> Batch:
        """R * K rows, those of the first user first.

        Code -1 (fewer than K candidates) gives a row that stands for nothing: the caller leaves it out.
        """
        codes_RK = found.codes
        rows, places = codes_RK.shape
        if users.rows != rows or found.of_sources.shape != (rows, places, len(self.sources)):
            raise DataError(
                f"{users.rows} users, codes of {tuple(codes_RK.shape)}, scores of {tuple(found.of_sources.shape)} "
                f"and {len(self.sources)} sources do not fit together"
            )
        user_of_row = torch.zeros(places, dtype=torch.int64, device=codes_RK.device)
        if rows != 1:
            user_of_row = torch.arange(rows, device=codes_RK.device).repeat_interleave(places)
        there_RK = codes_RK >= 0
        item_of_row = self._positions(codes_RK.flatten(), there_RK.flatten())
        features: dict[str, Feature] = {}
        for column in self.user_columns:
            if column.name not in users.features:
                raise ColumnNotFoundError.of(column.name, users.features, where="the batch of users")
            features[column.name] = _take(users.features[column.name], user_of_row)
        for column in self.item_columns:
            features[column.name] = self._of_items(column.name, item_of_row)
        features |= self._opinions(found, None if places and bool(there_RK.all()) else there_RK)
        history = self._history(users)
        if history is not None:
            features[LENGTH] = history.lengths.float().log1p().index_select(0, user_of_row)
        features[POPULARITY] = _tensor(self._of_items(POPULARITY, item_of_row), POPULARITY)
        for column in self.bags:
            features[column.name + AFFINITY] = self._affinity(column, history, users.rows, user_of_row, item_of_row)
        return Batch(features, {}, rows * places, rows * places)

    def _of_items(self, name: str, rows: Tensor) -> Feature:
        """A column of the catalogue at the given rows."""
        table = self.items.features[name]
        if self._said is not None:
            said, _, overlay = self._said
            return overlay.take(table, said.features[name], rows)
        return TakenRows(table, rows) if isinstance(table, Ragged) else table.index_select(0, rows)

    def _bag(self, column: Column, rows: Tensor) -> Ragged:
        """The same of a multi-hot column, as lists."""
        lists = self._bags_N[column.name].lists
        if self._said is None:
            return lists.take(rows)
        _, bags, overlay = self._said
        return as_ragged(overlay.take(lists, bags[column.name], rows))

    def _opinions(self, found: Found, there_RK: Tensor | None) -> dict[str, Tensor]:
        """What the sources say of the candidates. `there_RK`: which of them are there; None for all."""
        rows, places = found.codes.shape
        said: dict[str, Tensor] = {}
        for i, name in enumerate(self.sources):
            scores_RK = found.of_sources[:, :, i].float()
            shown_RK = scores_RK if there_RK is None else scores_RK.masked_fill(~there_RK, 0.0)
            said[name + SCORE] = shown_RK.flatten()
            said[name + SHARE] = _share(scores_RK, there_RK).flatten()
            said[name + STANDING] = _standing(shown_RK, there_RK).flatten()
            said[name + RANK] = found.places[:, :, i].float().log1p().flatten()
        if len(self.sources) > 1:
            place_K = torch.arange(1, places + 1, dtype=torch.float32, device=found.codes.device)
            said[RETRIEVER + RANK] = place_K.log1p().repeat(rows)
        return said

    def _positions(self, codes: Tensor, there: Tensor) -> Tensor:
        """Where the codes stand in the catalogue; 0 for those that are not there."""
        found = self._place_of.of(codes)
        known = found < len(self.codes_N)
        if self._said is not None:
            assert self.item_id.cardinality is not None
            overlay, after = self._said[2], codes - self.item_id.cardinality
            new = (after >= 0) & (after < overlay.new)
            found, known = torch.where(new, after + overlay.table, found), known | new
        if bool(known.all()):
            return found
        if bool((there > known).any()):
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
        found = self._place_of.of(codes.values)
        known = found < len(self.codes_N)
        if bool(known.all()):
            return Ragged(found, codes.offsets.long())
        return Ragged(found[known], F.pad(known.long().cumsum(0), (1, 0))[codes.offsets])

    def _affinity(
        self, column: Column, history: Ragged | None, rows: int, user_of_row: Tensor, item_of_row: Tensor
    ) -> Tensor:
        """float32 of [R * K]; 0 without history, or for an item without values."""
        assert column.cardinality is not None
        if history is None:
            return torch.zeros(len(item_of_row), device=item_of_row.device)
        if rows == 1 and self._said is None:
            of_one = self._bags_N[column.name].affinity(history.values, item_of_row)
            if of_one is not None:
                return of_one
        bag, seen = self._bag(column, item_of_row), self._bag(column, history.values)
        key = seen.values
        if rows > 1:
            user = history.row_of_value().index_select(0, seen.row_of_value())
            key = user * column.cardinality + key
        counts_RV = torch.bincount(key, minlength=rows * column.cardinality).view(rows, -1)
        share_RV = counts_RV / history.lengths.clamp(min=1)[:, None]
        place = bag.values.long()
        if rows > 1:
            place = user_of_row.index_select(0, bag.row_of_value()) * column.cardinality + place
        total_1 = F.embedding_bag(place, share_RV.view(-1, 1), bag.offsets.long(), mode="sum", include_last_offset=True)
        return total_1.squeeze(1) / bag.lengths.clamp(min=1)


def row_schema(schema: Schema, sources: Sequence[str], *, ids: bool = False, history: bool = False) -> Schema:
    """What a ranker's rows have: the columns of user and moment, of the item, and

      S_score           of every source S (a single one is called `retriever`), as it gave it; comparable between the
                        candidates of one user only
      S_share           ln of the softmax of the scores over the user's candidates: comparable between users too
      S_standing        by how many standard deviations the score is above the mean of the user's candidates: what is
                        left where scores grow with the history or with what the retriever was trained on
      S_rank            ln(1 + place in its list), places from 1
      retriever_rank    of several sources: ln(1 + place in the merged list)
      history_length    ln(1 + items in the history), where there is a history
      log_popularity    as in the catalogue
      C_affinity        for every multi-hot item column C: how much the history is of this item's kind, which is the
                        mean over the item's values of the share of the history's items that have the value

    `ids`: the ids of user and item too, `history`: the history and the item it is to be compared with, for rankers that
    read them. Raises SchemaError where a column of the data has the name of one of these.
    """
    users, items = _sides(schema, ids=ids, history=history)
    said = [name + what for name in sources for what in (SCORE, SHARE, STANDING, RANK)]
    if len(sources) > 1:
        said.append(RETRIEVER + RANK)
    length = [] if _history_column(schema, schema.one(Tag.ITEM, Tag.ID)) is None else [LENGTH]
    made = [*said, *length, POPULARITY, *(c.name + AFFINITY for c in _bags(items))]
    for column in (*users, *items):
        if column.name in made:
            raise SchemaError(
                f"the column `{column.name}` has the name of one that is made for the ranker",
                hint="call the column or the retriever otherwise",
            )
    return Schema((*users, *items, *map(_continuous, made)))


def _sides(schema: Schema, *, ids: bool, history: bool) -> tuple[tuple[Column, ...], tuple[Column, ...]]:
    """The columns of a row that come from the user or the moment, and those from the catalogue."""
    item = schema.one(Tag.ITEM, Tag.ID)
    read = [c for c in schema if ids or Tag.ID not in c.tags or (history and c.name == item.name)]
    past = _history_column(schema, item) if history else None
    users = [c for c in read if {Tag.USER, Tag.CONTEXT} & c.tags and (Tag.SEQUENCE not in c.tags or c == past)]
    items = [c for c in read if Tag.ITEM in c.tags and Tag.SEQUENCE not in c.tags and c.name != POPULARITY]
    return tuple(users), tuple(items)


def _bags(columns: Sequence[Column]) -> tuple[Column, ...]:
    """The lists of codes among an item's columns."""
    bags = tuple(c for c in columns if c.is_list and Tag.CATEGORICAL in c.tags)
    for column in bags:
        if column.cardinality is None:
            raise SchemaError(f"`{column.name}` has no cardinality", hint="`Categorify` sets it")
    return bags


def _share(scores_RK: Tensor, there_RK: Tensor | None) -> Tensor:
    """ln of the softmax over the candidates that are there; 0 for the others."""
    if there_RK is None:
        return scores_RK.log_softmax(dim=1)
    shares_RK = scores_RK.masked_fill(~there_RK, -torch.inf).log_softmax(dim=1)
    return shares_RK.masked_fill(~there_RK, 0.0)


def _standing(scores_RK: Tensor, there_RK: Tensor | None) -> Tensor:
    """(score - mean) / deviation over the candidates that are there; 0 for the others, and where all are alike.

    `scores_RK`: 0 for those that are not there.
    """
    known_RK = scores_RK.double()
    if there_RK is None:
        deviation_R1, mean_R1 = torch.std_mean(known_RK, dim=1, correction=0, keepdim=True)
        apart_RK = known_RK - mean_R1
    else:
        count_R1 = there_RK.sum(1, keepdim=True).clamp(min=1)
        apart_RK = (known_RK - known_RK.sum(1, keepdim=True) / count_R1).masked_fill(~there_RK, 0.0)
        deviation_R1 = (apart_RK.square().sum(1, keepdim=True) / count_R1).sqrt()
    return torch.where(deviation_R1 > 0, apart_RK / deviation_R1, 0.0).float()


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
    return feature.take(rows) if isinstance(feature, Ragged) else feature.index_select(0, rows)
