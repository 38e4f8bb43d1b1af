"""Folders, globs and hive folders: which files are a data set, in which order, and what their paths say."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import polars as pl
import pytest

from falconet.compute.executor import ROW
from falconet.errors import ColumnNotFoundError, ConfigError, DataError, SchemaError
from falconet.etl.dataset import Dataset


def put(path: Path, *values: object, **more: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pl.DataFrame({"x": values}).with_columns(**{name: pl.lit(value) for name, value in more.items()}).write_parquet(
        path
    )
    return path


@pytest.fixture
def hive(tmp_path: Path) -> Path:
    put(tmp_path / "year=2021" / "day=2021-01-02" / "a.parquet", 5)
    put(tmp_path / "year=2020" / "day=2020-01-31" / "b.parquet", 1, 2)
    put(tmp_path / "year=2020" / "day=2020-01-31" / "c.parquet", 3)
    put(tmp_path / "year=2020" / "day=__HIVE_DEFAULT_PARTITION__" / "a.parquet", 4)
    put(tmp_path / "notes" / "a.parquet", 100)
    put(tmp_path / "year=2020" / ".tmp" / "a.parquet", 100)
    (tmp_path / "_SUCCESS").write_text("")
    return tmp_path


HIVE = [
    (1, 2020, date(2020, 1, 31)),
    (2, 2020, date(2020, 1, 31)),
    (3, 2020, date(2020, 1, 31)),
    (4, 2020, None),
    (5, 2021, date(2021, 1, 2)),
]


def test_hive_folders_are_columns_of_the_types_of_all_their_names(hive: Path) -> None:
    data = Dataset(hive)
    assert data.schema == {"x": pl.Int64, "year": pl.Int64, "day": pl.Date}
    assert data.scan().collect().rows() == HIVE
    assert data.rows == 5
    parts = [part.scan(row_numbers=True).collect() for part in Dataset(hive, part_size=1).parts()]
    assert [frame.height for frame in parts] == [1] * 5
    assert pl.concat(parts).drop(ROW).rows() == HIVE
    assert pl.concat(parts)[ROW].to_list() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("pattern", ["year=*/day=*/*.parquet", "year=*/*/*", "y*/**/*.parquet"])
def test_a_glob_of_hive_folders_is_the_same_data(hive: Path, pattern: str) -> None:
    data = Dataset(hive / pattern)
    assert data.scan().collect().rows() == HIVE
    assert data.fingerprint == Dataset(hive).fingerprint


def test_folders_before_the_first_star_say_nothing(hive: Path) -> None:
    data = Dataset(hive / "year=2020" / "*" / "*.parquet")
    assert data.scan().collect().rows() == [(1, HIVE[0][2]), (2, HIVE[0][2]), (3, HIVE[0][2]), (4, None)]
    assert Dataset(hive / "year=2021" / "day=2021-01-02" / "a.parquet").schema == {"x": pl.Int64}
    assert Dataset(hive / "year=2021").schema == {"x": pl.Int64, "day": pl.Date}


def test_a_list_has_the_columns_below_the_folder_that_all_share(hive: Path) -> None:
    files = [hive / "year=2021/day=2021-01-02/a.parquet", hive / "year=2020/day=2020-01-31/b.parquet"]
    assert Dataset(files).scan().collect().rows() == [HIVE[4], HIVE[0], HIVE[1]]
    shared = [hive / "year=2020/day=2020-01-31" / name for name in ("c.parquet", "b.parquet")]
    assert Dataset(shared).scan().collect().rows() == [(3,), (1,), (2,)]


def test_hive_columns_can_be_all_that_is_wanted(hive: Path) -> None:
    data = Dataset(hive, columns=["year"])
    assert data.scan().collect()["year"].to_list() == [2020, 2020, 2020, 2020, 2021]
    assert data.scan(row_numbers=True).filter(pl.col("year") == 2021).collect().rows() == [(4, 2021)]
    assert Dataset(hive, columns=["x"]).scan().collect()["x"].to_list() == [1, 2, 3, 4, 5]


def test_hive_columns_have_the_types_that_are_given(tmp_path: Path) -> None:
    put(tmp_path / "zip=02134" / "a.parquet", 1)
    put(tmp_path / "zip=9" / "a.parquet", 2)
    assert Dataset(tmp_path).scan().collect().rows() == [(1, 2134), (2, 9)]
    assert Dataset(tmp_path, dtypes={"zip": pl.String}).scan().collect()["zip"].to_list() == ["02134", "9"]
    assert Dataset(tmp_path, dtypes={"zip": "int16"}).schema["zip"] == pl.Int16
    with pytest.raises(DataError, match=r"the folder `zip=02134` is no Int8"):
        Dataset(tmp_path, dtypes={"zip": "int8"})


@pytest.mark.parametrize(
    ("folders", "dtype", "want"),
    [
        (["k=1", "k=2.5"], pl.Float64, [1.0, 2.5]),
        (["k=1", "k=x"], pl.String, ["1", "x"]),
        (["k=true", "k=false"], pl.Boolean, [False, True]),
        (["k=a%2Fb", "k=a%20c"], pl.String, ["a c", "a/b"]),
        (["k=2020-01-01", "k=x"], pl.String, ["2020-01-01", "x"]),
        (["k=__HIVE_DEFAULT_PARTITION__"], pl.String, [None]),
        (["k=a=b"], pl.String, ["a=b"]),
    ],
)
def test_values_of_hive_folders(tmp_path: Path, folders: list[str], dtype: pl.DataType, want: list[object]) -> None:
    for folder in folders:
        put(tmp_path / folder / "a.parquet", 1)
    data = Dataset(tmp_path)
    assert data.schema["k"] == dtype
    assert data.scan().collect()["k"].to_list() == want


def test_text_in_hive_folders_has_their_columns_too(tmp_path: Path) -> None:
    for year, content in (("2020", "x\n1\n"), ("2021", "x\n2.5\n")):
        (tmp_path / f"year={year}").mkdir()
        (tmp_path / f"year={year}" / "a.csv").write_text(content)
    assert Dataset(tmp_path).scan().collect().rows() == [(1.0, 2020), (2.5, 2021)]


def test_a_column_that_agrees_with_its_folder_is_the_files_own(tmp_path: Path) -> None:
    put(tmp_path / "year=2020" / "a.parquet", 1, 2, year=2020)
    put(tmp_path / "year=2021" / "a.parquet", 3)
    data = Dataset(tmp_path)
    assert data.schema == {"x": pl.Int64, "year": pl.Int64}
    assert data.scan().collect().rows() == [(1, 2020), (2, 2020), (3, 2021)]
    put(tmp_path / "year=2021" / "a.parquet", 3, year=2022)
    with pytest.raises(SchemaError, match=r"a column `year` of its own, which may differ from its folder `year=2021`"):
        Dataset(tmp_path)


def test_a_file_outside_the_hive_folders_lacks_their_columns(hive: Path) -> None:
    put(hive / "a.parquet", 9)
    with pytest.raises((ColumnNotFoundError, SchemaError), match=r"column `year`"):
        Dataset(hive)
    assert Dataset(hive, columns=["x"]).rows == 6


def test_names_that_falconet_needs_are_refused_of_folders(tmp_path: Path) -> None:
    put(tmp_path / "__row__=1" / "a.parquet", 1)
    with pytest.raises(SchemaError, match="`__row__`, a name falconet needs itself"):
        Dataset(tmp_path)


def test_two_stars_enter_all_folders_and_hidden_ones_never(hive: Path) -> None:
    with pytest.raises(SchemaError, match=r"column `(year|day)`"):
        Dataset(hive / "**" / "*.parquet")
    assert Dataset(hive / "**" / "*.parquet", columns=["x"]).scan().collect()["x"].to_list() == [100, 1, 2, 3, 4, 5]
    with pytest.raises(ConfigError, match=r"is no pattern[\s\S]*stands alone"):
        Dataset(hive / "a**" / "*.parquet")


def test_a_folder_of_folders_says_how_they_are_entered(tmp_path: Path) -> None:
    put(tmp_path / "train" / "a.parquet", 1)
    with pytest.raises(DataError, match=r"no Parquet files in [\s\S]*year=2020[\s\S]*\*\*/\*.parquet"):
        Dataset(tmp_path)


def test_endings_are_known_in_capitals_and_short(tmp_path: Path) -> None:
    put(tmp_path / "a.PARQUET", 1)
    put(tmp_path / "b.pq", 2)
    put(tmp_path / "c.parq", 3)
    assert Dataset(tmp_path).scan().collect()["x"].to_list() == [1, 2, 3]
    put(tmp_path / "no_ending", 4)
    assert Dataset(tmp_path / "no_ending").scan().collect()["x"].to_list() == [4]
    assert Dataset(f"file://{tmp_path}/a.PARQUET").rows == 1


def test_a_link_to_nowhere_is_no_file(tmp_path: Path) -> None:
    put(tmp_path / "a.parquet", 1)
    (tmp_path / "b.parquet").symlink_to(tmp_path / "gone.parquet")
    for source in (tmp_path, tmp_path / "*.parquet"):
        assert Dataset(source).rows == 1


def test_a_folder_of_two_kinds_of_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "b.jsonl").write_text('{"x": 1}\n')
    with pytest.raises(DataError, match=r"has files of two kinds: CSV and JSON lines[\s\S]*\*.csv"):
        Dataset(tmp_path)
    assert Dataset(tmp_path / "*.csv").rows == 1
