"""One row in plain Python is the row of the batch path, bit for bit."""

from __future__ import annotations

import struct
from typing import Any

import polars as pl
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import falconet as fl
from falconet import ops
from falconet.errors import ColumnNotFoundError, DataError
from falconet.etl.online import Online
from falconet.etl.workflow import FittedWorkflow

MOVIES = pl.DataFrame(
    {"movie": [1, 2, 3], "genres": [["a", "b"], [], ["a", None]], "year": [1990, None, 2001], "score": [0.1, 7.3, None]}
)
SCHEMA = {
    "user": pl.String, "movie": pl.Int64, "time": pl.Int64, "price": pl.Float64, "small": pl.Float32,
    "words": pl.List(pl.String), "flag": pl.Boolean,
}  # fmt: skip
TRAIN = pl.DataFrame(
    {
        "user": ["a", "b", "a", None, "é", "a"],
        "movie": [1, 2, 3, 1, None, 9],
        "time": [3, 1, 3, 4, 5, 9],
        "price": [1.5, 2.25, None, float("nan"), -0.1, 1e9],
        "small": [0.1, 0.7, None, 3.0, 2.5, -1.0],
        "words": [["x", "y"], [], None, ["x", None], ["z"], ["x"]],
        "flag": [True, False, None, True, True, False],
    },
    schema=SCHEMA,
)


@pytest.fixture(scope="module")
def fitted() -> FittedWorkflow:
    """Every operator, with a plain form and without."""
    user = ["user", "flag", "words"] >> ops.Categorify()
    item = ["movie"] >> ops.Categorify() >> ops.AddTags(["item", "id"])
    joined = ["movie"] >> ops.JoinExternal(MOVIES, on="movie")
    genres = joined["genres"] >> ops.Categorify()
    year = joined[["year", "score"]] >> ops.Normalize() >> ops.FillMissing(fill_val=0, add_binary_cols=True)
    price = ["price"] >> ops.Normalize()
    small = ["small"] >> ops.FillMissing(fill_val=0.1)
    scaled = small >> ops.Normalize() >> ops.Rename(name="scaled")
    level = ["price"] >> ops.LambdaOp(lambda col: (col * 0.3).floor()) >> ops.Categorify() >> ops.Rename(name="level")
    raw = ["user", "time"] >> ops.Rename(names={"user": "who"})
    history = (raw + item) >> ops.History(key="who", item="movie", time="time", length=2)
    others = (raw + item) >> ops.History(key="who", item="movie", length=3, name="others")
    graph = [user, item, genres, year, price, small, scaled, level, history["history"], others["others"]]
    return fl.Workflow(graph).fit(fl.Dataset(TRAIN))


@pytest.fixture(scope="module")
def online(fitted: FittedWorkflow) -> Online:
    return fitted.online()


def bits(value: Any) -> Any:
    """A value so that equal means the same bits: -0.0 is not 0.0, NaN is NaN, 1 is not 1.0."""
    if isinstance(value, list):
        return [bits(x) for x in value]
    return struct.pack("d", value) if isinstance(value, float) else (type(value).__name__, value)


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: bits(value) for name, value in row.items()}


rows = st.fixed_dictionaries(
    {
        "user": st.none() | st.sampled_from(["a", "b", "é", "", "zz"]) | st.text(max_size=3),
        "movie": st.none() | st.integers(0, 12) | st.integers(-(2**63), 2**63 - 1),
        "time": st.none() | st.integers(0, 12),
        "price": st.none() | st.floats(width=64) | st.sampled_from([1.5, 2.25, -0.1, 0.0, -0.0]),
        "small": st.none() | st.floats(width=32),
        "words": st.none() | st.lists(st.none() | st.sampled_from(["x", "y", "z", "?"]), max_size=3),
        "flag": st.none() | st.booleans(),
    }
)


@given(st.lists(rows, min_size=1, max_size=4))
@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_one_row_is_the_row_of_the_batch(fitted: FittedWorkflow, online: Online, many: list[dict[str, Any]]) -> None:
    batch = fitted.transform(pl.DataFrame(many, schema=SCHEMA)).to_dicts()
    assert [plain(row) for row in online(many)] == [plain(row) for row in batch]


def test_a_dict_gives_a_dict_and_a_list_a_list(fitted: FittedWorkflow) -> None:
    online = fitted.prune(["movie"]).online()
    assert online({"movie": 1, "and": "more"}) == {"movie": 3}
    assert online([{"movie": None}, {"movie": 77}]) == [{"movie": 1}, {"movie": 2}]
    assert online([]) == []


def test_a_history_that_comes_with_the_row_takes_the_place_of_the_look_up(fitted: FittedWorkflow) -> None:
    online = fitted.prune(["history"]).online()
    row = {"user": "a", "movie": None, "time": None}
    assert online(row) == {"history": [4 + 1, 6]}
    assert online({**row, "history": [3, 1, None, 2]}) == {"history": [1, 4]}
    assert online({**row, "history": []}) == {"history": []}
    assert online({**row, "history": None}) == {"history": [5, 6]}


def test_a_missing_column_suggests_the_close_name(fitted: FittedWorkflow) -> None:
    with pytest.raises(ColumnNotFoundError, match="did you mean `movies`"):
        fitted.prune(["movie"]).online()({"movies": 3})


@pytest.mark.parametrize("rows", ["movie", None, 3, [3], [None], pl.DataFrame({"movie": [1]}), [[("movie", 1)]]])
def test_what_is_no_row_is_an_error(fitted: FittedWorkflow, rows: Any) -> None:
    with pytest.raises(DataError, match="a row is a mapping by column, not"):
        fitted.prune(["movie"]).online()(rows)


def test_a_whole_float_is_the_integer(fitted: FittedWorkflow) -> None:
    online = fitted.prune(["movie"]).online()
    assert online({"movie": 1.0}) == {"movie": 3}
    assert online({"movie": 1.5}) == {"movie": 2}


def test_a_row_that_a_filter_drops_is_an_error() -> None:
    node = ["x", "y"] >> ops.Filter(lambda row: row["x"] > 1)
    online = fl.Workflow(node).fit(fl.Dataset(pl.DataFrame({"x": [1, 2], "y": [1, 2]}))).online()
    assert online({"x": 2, "y": 7}) == {"x": 2, "y": 7}
    with pytest.raises(DataError, match="`Filter` drops the row"):
        online({"x": 1, "y": 7})


@pytest.mark.parametrize(
    ("name", "value"), [("movie", "1"), ("price", "cheap"), ("user", 7), ("words", "x y"), ("words", 3)]
)
def test_a_value_of_another_type_is_an_error_with_the_column_s_name(online: Online, name: str, value: object) -> None:
    row = dict.fromkeys(online.input_columns)
    with pytest.raises(DataError, match=f"`{name}` cannot be {value!r}"):
        online({**row, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("price", 10**400), ("small", 10**400), ("movie", 2**64), ("time", -(2**63) - 1), ("flag", []), ("flag", "yes"),
        ("at", "2024-01-01"), ("at", 5), ("at", [1]), ("day", 5.0), ("took", 3),
    ],
)  # fmt: skip
def test_a_value_that_no_column_of_its_type_holds_is_an_error(name: str, value: object) -> None:
    frame = TRAIN.with_columns(at=pl.datetime(2024, 1, 2), day=pl.date(2024, 1, 2), took=pl.duration(hours=1))
    online = fl.Workflow(frame.columns >> ops.Categorify()).fit(fl.Dataset(frame)).online()
    assert online(frame.row(0, named=True))["at"] == 3
    with pytest.raises(DataError, match=rf"^`{name}` cannot be "):
        online({**frame.row(0, named=True), name: value})


def test_a_value_an_expression_cannot_use_is_an_error() -> None:
    node = ["x"] >> ops.LambdaOp(lambda col: col + 1)
    online = fl.Workflow(node).fit(fl.Dataset(pl.DataFrame({"x": [1, 2]}))).online()
    with pytest.raises(DataError, match="`LambdaOp` cannot use"):
        online({"x": 2**63})
