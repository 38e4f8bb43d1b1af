"""A data set is the same rows from anything and however it is cut; what is wrong is said before data is read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from falconet.compute.executor import ROW
from falconet.errors import ColumnNotFoundError, ConfigError, DataError, SchemaError
from falconet.etl.dataset import Dataset
from falconet.etl.ops.join import JoinExternal
from falconet.memory import parse_size

FRAME = pl.DataFrame(
    {
        "user": pl.Series([3, 1, None, 2, 3, 1, 2], dtype=pl.Int32),
        "title": ["a", "b", "c", None, "e", "f", "g"],
        "genres": [["x"], [], None, ["y", None], ["z"], ["x", "y"], []],
    }
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files; the second has row groups of two rows."""
    FRAME[:3].write_parquet(tmp_path / "a.parquet")
    FRAME[3:].write_parquet(tmp_path / "b.parquet", row_group_size=2)
    (tmp_path / "notes.txt").write_text("not data")
    (tmp_path / ".c.parquet").write_text("hidden")
    return tmp_path


def from_parts(data: Dataset) -> pl.DataFrame:
    return pl.concat([part.scan(row_numbers=True).collect() for part in data.parts()])


def test_a_folder_a_glob_and_a_list_are_the_same_rows(folder: Path) -> None:
    sources = [folder, str(folder), folder / "*.parquet", [folder / "a.parquet", str(folder / "b.parquet")]]
    for source in sources:
        data = Dataset(source)
        assert data.rows == 7
        assert data.schema == FRAME.schema
        assert_frame_equal(data.scan().collect(), FRAME)
    assert len({Dataset(source).fingerprint for source in sources}) == 1


def test_a_file_is_a_data_set(folder: Path) -> None:
    assert_frame_equal(Dataset(folder / "b.parquet").scan().collect(), FRAME[3:])


@pytest.mark.parametrize("size", [1, 60, 150, 400, "1KB", "256MB"])
def test_parts_hold_every_row_once_in_order_with_its_number(folder: Path, size: str | int) -> None:
    rows = from_parts(Dataset(folder, part_size=size))
    assert rows[ROW].to_list() == [0, 1, 2, 3, 4, 5, 6]
    assert rows.schema[ROW] == pl.UInt64
    assert_frame_equal(rows.drop(ROW), FRAME)
    assert_frame_equal(Dataset(folder, part_size=size).scan(row_numbers=True).collect(), rows)


def test_parts_are_cut_at_row_groups_and_within_large_ones(folder: Path) -> None:
    assert [part.rows for part in Dataset(folder).parts()] == [3, 4]
    assert [part.rows for part in Dataset(folder, part_size=1).parts()] == [1] * 7
    assert {part.columns for part in Dataset(folder, columns=["title", "user"]).parts()} == {("title", "user")}


def test_chosen_columns_come_in_the_order_given(folder: Path) -> None:
    data = Dataset(folder, columns=["title", "user"])
    assert_frame_equal(data.scan().collect(), FRAME.select("title", "user"))
    assert_frame_equal(from_parts(data).drop(ROW), FRAME.select("title", "user"))


def test_files_may_have_their_columns_in_another_order(tmp_path: Path) -> None:
    FRAME[:3].write_parquet(tmp_path / "a.parquet")
    FRAME[3:].select("genres", "user", "title").write_parquet(tmp_path / "b.parquet")
    assert_frame_equal(from_parts(Dataset(tmp_path)).drop(ROW), FRAME)


@pytest.mark.parametrize(
    "source",
    [
        FRAME,
        FRAME.lazy(),
        FRAME.to_arrow(),
        FRAME.to_pandas(use_pyarrow_extension_array=True),
        FRAME.to_pandas(use_pyarrow_extension_array=True).set_index(pd.Index([10, 0, 1, 2, 5, 5, 7])),
    ],
    ids=["polars", "lazy", "arrow", "pandas", "pandas with an index"],
)
def test_tables_are_data_sets(source: object) -> None:
    data = Dataset(source, part_size=200)
    assert_frame_equal(data.scan().collect(), FRAME)
    assert_frame_equal(from_parts(data).drop(ROW), FRAME)
    assert data.fingerprint == Dataset(FRAME).fingerprint


def test_another_table_of_the_same_size_is_another_data_set() -> None:
    assert Dataset(pl.DataFrame({"x": [1, 2]})).fingerprint != Dataset(pl.DataFrame({"x": [1, 3]})).fingerprint


def test_columns_and_parts_do_not_change_the_fingerprint_but_rows_do(folder: Path) -> None:
    whole = Dataset(folder).fingerprint
    assert Dataset(folder, part_size=1, columns=["user"]).fingerprint == whole
    FRAME[3:6].write_parquet(folder / "b.parquet", row_group_size=2)
    assert Dataset(folder).fingerprint != whole


CSV = "user,title,score\n1,a,4\n2,,5\n,c,\n"


def test_a_csv_file_is_read_with_the_types_of_all_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,x\n" + "1,2\n" * 5000 + "3,2.5\n")
    data = Dataset(path)
    assert data.schema == {"id": pl.Int64, "x": pl.Float64}
    assert data.scan().collect()["x"][-1] == 2.5


def test_csv_files_of_a_folder_agree_on_types(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    (tmp_path / "b.csv").write_text("user,title,score\n7,d,4.5\n")
    data = Dataset(tmp_path, part_size=1)
    assert data.schema == {"user": pl.Int64, "title": pl.String, "score": pl.Float64}
    want = [(0, 1, "a", 4.0), (1, 2, None, 5.0), (2, None, "c", None), (3, 7, "d", 4.5)]
    assert from_parts(data).rows() == want


def test_types_of_a_csv_file_can_be_given(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("zip\tuser\n02134\t1\n")
    data = Dataset(tmp_path / "a.tsv", dtypes={"zip": pl.String, "user": pl.Int8})
    assert data.schema == {"zip": pl.String, "user": pl.Int8}
    assert data.scan().collect().rows() == [("02134", 1)]


def test_converting_leaves_nothing_in_the_working_directory_or_behind(tmp_path: Path) -> None:
    code = "from falconet.etl.dataset import Dataset; d = Dataset('a.csv'); print(d.parts()[0].path)"
    (tmp_path / "a.csv").write_text(CSV)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    path = Path(done.stdout.strip())
    assert not path.is_relative_to(tmp_path)
    assert not path.parent.parent.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["a.csv"]


def test_a_scan_outlives_its_data_set() -> None:
    scan = Dataset(FRAME).scan()
    assert scan.collect().height == 7


def test_widths_of_integers_are_unified_to_the_widest(tmp_path: Path) -> None:
    types = [(pl.Int8, pl.Float32), (pl.UInt16, pl.Float64), (pl.Null, pl.Null)]
    for i, (x, y) in enumerate(types):
        frame = pl.DataFrame({"x": pl.Series([None, None], dtype=pl.Null), "y": [None, None], "l": [[], []]})
        if x != pl.Null:
            frame = pl.DataFrame({"x": pl.Series([1, None], dtype=x), "y": pl.Series([0.5, None], dtype=y)})
            frame = frame.with_columns(l=pl.concat_list(pl.col("x")))
        frame.write_parquet(tmp_path / f"{i}.parquet")
    data = Dataset(tmp_path)
    assert data.schema == {"x": pl.Int32, "y": pl.Float64, "l": pl.List(pl.Int32)}
    assert from_parts(data)["x"].to_list() == [1, None, 1, None, None, None]
    assert data.scan().collect()["l"].to_list() == [[1], [None], [1], [None], [], []]


@pytest.mark.parametrize(
    ("a", "b"),
    [(pl.Int64, pl.Float64), (pl.Int64, pl.String), (pl.Int8, pl.UInt64), (pl.Boolean, pl.Int8)],
    ids=["int and float", "int and string", "signed and the largest unsigned", "bool and int"],
)
def test_other_differences_are_refused_by_file_and_column(
    tmp_path: Path, a: type[pl.DataType], b: type[pl.DataType]
) -> None:
    for name, dtype in (("a", a), ("b", b)):
        pl.DataFrame({"ok": [1], "x": pl.Series([None], dtype=dtype)}).write_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(SchemaError, match=rf"column `x` is {b()} in `.*b.parquet` and {a()} in [\s\S]*dtypes="):
        Dataset(tmp_path)
    assert Dataset(tmp_path, columns=["ok"]).rows == 2
    assert Dataset(tmp_path, dtypes={"x": pl.String}).scan().collect()["x"].to_list() == [None, None]


def test_no_rows_are_one_part_with_types(tmp_path: Path) -> None:
    FRAME[:0].write_parquet(tmp_path / "a.parquet")
    for data in (Dataset(tmp_path), Dataset(FRAME[:0])):
        (part,) = data.parts()
        assert (part.rows, data.rows) == (0, 0)
        assert part.scan(row_numbers=True).collect().schema == {ROW: pl.UInt64, **FRAME.schema}


def test_an_empty_file_among_others_adds_nothing(folder: Path) -> None:
    FRAME[:0].write_parquet(folder / "aa.parquet")
    assert_frame_equal(from_parts(Dataset(folder)).drop(ROW), FRAME)


def test_an_empty_folder_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no Parquet files in `.*`[\s\S]*hint:"):
        Dataset(tmp_path)


@pytest.mark.parametrize("name", ["nowhere", "no*where.parquet"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"no file .*no.*where"):
        Dataset(tmp_path / name)


def test_a_list_of_nothing_or_of_a_missing_file_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match="no files"):
        Dataset([])
    with pytest.raises(DataError, match="no file `nowhere`"):
        Dataset([folder / "a.parquet", "nowhere"])
    with pytest.raises(DataError, match=r"a.parquet` is in the list twice"):
        Dataset([folder / "a.parquet", folder / ".." / folder.name / "a.parquet"])


def test_addresses_of_files_of_this_machine_stand_alone_and_in_lists(tmp_path: Path) -> None:
    pl.DataFrame({"x": [1, 2]}).write_parquet(tmp_path / "two words.parquet")
    address = (tmp_path / "two words.parquet").as_uri()
    assert "%20" in address
    assert Dataset(address).rows == Dataset([address]).rows == 2


def test_a_damaged_page_is_an_error_with_the_file_when_rows_are_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pl.DataFrame({"x": range(10_000)}).write_parquet(path)
    whole = bytearray(path.read_bytes())
    whole[100:400] = b"\xff" * 300
    path.write_bytes(whole)
    data = Dataset(path)
    for look in (data.head, data.collect, lambda: JoinExternal(path, on="x")):
        with pytest.raises(DataError, match=r"`.*a.parquet`: parquet"):
            look()


def test_a_truncated_file_is_named(folder: Path) -> None:
    whole = (folder / "b.parquet").read_bytes()
    (folder / "b.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"`.*b.parquet` is not a whole Parquet file"):
        Dataset(folder)


def test_a_missing_column_is_named_with_the_close_one(folder: Path) -> None:
    with pytest.raises(ColumnNotFoundError, match=r"a.parquet` has no column `users`[\s\S]*did you mean `user`"):
        Dataset(folder, columns=["users"])
    FRAME[3:].drop("title").write_parquet(folder / "b.parquet")
    with pytest.raises(ColumnNotFoundError, match=r"b.parquet` has no column `title`"):
        Dataset(folder)


def test_a_column_that_only_a_later_file_has_is_refused(folder: Path) -> None:
    FRAME[3:].with_columns(more=1).write_parquet(folder / "b.parquet")
    with pytest.raises(SchemaError, match=r"b.parquet` has a column `more`, which `.*a.parquet` lacks[\s\S]*columns="):
        Dataset(folder)


def test_csv_files_with_other_columns_or_types_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    (tmp_path / "b.csv").write_text("user,title\n1,a\n")
    with pytest.raises(SchemaError, match=r"b.csv` has no column `score`"):
        Dataset(tmp_path)
    (tmp_path / "b.csv").write_text("user,title,score\nx,a,1\n")
    with pytest.raises(SchemaError, match=r"column `user` is String in `.*b.csv` and Int64[\s\S]*dtypes="):
        Dataset(tmp_path)
    (tmp_path / "b.csv").write_text("")
    with pytest.raises(DataError, match=r"b.csv` is empty"):
        Dataset(tmp_path)


def test_mixed_kinds_and_unknown_kinds_are_refused(folder: Path) -> None:
    (folder / "d.csv").write_text(CSV)
    with pytest.raises(DataError, match=r"a.parquet` and `.*d.csv` are not files of one kind"):
        Dataset([folder / "a.parquet", folder / "d.csv"])
    with pytest.raises(DataError, match=r"notes.txt` is neither Parquet nor CSV"):
        Dataset(folder / "notes.txt")
    with pytest.raises(DataError, match=r"a dict is not a data set[\s\S]*pandas"):
        Dataset({"x": [1]})


def test_settings_are_checked(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"'large' is not a size[\s\S]*256MB"):
        Dataset(folder, part_size="large")
    with pytest.raises(ConfigError, match="`user` is in `columns` twice"):
        Dataset(folder, columns=["user", "user"])
    with pytest.raises(ConfigError, match=r"columns='user' is a string"):
        Dataset(folder, columns="user")
    with pytest.raises(ColumnNotFoundError, match="has no column `usr`"):
        Dataset(folder, dtypes={"usr": pl.Int8})
    with pytest.raises(SchemaError, match="`__row__`"):
        Dataset(FRAME.with_row_index(ROW))


@pytest.mark.parametrize(
    ("text", "size"), [("256MB", 256_000_000), ("1.5 GiB", 1610612736), (7, 7), ("100kb", 100_000), ("8", 8)]
)
def test_sizes_are_numbers_with_units(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ([{"a": 1}], DataError, r"(?s)a list of files has a dict in it.*pl.DataFrame\(rows\)"),
        (pl.LazyFrame({"a": ["x"]}).with_columns(pl.col("a").cast(pl.Int64)), DataError, "the frame cannot be read: "),
        (pl.scan_parquet("nowhere.parquet"), DataError, "the frame cannot be read: "),
        (pl.DataFrame({"a": [1]}, schema={"a": pl.Int128}), SchemaError, "column `a` of the frame is Int128"),
        (pl.DataFrame({"": [1]}), SchemaError, "the frame has a column without a name"),
        (pl.DataFrame({"*": [1]}), SchemaError, r"column `\*`, which Polars takes for a pattern"),
        (pl.DataFrame({"^a.*$": [1]}), SchemaError, "which Polars takes for a pattern"),
        (pl.DataFrame({"__bucket__": [1]}), SchemaError, "a name falconet needs itself"),
    ],
    ids=["rows", "bad cast", "missing file", "wide", "no name", "star", "pattern", "reserved"],
)
def test_what_is_no_data_says_what_it_is(source: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Dataset(source)
