"""What footers say: row groups in order, one schema for all files, and errors that name the file."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from falconet.errors import DataError, SchemaError
from falconet.io.footer import RowGroup, data_files, from_arrow, read_schema, row_groups
from falconet.schema import FOOTER_KEY, Column, Schema, Tag

FRAME = pl.DataFrame({"x": [1, 2, 3, 4, 5]})
SCHEMA = Schema((Column(name="x", dtype="int64", tags=frozenset({Tag.USER})),))


def put(path: Path, schema: Schema | None = SCHEMA, rows: int = 5) -> None:
    entry = {} if schema is None else {FOOTER_KEY.decode(): schema.to_json()}
    FRAME[:rows].write_parquet(path, row_group_size=2, metadata=entry)


def test_files_come_in_name_order_without_hidden_ones(tmp_path: Path) -> None:
    for name in ("b.parquet", "a.parquet", ".c.parquet", "notes.txt"):
        put(tmp_path / name)
    assert [path.name for path in data_files(tmp_path)] == ["a.parquet", "b.parquet"]
    assert data_files(tmp_path / "b.parquet") == (tmp_path / "b.parquet",)


def test_row_groups_are_numbered_over_all_files(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet")
    put(tmp_path / "b.parquet", rows=0)
    put(tmp_path / "c.parquet", rows=1)
    groups = row_groups(tmp_path)
    assert [(Path(g.path).name, g.index, g.first_row, g.rows) for g in groups if g.rows] == [
        ("a.parquet", 0, 0, 2),
        ("a.parquet", 1, 2, 2),
        ("a.parquet", 2, 4, 1),
        ("c.parquet", 0, 5, 1),
    ]
    assert all(isinstance(group, RowGroup) and group.bytes > 0 for group in groups if group.rows)


def test_the_schema_comes_from_the_footer(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet")
    assert read_schema(tmp_path) == SCHEMA


def test_a_file_that_pyarrow_wrote_is_read_too(tmp_path: Path) -> None:
    table = FRAME.to_arrow().replace_schema_metadata({FOOTER_KEY: SCHEMA.to_json()})
    pq.write_table(table, tmp_path / "a.parquet")
    put(tmp_path / "b.parquet")
    assert read_schema(tmp_path) == SCHEMA


def test_files_that_disagree_are_named_with_the_column(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet")
    put(tmp_path / "b.parquet", Schema((Column(name="x", dtype="int64", tags=frozenset({Tag.ITEM})),)))
    with pytest.raises(SchemaError, match=r"b.parquet` has another schema[\s\S]*column `x`: .*user.* against .*item"):
        read_schema(tmp_path)
    put(tmp_path / "b.parquet", SCHEMA + Schema((Column(name="y", dtype="int8"),)))
    with pytest.raises(SchemaError, match="columns x against x, y"):
        read_schema(tmp_path)


@pytest.mark.parametrize("entry", ["{", '{"format": 2, "columns": []}', '{"format": 1, "columns": [{"nam": 1}]}'])
def test_a_schema_that_cannot_be_read_is_refused(tmp_path: Path, entry: str) -> None:
    FRAME.write_parquet(tmp_path / "a.parquet", metadata={FOOTER_KEY.decode(): entry})
    with pytest.raises(SchemaError):
        read_schema(tmp_path)


def test_without_an_entry_types_make_the_schema(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {"i": [1], "f": [1.0], "s": ["a"], "l": [[1]], "b": [True]},
        schema_overrides={"i": pl.Int8, "f": pl.Float32, "l": pl.List(pl.Int32)},
    )
    frame.write_parquet(tmp_path / "a.parquet")
    found = {column.name: (column.dtype, column.list) for column in read_schema(tmp_path)}
    assert found == {
        "i": ("int8", None),
        "f": ("float32", None),
        "s": ("string", None),
        "l": ("int32", "ragged"),
        "b": ("bool", None),
    }
    assert read_schema(tmp_path).select(Tag.CONTINUOUS).names == ("f",)


def test_arrow_types_have_our_names() -> None:
    schema = pa.schema(
        [
            ("a", pa.list_(pa.float64(), 3)),
            ("b", pa.large_list(pa.large_string())),
            pa.field("c", pa.timestamp("us", "UTC"), nullable=False),
        ]
    )
    found = from_arrow(schema)
    assert [(c.dtype, c.list, c.nullable) for c in found] == [
        ("float64", 3, True),
        ("string", "ragged", True),
        ("timestamp[us, tz=UTC]", None, False),
    ]


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file or folder `.*nowhere`"):
        row_groups(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"no Parquet files in[\s\S]*hint:"):
        row_groups(tmp_path)
    put(tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    for part in (b"", whole[:-1], whole[: len(whole) // 2]):
        (tmp_path / "a.parquet").write_bytes(part)
        with pytest.raises(DataError, match=r"a.parquet` is not a whole Parquet file"):
            read_schema(tmp_path)
