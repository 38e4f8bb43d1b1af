"""The files people really have: any names, ids of any kind, gaps, columns that are not there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from falconet.errors import ColumnNotFoundError, ConfigError, DataError, FalconetError, SchemaError
from falconet.recipe.config import ColumnsConfig, DataConfig, PrepareConfig, Recipe, read_recipe
from falconet.recipe.names import TAKEN, inner_columns, item_names
from falconet.recipe.prepare import prepare
from falconet.recipe.source import RawData, read_data

DEMO = Path(__file__).parent.parent.parent / "src/falconet/recipe/demo.toml"
ROWS = {
    "user": [1, 1, 1, 2, 2, 2, 3, 3],
    "item": [7, 8, 9, 7, 8, 9, 7, 8],
    "rating": [5.0, 1.0, 4.0, 4.0, 2.0, 5.0, 3.0, 4.0],
    "time": [1, 2, 3, 4, 5, 6, 7, 8],
}


def recipe(
    folder: Path, rows: pl.DataFrame, items: pl.DataFrame | None = None, columns: ColumnsConfig | None = None
) -> Recipe:
    rows.write_parquet(folder / "rows.parquet")
    if items is not None:
        items.write_parquet(folder / "items.parquet")
    data = DataConfig(
        reader="files",
        path=str(folder / "rows.parquet"),
        items=None if items is None else str(folder / "items.parquet"),
    )
    plain = read_recipe(DEMO)
    return replace(
        plain,
        data=data,
        columns=columns or ColumnsConfig(user="user", item="item", time="time", rating="rating"),
    )


def read(
    folder: Path, rows: pl.DataFrame, items: pl.DataFrame | None = None, columns: ColumnsConfig | None = None
) -> RawData:
    return read_data(recipe(folder, rows, items, columns), folder / "work")


def test_user_id_and_item_id_are_good_names(tmp_path: Path) -> None:
    rows = pl.DataFrame(ROWS).rename({"user": "user_id", "item": "item_id"})
    columns = ColumnsConfig(user="user_id", item="item_id", time="time", rating="rating")
    prepare(recipe(tmp_path, rows, columns=columns), tmp_path / "work", step="x")
    items = pq.read_table(tmp_path / "work/features/items/part-00000.parquet")
    assert sorted(items.column("item_id").to_pylist()) == [7, 8, 9]
    assert items.column("item").to_pylist() == [3, 4, 5]
    users = pq.read_table(tmp_path / "work/features/users/part-00000.parquet")
    assert sorted(users.column("user_id").to_pylist()) == [1, 2, 3]
    assert sorted(users.column("user").to_pylist()) == [3, 4, 5]


def test_names_of_our_own_give_way_by_role() -> None:
    inner = inner_columns(ColumnsConfig(user="user_id", item="user", time="count", rating=None))
    assert (inner.user, inner.item, inner.time, inner.rating) == ("user_", "user", "time", None)


def test_items_may_have_columns_of_any_name(tmp_path: Path) -> None:
    taken = [*sorted(TAKEN - {"title"}), "user", "rating", "time", "genres", "genres_affinity", "show_x"]
    items = pl.DataFrame({"item": [7, 8, 9], "title": ["a", "b", "c"], **{name: [1.0, 2.0, 3.0] for name in taken}})
    prepare(recipe(tmp_path, pl.DataFrame(ROWS), items), tmp_path / "work", step="x")
    made = pq.read_table(tmp_path / "work/features/items/part-00000.parquet").column_names
    assert {"item_weight", "item_count", "item_user", "item_genres_affinity_", "genres", "title"} <= set(made)
    assert len(made) == len(set(made))


def test_a_new_name_is_not_one_that_is_there() -> None:
    columns = ColumnsConfig(user="user", item="item", time=None, rating=None)
    assert item_names(["item", "count", "item_count"], columns) == {
        "item": "item",
        "count": "item_count_",
        "item_count": "item_count",
    }


def test_an_empty_name_says_that_there_is_no_such_column(tmp_path: Path) -> None:
    columns = ColumnsConfig(user="user", item="item", time="", rating="")
    raw = read(tmp_path, pl.DataFrame(ROWS).drop("time", "rating"), columns=columns)
    assert list(raw.interactions.schema) == ["user", "item"]


@pytest.mark.parametrize("change", [{"split.kind": "time"}, {"prepare.history": "earlier"}], ids=str)
def test_what_needs_times_says_so_where_there_are_none(change: dict[str, str]) -> None:
    settings = [f"{key}={value}" for key, value in change.items()]
    with pytest.raises(ConfigError, match=r"(?s)needs times, but `columns.time` is empty.*name the column of times"):
        read_recipe(DEMO, ["columns.time=", *settings])


def test_a_missing_column_of_ratings_may_be_left_out(tmp_path: Path) -> None:
    with pytest.raises(
        ColumnNotFoundError, match=r'(?s)no column `rating`.*`columns.rating = ""` says that there is none; av'
    ):
        read(tmp_path, pl.DataFrame(ROWS).drop("rating"))


def test_a_missing_title_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read(tmp_path, pl.DataFrame(ROWS), pl.DataFrame({"item": [7, 8, 9], "name": ["a", "b", "c"]}))
    assert "no column `title` (`columns.title`): items are shown by their ids" in capsys.readouterr().err


def test_columns_that_no_one_reads_are_left_out(tmp_path: Path) -> None:
    raw = read(tmp_path, pl.DataFrame(ROWS).with_columns(row=0, split=1, history=2))
    assert list(raw.interactions.schema) == ["user", "item", "time", "rating"]


def test_rows_without_user_or_item_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = pl.DataFrame({**ROWS, "user": [None, 1.0, 1.0, 2.0, float("nan"), 2.0, 3.0, 3.0]})
    raw = read(tmp_path, rows)
    assert raw.interactions.scan().collect()["user"].to_list() == [1, 1, 2, 2, 3, 3]
    assert raw.interactions.schema["user"] == pl.Int64()
    assert "2 of 8 rows of" in capsys.readouterr().err


def test_a_missing_rating_and_nan_are_not_positive(tmp_path: Path) -> None:
    rows = pl.DataFrame({**ROWS, "rating": [None, float("nan"), 4.0] * 2 + [4.0, 4.0]})
    prepare(recipe(tmp_path, rows), tmp_path / "work", step="x")
    taken = [pl.read_parquet(tmp_path / "work/features" / name / "*.parquet")["rating"] for name in ("train", "test")]
    assert sorted(pl.concat(taken).to_list()) == [0.0] * 4 + [1.0] * 4


def test_times_may_be_text(tmp_path: Path) -> None:
    rows = pl.DataFrame({**ROWS, "time": [f"2024-05-31 17:45:{i:02}" for i in range(8)]})
    assert read(tmp_path, rows).interactions.schema["time"] == pl.Datetime("us")


def test_a_time_that_is_nan_is_missing(tmp_path: Path) -> None:
    raw = read(tmp_path, pl.DataFrame({**ROWS, "time": [float("nan"), *range(7)]}))
    assert raw.interactions.scan().collect()["time"].to_list() == [None, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_files_may_differ_in_columns_that_no_one_reads(tmp_path: Path) -> None:
    rows = pl.DataFrame(ROWS)
    plain = recipe(tmp_path, rows)
    (tmp_path / "rows").mkdir()
    rows.write_parquet(tmp_path / "rows/a.parquet")
    rows.with_columns(extra=pl.lit("x")).write_parquet(tmp_path / "rows/b.parquet")
    raw = read_data(replace(plain, data=replace(plain.data, path=str(tmp_path / "rows"))), tmp_path / "work")
    assert raw.interactions.rows == 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time": ["yesterday"] * 8}, "(?s)`time`.*cannot be read.*like 2024-05-31"),
        ({"rating": ["good"] * 8}, "(?s)`rating` of .* holds String.*says that there are none"),
        ({"user": [1.5] * 8}, "(?s)`user` of .* ids that are no whole numbers"),
        ({"user": [True] * 8}, "(?s)`user` of .* holds Boolean.*ids are whole numbers or strings"),
    ],
    ids=["time", "rating", "user", "bool"],
)
def test_a_column_that_cannot_be_what_it_should_is_named(
    change: dict[str, list[object]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(FalconetError, match=message):
        read(tmp_path, pl.DataFrame({**ROWS, **change}))


def test_texts_of_times_with_a_zone_are_read_as_the_error_says(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("user,item,time\n1,7,2024-05-31T17:45:00Z\n1,8,2024-05-31T21:45:00+02:00\n")
    data = DataConfig(reader="files", path=str(tmp_path / "rows.csv"))
    plain = replace(
        read_recipe(DEMO), data=data, columns=ColumnsConfig(user="user", item="item", time="time", rating="")
    )
    with pytest.raises(DataError, match=r'(?s)cannot be read.*`data.dtypes.time = "timestamp\[us, tz=UTC\]"`'):
        read_data(plain, tmp_path / "work")
    raw = read_data(replace(plain, data=replace(data, dtypes={"time": "timestamp[us, tz=UTC]"})), tmp_path / "work")
    assert [str(t) for t in raw.interactions.scan().collect()["time"]] == [
        "2024-05-31 17:45:00+00:00",
        "2024-05-31 19:45:00+00:00",
    ]
    with pytest.raises(SchemaError, match=r"(?s)`time` has the type datetime.*hint: .*string.*timestamp\[us, tz=UTC\]"):
        read_data(replace(plain, data=replace(data, dtypes={"time": "datetime"})), tmp_path / "work")


def test_items_are_found_whatever_the_type_of_their_ids(tmp_path: Path) -> None:
    for ids in (["7", "8", "9"], [7.0, 8.0, None]):
        raw = read(tmp_path, pl.DataFrame(ROWS), pl.DataFrame({"item": ids, "title": [1, 2, 3]}))
        assert raw.items is not None
        assert raw.items["item"].to_list() == [int(float(x)) for x in ids if x is not None]
        assert raw.items.schema["title"] == pl.String()


def test_items_whose_ids_cannot_match_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"(?s)table of items holds String, in the interactions it holds Int64"):
        read(tmp_path, pl.DataFrame(ROWS), pl.DataFrame({"item": ["a", "b"]}))


def test_an_item_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"(?s)has 1 items more than once, among them `7`.*one row per item"):
        read(tmp_path, pl.DataFrame(ROWS), pl.DataFrame({"item": [7, 7, 8]}))


@pytest.mark.parametrize(("name", "message"), [("title", "id or title"), ("day", "holds Date")])
def test_a_feature_that_cannot_be_one_is_refused(name: str, message: str, tmp_path: Path) -> None:
    items = pl.DataFrame({"item": [7], "title": ["a"]}).with_columns(day=pl.date(2024, 1, 1))
    columns = ColumnsConfig(user="user", item="item", time="time", rating="rating", item_features=(name,))
    with pytest.raises(FalconetError, match=message):
        prepare(recipe(tmp_path, pl.DataFrame(ROWS), items, columns), tmp_path / "work", step="x")


def test_two_roles_cannot_be_one_column() -> None:
    with pytest.raises(ConfigError, match="two columns `a`"):
        ColumnsConfig(user="a", item="a")


def test_the_taken_names_are_those_that_candidates_have() -> None:
    from falconet.evaluation.candidates import GROUP, WEIGHT
    from falconet.evaluation.candidates import TAKEN as TARGET
    from falconet.retrieval.candidates import LENGTH, POPULARITY, RANK, RETRIEVER, SCORE, SHARE

    assert {GROUP, TARGET, WEIGHT, LENGTH, POPULARITY, *(RETRIEVER + what for what in (RANK, SCORE, SHARE))} <= TAKEN


def test_histories_need_no_times_where_the_split_has_none(tmp_path: Path) -> None:
    columns = ColumnsConfig(user="user", item="item", time=None, rating=None)
    plain = recipe(tmp_path, pl.DataFrame(ROWS), columns=columns)
    prepare(replace(plain, prepare=PrepareConfig(history="others")), tmp_path / "work", step="x")
    train = pl.read_parquet(tmp_path / "work/features/train/*.parquet")
    assert all(item not in history for item, history in train.select("item", "history").rows())


def test_infinite_features_of_items_are_missing_ones(tmp_path: Path) -> None:
    items = pl.DataFrame({"item": [7, 8, 9], "price": [1.0, float("inf"), 3.0], "size": [1, 2, None]})
    prepare(recipe(tmp_path, pl.DataFrame(ROWS), items), tmp_path / "work", step="x")
    prices = pl.read_parquet(tmp_path / "work/features/items/*.parquet").sort("item_id")["price"].to_list()
    assert prices[1] == 0.0
    assert prices[0] < 0 < prices[2] < 9


def test_a_recipe_says_how_its_text_is_written(tmp_path: Path) -> None:
    (tmp_path / "rows.dat").write_bytes("1::é::4::10\n2::é::-::20\n1::ö::5::30\n".encode("latin-1"))
    (tmp_path / "items.csv").write_bytes("item::title\né::Café\nö::Öl\n".encode("latin-1"))
    data = DataConfig(
        reader="files",
        path=str(tmp_path / "rows.dat"),
        items=str(tmp_path / "items.csv"),
        separator="::",
        encoding="latin-1",
        null_values=("-",),
        names=("user", "item", "rating", "time"),
        dtypes={"rating": "float32", "user": "string"},
    )
    columns = ColumnsConfig(user="user", item="item", time="time", rating="rating")
    raw = read_data(replace(read_recipe(DEMO), data=data, columns=columns), tmp_path / "work")
    assert raw.interactions.schema == {"user": pl.String, "item": pl.String, "time": pl.Int64, "rating": pl.Float32}
    assert raw.interactions.scan().collect().rows() == [
        ("1", "é", 10, 4.0),
        ("2", "é", 20, None),
        ("1", "ö", 30, 5.0),
    ]
    assert raw.items is not None
    assert raw.items.select("item", "title").rows() == [("é", "Café"), ("ö", "Öl")]


def test_how_text_is_written_is_said_of_csv_files_alone(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("user;item;time;rating\n1;7;1;2.5\n")
    pl.DataFrame({"item": [7], "title": ["a"]}).write_parquet(tmp_path / "items.parquet")
    data = DataConfig(
        reader="files", path=str(tmp_path / "rows.csv"), items=str(tmp_path / "items.parquet"), separator=";"
    )
    columns = ColumnsConfig(user="user", item="item", time="time", rating="rating")
    raw = read_data(replace(read_recipe(DEMO), data=data, columns=columns), tmp_path / "work")
    assert raw.interactions.scan().collect().rows() == [(1, 7, 1, 2.5)]
    with pytest.raises(ConfigError, match=r'`data.separator` is for `data.reader = "files"`'):
        DataConfig(path="ml-latest-small", separator=";")
