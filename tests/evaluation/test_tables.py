"""The tables that evaluation reads."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from falconet.batch import Ragged
from falconet.errors import ColumnNotFoundError, DataError, SchemaError
from falconet.evaluation.tables import read_items, read_users


def change(folder: Path, name: str, values: pa.Array) -> None:
    path = folder / "part-00000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.schema.get_field_index(name), name, values), path)


def test_items_are_features_by_code_and_counts(small: Path) -> None:
    items = read_items(small / "items")
    assert items.schema.names == ("item", "genres", "log_popularity")
    assert items.codes.tolist() == [3, 4, 5, 6, 7]
    assert items.counts_by_code(9).tolist() == [0, 0, 0, 3, 3, 2, 1, 0, 0]


def test_items_may_take_other_counts(small: Path) -> None:
    items = read_items(small / "items").with_counts(torch.tensor([0, 0, 0, 1, 0, 0, 0, 0]))
    assert items.counts.tolist() == [1, 0, 0, 0, 0]
    popularity = items.features.features["log_popularity"]
    assert isinstance(popularity, torch.Tensor)
    assert popularity.tolist() == pytest.approx([0.693147, 0, 0, 0, 0])


def test_users_are_features_seen_and_relevant(small: Path) -> None:
    users = read_users(small / "users")
    assert users.schema.names == ("user", "history")
    assert len(users) == 4
    assert users.seen.to_lists() == [[3, 4, 5], [3, 4], [3, 6], [4, 5]]
    assert users.relevant.to_lists() == [[6], [5, 7], [], []]
    assert users.unknown.tolist() == [0, 2, 0, 1]


def test_users_may_be_taken_in_any_order(small: Path) -> None:
    users = read_users(small / "users").take(torch.tensor([3, 0]))
    assert users.seen.to_lists() == [[4, 5], [3, 4, 5]]
    history = users.features.features["history"]
    assert isinstance(history, Ragged)
    assert history.to_lists() == [[4, 5], [3, 4, 5]]
    assert (users.features.rows, users[1:2].relevant.to_lists()) == (2, [[6]])


def test_items_out_of_order_are_refused(small: Path) -> None:
    change(small / "items", "item", pa.array([3, 5, 4, 6, 7], pa.int32()))
    with pytest.raises(DataError, match="not sorted by `item`, or holds a code twice"):
        read_items(small / "items")


def test_a_missing_column_is_named(small: Path) -> None:
    with pytest.raises(ColumnNotFoundError, match="has no column `seen`"):
        read_users(small / "items")


def test_a_tagged_column_that_no_model_can_read_is_refused(small: Path) -> None:
    path = small / "users/part-00000.parquet"
    table = pq.read_table(path)
    entry = table.schema.metadata[b"falconet.schema"].replace(
        b'"name": "user", "dtype": "int32"', b'"name": "user", "dtype": "string"'
    )
    pq.write_table(table.replace_schema_metadata({b"falconet.schema": entry}), path)
    with pytest.raises(SchemaError, match=r"column `user` of .* holds string, which no model can read"):
        read_users(small / "users")
