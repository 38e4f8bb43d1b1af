"""The ranker's rows, on a catalogue small enough to count by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from falconet.batch import Batch, Ragged
from falconet.errors import ColumnNotFoundError, DataError, SchemaError
from falconet.retrieval.candidates import CandidateRows, row_schema
from falconet.retrieval.sources import Found
from falconet.schema import Column, Schema, Tag


def column(name: str, *tags: str, **facts: object) -> Column:
    return Column(name=name, dtype="int32", nullable=False, tags=frozenset(tags), **facts)  # type: ignore[arg-type]


USER = column("user", Tag.USER, Tag.ID, Tag.CATEGORICAL, cardinality=9)
ITEM = column("item", Tag.ITEM, Tag.ID, Tag.CATEGORICAL, cardinality=9)
GENRES = column("genres", Tag.ITEM, Tag.CATEGORICAL, list="ragged", cardinality=6)
HISTORY = column("history", Tag.USER, Tag.SEQUENCE, Tag.CATEGORICAL, list="ragged", cardinality=9, domain="item")
AGE = column("age", Tag.USER, Tag.CONTINUOUS)
HOUR = column("hour", Tag.CONTEXT, Tag.CATEGORICAL, cardinality=24)
POPULARITY = column("log_popularity", Tag.ITEM, Tag.CONTINUOUS)
SCHEMA = Schema((USER, ITEM, GENRES, HISTORY, AGE, HOUR, POPULARITY))
ITEMS = Batch.of(
    {
        "item": torch.tensor([3, 5, 6]),
        "genres": Ragged.of([[3], [3, 4], []]),
        "log_popularity": torch.tensor([3.0, 2.0, 1.0]),
    }
)
USERS = Batch.of(
    {
        "user": torch.tensor([7, 8]),
        "history": Ragged.of([[3, 5, 2], []]),  # 2 is out of vocabulary: not in the catalogue
        "age": torch.tensor([30.0, 40.0]),
        "hour": torch.tensor([12, 23]),
    }
)
CODES = torch.tensor([[5, 6], [3, 5]])
SCORES = torch.tensor([[2.0, 1.0], [0.5, 0.5]])


def tensor(batch: Batch, name: str) -> Tensor:
    found = batch.features[name]
    assert isinstance(found, Tensor)
    return found


def test_rows_carry_what_is_known_of_user_moment_and_item() -> None:
    rows = CandidateRows(SCHEMA, ITEMS).rows(USERS, Found.of_one(CODES, SCORES))
    assert (rows.rows, rows.global_rows) == (4, 4)
    assert tensor(rows, "age").tolist() == [30.0, 30.0, 40.0, 40.0]
    assert tensor(rows, "hour").tolist() == [12, 12, 23, 23]
    genres = rows.features["genres"]
    assert isinstance(genres, Ragged)
    assert genres.to_lists() == [[3, 4], [], [3], [3, 4]]
    assert tensor(rows, "log_popularity").tolist() == [2.0, 1.0, 3.0, 2.0]


def test_rows_carry_what_the_retriever_said() -> None:
    rows = CandidateRows(SCHEMA, ITEMS).rows(USERS, Found.of_one(CODES, SCORES))
    assert tensor(rows, "retriever_score").tolist() == [2.0, 1.0, 0.5, 0.5]
    assert tensor(rows, "retriever_rank").tolist() == pytest.approx([math.log(2), math.log(3)] * 2)
    e = math.e
    shares = [math.log(e / (1 + e)), math.log(1 / (1 + e)), math.log(0.5), math.log(0.5)]
    assert tensor(rows, "retriever_share").tolist() == pytest.approx(shares, rel=1e-5)


def test_standing_is_the_distance_from_the_mean_in_deviations() -> None:
    codes, scores = torch.tensor([[3, 5, 6], [5, 3, -1]]), torch.tensor([[5.0, 3.0, 1.0], [9.0, 7.0, -torch.inf]])
    rows = CandidateRows(SCHEMA, ITEMS).rows(USERS, Found.of_one(codes, scores))
    apart = 2 / math.sqrt(8 / 3)
    assert tensor(rows, "retriever_standing").tolist() == pytest.approx([apart, 0.0, -apart, 1.0, -1.0, 0.0])


def test_affinity_is_how_much_of_the_history_is_of_the_items_kind() -> None:
    rows = CandidateRows(SCHEMA, ITEMS).rows(USERS, Found.of_one(CODES, SCORES))
    # Of the two known items of the first history, both have genre 3 and one has genre 4.
    assert tensor(rows, "genres_affinity").tolist() == [0.75, 0.0, 0.0, 0.0]
    assert tensor(rows, "history_length").tolist() == pytest.approx([math.log(3), math.log(3), 0.0, 0.0])


def test_the_schema_describes_the_rows() -> None:
    maker = CandidateRows(SCHEMA, ITEMS)
    assert maker.schema.names == (
        "age", "hour", "genres", "retriever_score", "retriever_share", "retriever_standing", "retriever_rank",
        "history_length", "log_popularity", "genres_affinity",
    )  # fmt: skip
    assert set(maker.rows(USERS, Found.of_one(CODES, SCORES)).features) == set(maker.schema.names)


def test_ids_come_along_when_asked_for() -> None:
    maker = CandidateRows(SCHEMA, ITEMS, ids=True)
    rows = maker.rows(USERS, Found.of_one(CODES, SCORES))
    assert tensor(rows, "user").tolist() == [7, 7, 8, 8]
    assert tensor(rows, "item").tolist() == [5, 6, 3, 5]
    assert {"user", "item"} < set(maker.schema.names)


def test_lists_of_one_length_are_bags_without_their_padding() -> None:
    genres = column("genres", Tag.ITEM, Tag.CATEGORICAL, list=2, cardinality=6)
    items = Batch.of({**ITEMS.features, "genres": torch.tensor([[3, 0], [3, 4], [0, 0]])})
    rows = CandidateRows(Schema((USER, ITEM, genres, HISTORY)), items).rows(USERS, Found.of_one(CODES, SCORES))
    assert tensor(rows, "genres_affinity").tolist() == [0.75, 0.0, 0.0, 0.0]
    assert tensor(rows, "genres").tolist() == [[3, 4], [0, 0], [3, 0], [3, 4]]


def test_places_without_a_candidate_give_finite_rows() -> None:
    codes, scores = torch.tensor([[5, -1], [-1, -1]]), torch.tensor([[2.0, -torch.inf], [-torch.inf, -torch.inf]])
    rows = CandidateRows(SCHEMA, ITEMS).rows(USERS, Found.of_one(codes, scores))
    assert tensor(rows, "retriever_score").tolist() == [2.0, 0.0, 0.0, 0.0]
    assert tensor(rows, "retriever_share").tolist() == [0.0, 0.0, 0.0, 0.0]
    assert tensor(rows, "retriever_standing").tolist() == [0.0, 0.0, 0.0, 0.0]


def test_one_user_alone_gets_the_same_rows() -> None:
    maker = CandidateRows(SCHEMA, ITEMS)
    whole = maker.rows(USERS, Found.of_one(CODES, SCORES))
    alone = maker.rows(USERS[0:1], Found.of_one(CODES[:1], SCORES[:1]))
    for name, feature in alone.features.items():
        both = whole.features[name]
        if isinstance(feature, Ragged):
            assert isinstance(both, Ragged)
            assert feature.to_lists() == both[0:2].to_lists()
        else:
            assert isinstance(both, Tensor)
            assert torch.equal(feature, both[0:2])


def test_without_a_history_there_is_neither_its_length_nor_affinity_above_zero() -> None:
    maker = CandidateRows(SCHEMA.without(["history"]), ITEMS)
    rows = maker.rows(USERS, Found.of_one(CODES, SCORES))
    assert "history_length" not in rows.features
    assert tensor(rows, "genres_affinity").tolist() == [0.0] * 4


def test_a_candidate_outside_the_catalogue_is_named() -> None:
    with pytest.raises(DataError, match="the candidate with code 4 is not in the table of items"):
        CandidateRows(SCHEMA, ITEMS).rows(USERS, Found.of_one(torch.tensor([[5, 4], [3, 5]]), SCORES))


def test_a_batch_without_a_users_column_is_refused() -> None:
    users = Batch.of({"history": USERS.features["history"]})
    with pytest.raises(ColumnNotFoundError, match="the batch of users has no column `age`"):
        CandidateRows(SCHEMA, ITEMS).rows(users, Found.of_one(CODES, SCORES))


def test_users_and_candidates_must_fit() -> None:
    with pytest.raises(DataError, match=r"2 users, codes of \(1, 2\)"):
        CandidateRows(SCHEMA, ITEMS).rows(USERS, Found.of_one(CODES[:1], SCORES[:1]))


def test_a_catalogue_out_of_order_is_refused() -> None:
    items = Batch.of({**ITEMS.features, "item": torch.tensor([5, 3, 6])})
    with pytest.raises(DataError, match="not sorted by `item`"):
        CandidateRows(SCHEMA, items)


def test_a_catalogue_without_popularity_is_refused() -> None:
    items = Batch.of({name: x for name, x in ITEMS.features.items() if name != "log_popularity"})
    with pytest.raises(ColumnNotFoundError, match="the table of items has no column `log_popularity`"):
        CandidateRows(SCHEMA, items)


def test_two_histories_are_one_too_many() -> None:
    other = column("later", Tag.USER, Tag.SEQUENCE, Tag.CATEGORICAL, list="ragged", cardinality=9, domain="item")
    with pytest.raises(SchemaError, match="two columns are histories of `item`: history, later"):
        CandidateRows(Schema((*SCHEMA, other)), ITEMS)


def test_of_several_sources_every_one_has_its_columns() -> None:
    each, places = torch.stack([SCORES, SCORES.flip(1)], dim=2), torch.tensor([[[1, 3], [2, 1]], [[1, 1], [3, 2]]])
    maker = CandidateRows(SCHEMA, ITEMS, sources=("A", "B"))
    rows = maker.rows(USERS, Found(CODES, SCORES, each, places, asked=2))
    assert tensor(rows, "B_score").tolist() == [1.0, 2.0, 0.5, 0.5]
    assert tensor(rows, "A_rank").tolist() == pytest.approx([math.log(1 + p) for p in (1, 2, 1, 3)])
    assert tensor(rows, "B_rank").tolist() == pytest.approx([math.log(1 + p) for p in (3, 1, 1, 2)])
    assert tensor(rows, "retriever_rank").tolist() == pytest.approx([math.log(2), math.log(3)] * 2)
    assert {"A_share", "B_share"} < set(maker.schema.names)
    assert "retriever_score" not in maker.schema.names
    assert set(rows.features) == set(maker.schema.names)
    with pytest.raises(DataError, match=r"scores of \(2, 2, 1\) and 2 sources do not fit"):
        maker.rows(USERS, Found.of_one(CODES, SCORES))


def test_a_ranker_that_reads_histories_gets_them_and_the_item() -> None:
    maker = CandidateRows(SCHEMA, ITEMS, history=True)
    rows = maker.rows(USERS, Found.of_one(CODES, SCORES))
    history = rows.features["history"]
    assert isinstance(history, Ragged)
    assert history.to_lists() == [[3, 5, 2], [3, 5, 2], [], []]
    assert tensor(rows, "item").tolist() == [5, 6, 3, 5]
    assert "user" not in maker.schema.names


def test_a_column_called_like_one_that_is_made_is_refused() -> None:
    with pytest.raises(SchemaError, match="the column `age_score` has the name of one that is made for the ranker"):
        row_schema(Schema((*SCHEMA, column("age_score", Tag.USER, Tag.CONTINUOUS))), ("age",))
