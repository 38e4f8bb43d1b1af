"""LambdaOp: functions of columns, kept as expressions."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import polars as pl
import pytest

import falconet as fl
from falconet import ops
from falconet.errors import ColumnNotFoundError, ConfigError, DataError, SchemaError
from falconet.testing.contracts import OpContract, same


class TestLambdaOp(OpContract):
    op = ops.LambdaOp(lambda col: (col * 0.1 > 0.25).cast(pl.Int8))
    frame = pl.DataFrame({"x": [1.0, 2.5, None, 3.0], "y": [1, 2, 3, None]})


class TestLambdaOpOfARow(OpContract):
    op = ops.LambdaOp(lambda col, row: col / row["y"] + row["x"], dtype="float32", tags="context", label="shares")
    frame = pl.DataFrame({"x": [1.0, 2.5, None, 3.0], "y": [1, 2, 3, None]})


class TestLambdaOpOfAColumnBeside(OpContract):
    op = ops.LambdaOp(lambda col, row: pl.when(row["text"] == "a").then(col).otherwise(0))
    frame = pl.DataFrame({"x": [1, None, 3, 4], "text": ["a", "a", "b", None], "z": [5, 6, 7, 8]})
    columns = ("x", "z")


class TestLambdaOpOnAFrame(OpContract):
    op = ops.LambdaOp(lambda col: col.str.to_uppercase().str.slice(0, 2))
    frame = pl.DataFrame({"x": ["abc", None, "é"]})


class TestLambdaOpOfLists(OpContract):
    op = ops.LambdaOp(lambda col: col.list.eval(pl.element() * 2), dtype=pl.Float32)
    frame = pl.DataFrame({"x": [[1, 2], None, [None], []]})


def apply(node: object, frame: pl.DataFrame) -> pl.DataFrame:
    return fl.Workflow(node).fit(fl.Dataset(frame)).transform(frame)


FRAME = pl.DataFrame({"a": [1, 2, None], "b": [10, 20, 30], "l": [[1], None, []]})


def test_columns_that_are_read_need_not_be_selected() -> None:
    fitted = fl.Workflow(["a"] >> ops.LambdaOp(lambda col, row: col + row["b"])).fit(fl.Dataset(FRAME))
    assert fitted.transform(FRAME).to_dict(as_series=False) == {"a": [11, 22, None]}
    assert set(fitted.input_columns) == {"a", "b"}
    assert fitted.online()({"a": 1, "b": 5}) == {"a": 6}


def test_all_columns_are_read_before_any_is_written() -> None:
    got = apply(["a", "b"] >> ops.LambdaOp(lambda col, row: col + row["b"]), FRAME)
    assert got.to_dict(as_series=False) == {"a": [11, 22, None], "b": [20, 40, 60]}


def test_a_selected_column_that_another_reads_stays_when_it_is_pruned() -> None:
    fitted = fl.Workflow(["a", "b"] >> ops.LambdaOp(lambda col, row: col + row["b"])).fit(fl.Dataset(FRAME))
    assert fitted.prune(["a"]).transform(FRAME).to_dict(as_series=False) == {"a": [11, 22, None]}
    assert fitted.prune(["b"]).input_columns == ("b",)


def test_a_dependency_may_be_a_column_of_another_node(tmp_path: Path) -> None:
    filled = ["a"] >> ops.FillMissing(fill_val=7)
    fitted = fl.Workflow(["b"] >> ops.LambdaOp(lambda col, row: col + row["a"], dependency=filled)).fit(
        fl.Dataset(FRAME)
    )
    assert fitted.transform(FRAME)["b"].to_list() == [11, 22, 37]
    loaded = fl.Workflow.load(fitted.save(tmp_path / "w"))
    same(loaded.transform(FRAME), fitted.transform(FRAME))
    assert loaded.online()({"a": None, "b": 1}) == {"b": 8}


def test_a_column_that_is_no_dependency_is_refused() -> None:
    with pytest.raises(ConfigError, match="LambdaOp reads `b`, which is not among its dependencies a"):
        ops.LambdaOp(lambda col, row: col + row["b"], dependency="a")


def test_a_column_that_is_not_there_suggests_the_close_name() -> None:
    with pytest.raises(ColumnNotFoundError, match=r"(?s)`LambdaOp` reads.*no column `bb`"):
        apply(["a"] >> ops.LambdaOp(lambda col, row: col + row["bb"]), FRAME)


def test_the_schema_says_what_the_user_says() -> None:
    op = ops.LambdaOp(lambda col: col > 1, dtype=pl.Float32, tags=["target", "binary"], properties={"min": 0, "max": 1})
    column = fl.Workflow(["a"] >> op).fit(fl.Dataset(FRAME)).schema["a"]
    assert (column.dtype, column.tags, column.min, column.max) == ("float32", {"target", "binary"}, 0, 1)
    assert apply(["a"] >> op, FRAME)["a"].to_list() == [0.0, 1.0, None]


def test_the_type_of_a_list_is_that_of_its_elements() -> None:
    assert apply(["l"] >> ops.LambdaOp(lambda col: col, dtype="int8"), FRAME).schema == {"l": pl.List(pl.Int8)}


def test_the_schema_has_the_type_that_comes_out() -> None:
    frame = pl.DataFrame({"x": [0.5, None, 4.0]}, schema={"x": pl.Float32})
    fitted = fl.Workflow(["x"] >> ops.LambdaOp(lambda col: 0.5 / col)).fit(fl.Dataset(frame))
    assert fitted.transform(frame).schema == {"x": pl.Float32}
    assert fitted.schema["x"].dtype == "float32"
    assert fitted.online()({"x": 4.0}) == {"x": 0.125}


def test_a_label_is_what_messages_call_it() -> None:
    node = ["a"] >> ops.LambdaOp(lambda col: col.str.len_chars(), label="length of the title")
    assert str(node) == "['a'] >> LambdaOp length of the title"
    with pytest.raises(SchemaError, match="`LambdaOp length of the title` on `a`"):
        apply(node, FRAME)


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"(?s)LambdaOp dtype='int'.*a Polars type"):
        ops.LambdaOp(lambda col: col, dtype="int")
    with pytest.raises(ConfigError, match="no property `cardinal`"):
        ops.LambdaOp(lambda col: col, properties={"cardinal": 3})
    with pytest.raises(ConfigError, match="gives int, not a Polars expression"):
        ops.LambdaOp(lambda col: 3)
    with pytest.raises(ConfigError, match=r"(?s)LambdaOp's function asks for `.b`.*a column is `row\[\"b\"\]`"):
        ops.LambdaOp(lambda col, row: col + row.b)


def test_a_default_is_no_second_column() -> None:
    assert apply(["a"] >> ops.LambdaOp(lambda col, scale=3: col * scale), FRAME)["a"].to_list() == [3, 6, None]


def test_a_python_function_inside_an_expression_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"(?s)Python function.*hint: write it with Polars expressions"):
        ops.LambdaOp(lambda col: col.map_elements(str.title, return_dtype=pl.String))


@pytest.mark.parametrize(
    "function",
    [
        lambda col: col - col.mean(),
        lambda col: col.shift(1),
        lambda col: col.rank(),
        lambda col: col.sum().over("user"),
        lambda col: col.fill_null(strategy="forward"),
        lambda col: col.sort(),
        lambda col: col + pl.Series([1, 2, 3]),
        lambda col: pl.lit(pl.Series([1, 2, 3])),
        lambda col: col.replace_strict(pl.Series([1]), pl.Series([2]), default=pl.Series([1, 2, 3])),
        lambda col: col.cumulative_eval(pl.element().sum()),
        lambda col: col.bitwise_and(),
        lambda col: col.list.sample(1),
        lambda col: col.list.eval(pl.element() + pl.col("__column__").list.len()),
    ],
)
def test_an_expression_that_looks_at_other_rows_is_refused(function: object) -> None:
    with pytest.raises(ConfigError, match="cannot be used in a workflow"):
        ops.LambdaOp(function)


@pytest.mark.parametrize("series", [pl.Series([1, 7]), [1, 7]], ids=["series", "list"])
def test_a_set_of_values_to_look_for_may_be_a_series(series: object) -> None:
    got = apply(["x"] >> ops.LambdaOp(lambda col: col.is_in(series)), pl.DataFrame({"x": [7, 2, 1]}))
    assert got["x"].to_list() == [True, False, True]


def test_a_constant_column_is_saved_and_read(tmp_path: Path) -> None:
    fitted = fl.Workflow(["x"] >> ops.LambdaOp(lambda col: pl.lit(3))).fit(fl.Dataset(pl.DataFrame({"x": [1, 2]})))
    loaded = fl.Workflow.load(fitted.save(tmp_path / "w"))
    assert loaded.transform(pl.DataFrame({"x": [5, 6, 7]}))["x"].to_list() == [3, 3, 3]
    assert loaded.online()({"x": 1}) == {"x": 3}


def test_a_value_that_a_cast_refuses_is_an_error_online_too() -> None:
    fitted = fl.Workflow(["x"] >> ops.LambdaOp(lambda col: col.cast(pl.Int8))).fit(fl.Dataset(pl.DataFrame({"x": [1]})))
    for refused in (fitted.online(), lambda row: fitted.transform(pl.DataFrame([row]))):
        with pytest.raises(DataError, match="300"):
            refused({"x": 300})


def test_times_are_compared_on_a_frame() -> None:
    frame = pl.DataFrame({"t": [dt.datetime(2020, 1, 1), dt.datetime(2021, 1, 1), None]})
    fitted = fl.Workflow(["t"] >> ops.LambdaOp(lambda col: col > dt.datetime(2020, 6, 1))).fit(fl.Dataset(frame))
    assert [fitted.online()(row)["t"] for row in frame.to_dicts()] == [False, True, None]
