"""Tables of any library and any type are the same rows as their files; files that differ in width are one data set."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from falconet.errors import ColumnNotFoundError, ConfigError, DataError, SchemaError
from falconet.etl.dataset import Dataset

TYPES = pl.DataFrame(
    {
        "decimal": pl.Series([Decimal("1.25"), None, Decimal("-3.10")], dtype=pl.Decimal(10, 2)),
        "day": [date(2020, 1, 31), None, date(1, 1, 1)],
        "at": pl.Series([datetime(2020, 1, 31, 10, 20, 30, 5), None, None], dtype=pl.Datetime("us", "UTC")),
        "took": pl.Series([timedelta(seconds=90), None, timedelta(days=-1)], dtype=pl.Duration("ms")),
        "clock": [time(10, 20, 30), None, time(0)],
        "bytes": [b"\x00\xff", None, b""],
        "kind": pl.Series(["x", None, "y"], dtype=pl.Categorical),
        "level": pl.Series(["low", None, "high"], dtype=pl.Enum(["low", "high"])),
        "who": [{"a": 1, "b": "x"}, {"a": None, "b": None}, {"a": 2, "b": None}],
        "pair": pl.Series([[1.0, 2.0], None, [3.0, 4.0]], dtype=pl.Array(pl.Float32, 2)),
        "lists": [[[1], []], None, [None, [2, None]]],
        "none": pl.Series([None, None, None], dtype=pl.Null),
        "flag": [True, None, False],
        "wide": pl.Series([2**64 - 1, None, 0], dtype=pl.UInt64),
    }
)


def ipc(frame: pl.DataFrame, path: Path) -> Path:
    frame.write_ipc(path)
    return path


def stream(frame: pl.DataFrame, path: Path) -> Path:
    frame.write_ipc_stream(path)
    return path


@pytest.mark.parametrize("write", [ipc, stream])
@pytest.mark.parametrize("name", ["a.arrow", "a.feather", "a.ipc"])
def test_arrow_files_of_both_formats_keep_every_type(
    tmp_path: Path, write: Callable[[pl.DataFrame, Path], Path], name: str
) -> None:
    write(TYPES, tmp_path / name)
    assert_frame_equal(Dataset(tmp_path).scan().collect(), TYPES)
    assert_frame_equal(Dataset(tmp_path / name, columns=["kind", "day"]).scan().collect(), TYPES.select("kind", "day"))


def test_arrow_files_of_many_batches_come_in_row_groups(tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(300_000)})
    for write, name in ((pa.ipc.new_file, "a.arrow"), (pa.ipc.new_stream, "b.arrow")):
        with write(str(tmp_path / name), table.schema) as out:
            out.write_table(table, max_chunksize=1000)
        data = Dataset(tmp_path / name)
        assert data.scan().collect()["x"].to_list() == list(range(300_000))
        meta = pq.read_metadata(data.parts()[0].path)
        assert [meta.row_group(i).num_rows for i in range(meta.num_row_groups)] == [131_072, 131_072, 37_856]


def test_a_damaged_arrow_file_is_named(tmp_path: Path) -> None:
    whole = ipc(TYPES, tmp_path / "a.arrow").read_bytes()
    for content in (whole[: len(whole) // 2], b"x" * 100, b""):
        (tmp_path / "a.arrow").write_bytes(content)
        with pytest.raises(DataError, match=r"a.arrow` is not a whole Arrow file"):
            Dataset(tmp_path / "a.arrow")


@pytest.mark.parametrize("write", [ipc, stream])
def test_any_damage_to_an_arrow_file_is_refused_or_read_but_crashes_nothing(
    tmp_path: Path, write: Callable[[pl.DataFrame, Path], Path]
) -> None:
    """Polars believes the offsets of texts and lists: wrong ones would end the process."""
    frame = pl.DataFrame({"text": ["a longer text", None] * 500, "list": [[1, 2], []] * 500})
    whole = write(frame, tmp_path / "a.arrow").read_bytes()
    refused = 0
    for start in range(0, len(whole), 1 + len(whole) // 60):
        damaged = tmp_path / f"{start}.arrow"
        damaged.write_bytes(whole[:start] + b"\xff" * 40 + whole[start + 40 :])
        try:
            Dataset(damaged).collect().rows()
        except (DataError, SchemaError) as error:
            assert f"{start}.arrow" in str(error)
            refused += 1
        cut = tmp_path / f"cut-{start}.arrow"
        cut.write_bytes(whole[:start])
        try:
            assert Dataset(cut).rows in (0, len(frame))  # a stream may lack the mark of its end
        except (DataError, SchemaError) as error:
            assert f"cut-{start}.arrow" in str(error)
    assert refused > 5


@pytest.mark.parametrize(
    "make",
    [
        lambda: TYPES,
        lambda: TYPES.lazy(),
        lambda: TYPES.to_arrow(),
        lambda: pa.RecordBatchReader.from_stream(TYPES),
        lambda: pa.dataset.dataset(TYPES.to_arrow()),
        lambda: TYPES.to_arrow().to_batches()[0],
    ],
    ids=["polars", "lazy", "arrow", "reader", "dataset", "batch"],
)
def test_frames_keep_every_type(make: Callable[[], Any]) -> None:
    assert_frame_equal(Dataset(make()).scan().collect(), TYPES)


def test_anything_that_gives_arrow_batches_is_a_table() -> None:
    class Foreign:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return pa.table({"x": [1, 2]}).__arrow_c_stream__(requested_schema)

    assert Dataset(Foreign()).scan().collect().rows() == [(1,), (2,)]


def test_pandas_frames_lose_their_index_and_keep_their_values() -> None:
    frame = pd.DataFrame(
        {
            "i": pd.array([1, None, 3], dtype="Int32"),
            "f": [1.5, np.nan, -1.0],
            "s": ["x", None, "y"],
            "b": pd.array([True, None, False], dtype="boolean"),
            "c": pd.Categorical(["u", None, "v"]),
            "t": pd.to_datetime(["2020-01-31 10:20:30", None, "2021-01-01 00:00:00"]),
            "l": [[1], None, []],
        },
        index=pd.MultiIndex.from_tuples([("b", 2), ("a", 1), ("a", 1)], names=["i", "f"]),
    )
    data = Dataset(frame)
    assert data.schema["i"] == pl.Int32
    assert data.schema["l"] == pl.List(pl.Int64)
    assert isinstance(data.schema["t"], pl.Datetime)
    assert data.scan().collect().rows() == [
        (1, 1.5, "x", True, "u", datetime(2020, 1, 31, 10, 20, 30), [1]),
        (None, None, None, None, None, None, None),
        (3, -1.0, "y", False, "v", datetime(2021, 1, 1), []),
    ]


TWICE = pd.DataFrame([[1, 2]], columns=["a", "a"])


@pytest.mark.parametrize(
    ("frame", "error", "message"),
    [
        (TWICE, SchemaError, "the pandas frame has two columns `a`"),
        (pa.table([[1], [2]], names=["a", "a"]), SchemaError, "the pyarrow frame has two columns `a`"),
        (
            pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int8()), ("a", pa.int8())]), iter([])),
            SchemaError,
            "the frame has two columns `a`",
        ),
        (pd.DataFrame({"a": [1, "x"]}), DataError, "the pandas frame cannot be read"),
        (pd.DataFrame(index=[1, 2]), SchemaError, "the frame has no columns"),
        (pl.DataFrame(), SchemaError, "the frame has no columns"),
        (pa.table({}), SchemaError, "the frame has no columns"),
        (pl.DataFrame({"a": [object()]}), SchemaError, "column `a` of the frame is Object"),
        (pd.DataFrame({"a": pd.period_range("2020-01", periods=2, freq="M")}), SchemaError, "`a` of the frame is Ext"),
        (pd.Series([1]), DataError, "a Series is not a data set"),
        (7, DataError, "a int is not a data set"),
    ],
)
def test_what_is_no_table_of_columns_is_refused(frame: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Dataset(frame)


def test_no_rows_keep_their_types(tmp_path: Path) -> None:
    for source in (TYPES[:0], TYPES[:0].to_arrow(), pa.RecordBatchReader.from_stream(TYPES[:0])):
        assert Dataset(source).schema == TYPES.schema
    assert Dataset(ipc(TYPES[:0], tmp_path / "a.arrow")).schema == TYPES.schema


def test_storage_options_are_for_addresses() -> None:
    with pytest.raises(ConfigError, match=r"storage_options are for object stores[\s\S]*table in memory"):
        Dataset(TYPES, storage_options={"region": "x"})


def test_a_data_set_can_be_narrowed_and_looked_at(tmp_path: Path) -> None:
    TYPES.write_parquet(tmp_path / "a.parquet")
    data = Dataset(tmp_path, part_size=7)
    chosen = data.select(["flag", "day"])
    assert chosen.schema == {"flag": pl.Boolean, "day": pl.Date}
    assert chosen.part_size == 7
    assert chosen.rows == 3
    assert chosen.fingerprint == data.fingerprint
    assert_frame_equal(chosen.head(2), TYPES.select("flag", "day")[:2])
    assert_frame_equal(data.head(), TYPES)
    with pytest.raises(ColumnNotFoundError, match=r"the data set has no column `flg`[\s\S]*`flag`"):
        data.select(["flg"])
    with pytest.raises(ConfigError, match="columns='flag' is a string"):
        data.select("flag")


@pytest.mark.parametrize(
    ("a", "b", "want"),
    [
        (pl.Int32, pl.Int64, pl.Int64),
        (pl.UInt32, pl.Int32, pl.Int64),
        (pl.Float32, pl.Float64, pl.Float64),
        (pl.Null, pl.String, pl.String),
        (pl.Categorical, pl.String, pl.String),
        (pl.Enum(["a"]), pl.Enum(["b"]), pl.String),
        (pl.Categorical(), pl.Categorical(), pl.Categorical()),
        (pl.Decimal(10, 2), pl.Decimal(6, 4), pl.Decimal(12, 4)),
        (pl.List(pl.Int8), pl.List(pl.UInt8), pl.List(pl.Int16)),
        (pl.Array(pl.Int8, 2), pl.Array(pl.Int64, 2), pl.Array(pl.Int64, 2)),
        (pl.Struct({"a": pl.Int8, "b": pl.Null}), pl.Struct({"b": pl.String, "a": pl.Int64}), None),
    ],
    ids=str,
)
def test_types_that_differ_in_width_are_unified(tmp_path: Path, a: Any, b: Any, want: Any) -> None:
    for name, dtype in (("a", a), ("b", b)):
        pl.DataFrame({"x": pl.Series([None], dtype=dtype)}).write_parquet(tmp_path / f"{name}.parquet")
    want = pl.Struct({"a": pl.Int64, "b": pl.String}) if want is None else want
    data = Dataset(tmp_path)
    assert data.schema == {"x": want}
    assert data.scan().collect().schema == {"x": want}
    assert data.scan().collect()["x"].to_list() == [None, None] or isinstance(want, pl.Struct)


@pytest.mark.parametrize(
    ("a", "b", "hint"),
    [
        (pl.Int64, pl.Float64, '"x": "float64"'),
        (pl.Date, pl.Datetime("us"), '"x": "string"'),
        (pl.Datetime("us"), pl.Datetime("ns"), "dtypes"),
        (pl.Decimal(38, 0), pl.Decimal(38, 10), '"x": "float64"'),
        (pl.Array(pl.Int8, 2), pl.Array(pl.Int8, 3), "dtypes"),
        (pl.Struct({"a": pl.Int8}), pl.Struct({"b": pl.Int8}), "dtypes"),
        (pl.Struct({"a": pl.Int8}), pl.Struct({"a": pl.String}), "dtypes"),
    ],
    ids=str,
)
def test_types_that_differ_in_more_are_refused_with_a_way_out(tmp_path: Path, a: Any, b: Any, hint: str) -> None:
    for name, dtype in (("a", a), ("b", b)):
        pl.DataFrame({"x": pl.Series([None], dtype=dtype)}).write_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(SchemaError, match=rf"column `x` is [\s\S]* in `.*b.parquet` and [\s\S]*{hint}"):
        Dataset(tmp_path)


def test_given_types_that_cannot_be_are_refused_before_work(tmp_path: Path) -> None:
    pl.DataFrame({"x": ["2020-01-01"]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(SchemaError, match=r"column `x` is String in .*: it cannot be read as Date"):
        Dataset(tmp_path, dtypes={"x": pl.Date})
    assert Dataset(pl.DataFrame({"x": [1, 2]}), dtypes={"x": "float32"}).scan().collect()["x"].to_list() == [1.0, 2.0]


def test_the_schema_is_that_of_all_footers_not_of_a_row(tmp_path: Path) -> None:
    pl.DataFrame({"l": [None, None], "x": [None, None]}, schema={"l": pl.Null, "x": pl.Null}).write_parquet(
        tmp_path / "a.parquet"
    )
    pl.DataFrame({"l": [None, [1, 2]], "x": pl.Series([1, None], dtype=pl.Int8)}).write_parquet(tmp_path / "b.parquet")
    data = Dataset(tmp_path)
    assert data.schema == {"l": pl.List(pl.Int64), "x": pl.Int8}
    assert data.scan().collect().rows() == [(None, None), (None, None), (None, 1), ([1, 2], None)]


def test_required_and_nullable_columns_are_one(tmp_path: Path) -> None:
    for name, nullable, values in (("a", False, [1, 2]), ("b", True, [None, 3])):
        schema = pa.schema([pa.field("x", pa.int64(), nullable=nullable)])
        pq.write_table(pa.table({"x": values}, schema=schema), tmp_path / f"{name}.parquet")
    assert Dataset(tmp_path).scan().collect()["x"].to_list() == [1, 2, None, 3]


def test_parquet_with_a_column_twice_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table([[1], [2]], names=["a", "a"]), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a.parquet`"):
        Dataset(tmp_path)


def test_parts_join_small_row_groups_and_cut_large_ones(tmp_path: Path) -> None:
    frame = pl.DataFrame({"x": pl.Series(range(1000), dtype=pl.Int64)})
    frame.write_parquet(tmp_path / "a.parquet", row_group_size=100, compression="uncompressed")
    pl.DataFrame({"x": pl.Series(range(10), dtype=pl.Int64)}).write_parquet(tmp_path / "b.parquet")
    parts = Dataset(tmp_path, part_size=3000).parts()
    assert [part.rows for part in parts] == [300, 300, 300, 100, 10]
    assert [(part.offset, part.first_row) for part in parts] == [(0, 0), (300, 300), (600, 600), (900, 900), (0, 1000)]
    assert [part.rows for part in Dataset(tmp_path / "a.parquet", part_size=500).parts()] == [50] * 20


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r\x00\x1f"), max_size=6)
COLUMNS = {
    "i": (pl.Int64, st.integers(-(2**63), 2**63 - 1)),
    "f": (pl.Float64, st.floats(allow_nan=False, allow_infinity=False)),
    "b": (pl.Boolean, st.booleans()),
    "s": (pl.String, TEXT.map(lambda text: "s" + text)),
}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(*(st.none() | values for _, values in COLUMNS.values())), min_size=1, max_size=8))
def test_one_frame_is_the_same_data_from_any_kind_of_file(tmp_path: Path, rows: list[tuple[object, ...]]) -> None:
    frame = pl.DataFrame(rows, schema={name: dtype for name, (dtype, _) in COLUMNS.items()}, orient="row")
    frame.write_parquet(tmp_path / "a.parquet")
    frame.write_ipc(tmp_path / "a.arrow")
    frame.write_ndjson(tmp_path / "a.jsonl")
    frame.write_csv(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_bytes(frame.write_csv(separator="\t").encode("utf-16"))
    dtypes = {name: dtype for name, (dtype, _) in COLUMNS.items()}
    for name, options in (
        ("a.parquet", {}),
        ("a.arrow", {}),
        ("a.csv", {"dtypes": dtypes}),
        ("b.csv", {"dtypes": dtypes, "encoding": "utf-16", "separator": "\t"}),
        ("a.jsonl", {"dtypes": {n: d for n, d in dtypes.items() if frame[n].null_count() < frame.height}}),
    ):
        got = Dataset(tmp_path / name, **options).scan().collect()  # type: ignore[arg-type]
        known = [n for n in dtypes if name != "a.jsonl" or frame[n].null_count() < frame.height]
        assert_frame_equal(got.select(known), frame.select(known), check_exact=True)
