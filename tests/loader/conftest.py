"""Small data sets in Parquet files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from falconet.schema import FOOTER_KEY, Column, Schema

SCHEMA = Schema(
    (
        Column(name="row", dtype="int64", tags={"id", "user"}),
        Column(name="item", dtype="int32", tags={"categorical"}, cardinality=100),
        Column(name="genres", dtype="int32", list="ragged", tags={"categorical"}, cardinality=10),
        Column(name="vector", dtype="float32", list=2, tags={"embedding"}),
        Column(name="price", dtype="float64", tags={"continuous"}),
        Column(name="title", dtype="string"),
        Column(name="count", dtype="int64"),
        Column(name="liked", dtype="bool", tags={"target", "binary"}),
        Column(name="importance", dtype="float64", tags={"weight"}),
    )
)


def numbered(first: int, rows: int) -> pa.Table:
    """Rows whose every value follows from the row number."""
    n = range(first, first + rows)
    return pa.table(
        {
            "row": pa.array(n, pa.int64()),
            "item": pa.array([i % 100 for i in n], pa.int32()),
            "genres": pa.array([[i % 10] * (i % 3) for i in n], pa.list_(pa.int32())),
            "vector": pa.array([[i, -i] for i in n], pa.list_(pa.float32(), 2)),
            "price": pa.array([i / 2 for i in n], pa.float64()),
            "title": pa.array([f"item {i}" for i in n], pa.string()),
            "count": pa.array([i * i for i in n], pa.int64()),
            "liked": pa.array([i % 2 == 0 for i in n], pa.bool_()),
            "importance": pa.array([i + 1 for i in n], pa.float64()),
        }
    )


def write(path: Path, table: pa.Table, schema: Schema | None = None, row_group: int | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if schema is not None:
        table = table.replace_schema_metadata({FOOTER_KEY: schema.to_json()})
    pq.write_table(table, path, row_group_size=row_group)


@pytest.fixture
def numbered_schema() -> Schema:
    """The schema of the files of `numbered_folder`."""
    return SCHEMA


@pytest.fixture
def numbered_folder(tmp_path: Path) -> Callable[..., Path]:
    """Writes files of the given row counts with numbered rows; returns the folder."""

    def make(
        counts: Sequence[int], *, name: str = "data", row_group: int | None = None, schema: Schema = SCHEMA
    ) -> Path:
        first = 0
        for i, rows in enumerate(counts):
            write(tmp_path / name / f"part-{i:03d}.parquet", numbered(first, rows), schema, row_group)
            first += rows
        return tmp_path / name

    return make


@pytest.fixture
def one_column(tmp_path: Path) -> Callable[..., Path]:
    """Writes one file with the columns given; returns the file."""

    def make(columns: Mapping[str, pa.Array], schema: Schema | None = None, *, name: str = "one.parquet") -> Path:
        write(tmp_path / name, pa.table(dict(columns)), schema)
        return tmp_path / name

    return make
