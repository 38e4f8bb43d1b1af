"""The values of an expression are the same in a frame of any size, whatever is constant in it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import falconet as fl
from falconet import ops
from falconet.errors import SchemaError
from falconet.etl import expressions
from falconet.etl.steady import steady
from plain_rows import bits

FRAME = pl.DataFrame(
    {
        "x": [5.0, 0.1, 7.3, 49.0, -0.0, 0.0, -3.7, None, float("nan"), float("inf")],
        "y": [49.0, 5.0, 7.3, 49.0, 0.0, -0.0, -3.7, 1.0, 2.0, None],
        "f": pl.Series([0.1, 0.7, -0.0, 49.0, 3.0, 7.3, None, 0.3, 2.5, -1.0], dtype=pl.Float32),
        "i": [1, 3, 7, 49, -7, 0, None, 100, 5, 2**53 + 1],
        "l": [[0.1], [0.7, 49.0], [], None, [7.3, None], [-0.0], [1.3], [49.0], [0.0, -0.0], [3.0]],
        "n": [[49], [1, 3], [], None, [7, None], [0], [3], [49], [100, 7], [5]],
        "d": pl.Series([0, 1, 7, 49, None, 10**15, 1234567, 3, 11, 13], dtype=pl.Duration("us")),
    }
)
X, ELEMENT = pl.col("x"), pl.element()
EXPRESSIONS = [
    X / 49,
    X // 7.3,
    X % 7.3,
    X + 0.0,
    0.0 - X,
    X / pl.col("y"),
    X / pl.when(pl.col("y") > 100).then(pl.col("y")).otherwise(7.3),
    (X / 7).fill_null(1.0) / (pl.col("i") / 3),
    pl.col("f") / 7 + 0,
    pl.col("i") / 49,
    pl.sum_horizontal(X, 0.0, pl.col("f")),
    pl.mean_horizontal(X, 0.0),
    pl.col("d") / dt.timedelta(microseconds=49),
    pl.col("d") / 49.0,
    pl.col("d") / 2,
    pl.col("l") / 49.0,
    pl.col("l") + 0.0,
    pl.col("n") / 49,
    pl.col("l") / X,
    pl.col("l").list.eval(ELEMENT / 49),
    pl.col("n").list.eval(ELEMENT % 7.3 + 0.0),
    pl.col("l").list.eval(ELEMENT.filter(ELEMENT > 1) / 49),
    pl.col("l").list.eval(ELEMENT.sort() / 49),
    pl.col("l").list.eval(ELEMENT / ELEMENT.sum()),
    pl.col("l").list.eval(ELEMENT / pl.len()),
    pl.col("l").list.agg(ELEMENT.sum() / 49),
    pl.col("l").list.to_array(1).arr.eval(ELEMENT / 49),
    pl.col("l").list.mean() / 49,
    pl.col("l").list.sum(),
    pl.col("n").list.mean(),
    pl.col("l").list.eval(ELEMENT.is_nan().any() + 0.5),
    pl.col("l").list.eval((ELEMENT.max() - ELEMENT.min()) / 7.3),
    pl.col("l").list.eval(ELEMENT.std() / 49),
]


@pytest.mark.parametrize("expr", EXPRESSIONS, ids=str)
def test_the_rows_beside_it_do_not_change_a_value(expr: pl.Expr) -> None:
    frame = FRAME.filter(pl.col("l").list.len() == 1) if "to_array" in str(expr) else FRAME
    tree = expressions.to_tree(expr)
    form = expressions.from_tree(steady(tree, dict(frame.schema), where="here"))
    want = frame.select(form.alias("made"))["made"].to_list()
    for size in (1, 2, 3):
        parts = [part.select(form.alias("made"))["made"].to_list() for part in frame.iter_slices(size)]
        assert [bits(value) for part in parts for value in part] == [bits(value) for value in want]
    for name in set(expressions.columns_of(tree)) & {"x", "y", "f", "i", "d"}:
        for place, value in enumerate(frame[name]):
            constant = frame.lazy().with_columns(pl.lit(value, dtype=frame.schema[name]).alias(name))
            found = constant.select(form.alias("made")).collect()["made"].to_list()
            assert bits(found[place]) == bits(want[place]), f"{name} is {value} in all rows"


@pytest.mark.parametrize(
    ("expr", "want"),
    [
        (pl.lit(49.0) // 49.0 + X * 0, 1.0),
        (X // 5.0, 1.0),
        (X / 49, 5.0 / 49),
        (X % 5.0, 0.0),
        (X.sqrt() ** 2, 5.0**0.5 * 5.0**0.5),
    ],
    ids=str,
)
def test_values_are_those_of_plain_arithmetic(expr: pl.Expr, want: float) -> None:
    form = expressions.from_tree(steady(expressions.to_tree(expr), {"x": pl.Float64()}, where="here"))
    assert pl.DataFrame({"x": [5.0] * 3}).select(form).to_series().to_list() == [want] * 3


@pytest.mark.parametrize("expr", [X ** pl.col("y"), 0.5 ** (X / 30), pl.col("i") ** X], ids=str)
def test_a_power_of_another_size_in_each_row_is_refused(expr: pl.Expr) -> None:
    node = ["x", "y", "i"] >> ops.LambdaOp(lambda col: expr)
    with pytest.raises(SchemaError, match=r"`LambdaOp` on `x`: a float to the power of a column(?s:.*)x\.log"):
        fl.Workflow(node).fit(fl.Dataset(FRAME.select("x", "y", "i")))


def test_whole_powers_are_not_refused() -> None:
    node = ["i"] >> ops.LambdaOp(lambda col: pl.when(col.is_between(0, 9)).then(2**col))
    fitted = fl.Workflow(node).fit(fl.Dataset(pl.DataFrame({"i": [1, 3, 70]})))
    assert fitted.transform(pl.DataFrame({"i": [5, 3, 70]}))["i"].to_list() == [32, 8, None]


def test_a_column_that_is_constant_in_a_folder_divides_as_another_does(tmp_path: Path) -> None:
    frame = FRAME.select("x", "y").drop_nulls().with_row_index("row")
    for (y,), part in frame.group_by("y"):
        (folder := tmp_path / f"y={y}").mkdir()
        part.drop("y").write_parquet(folder / "part.parquet")
    share = (["x", "y"] >> ops.LambdaOp(lambda col, row: row["x"] / row["y"]))["x"]
    rest = ["row", "x", "y"] >> ops.Filter(lambda row: row["x"] // row["y"] == 1)
    for node in (["row", share], rest):
        fitted = fl.Workflow(node).fit(fl.Dataset(frame))
        want = fitted.transform(frame).to_dicts()
        hive = fl.Dataset(tmp_path)
        found = fl.Workflow(node).fit(hive).transform(hive).collect().sort("row").to_dicts()
        assert [list(map(bits, row.values())) for row in found] == [list(map(bits, row.values())) for row in want]


@pytest.mark.parametrize("dtype", [pl.Float64(), pl.Float32()], ids=str)
@pytest.mark.parametrize("is_array", [False, True], ids=["list", "array"])
@pytest.mark.parametrize("what", ["sum", "mean"])
def test_a_null_in_another_list_does_not_change_a_sum(dtype: pl.DataType, is_array: bool, what: str) -> None:
    random = np.random.default_rng(0)
    rows = [(random.normal(size=300) * 10.0 ** random.integers(-3, 3, 300)).tolist() for _ in range(20)]
    rows = [[-0.0] * 300, *rows, [None, *rows[0][1:]]]
    lists = pl.Series("l", rows, dtype=pl.List(dtype))
    frame = (lists.list.to_array(300) if is_array else lists).to_frame()
    expr = getattr(pl.col("l").arr if is_array else pl.col("l").list, what)()
    form = expressions.from_tree(steady(expressions.to_tree(expr), dict(frame.schema), where="here"))
    whole = frame.select(form).to_series()
    alone = pl.concat([part.select(form) for part in frame.iter_slices(1)]).to_series()
    assert whole.dtype == dtype
    assert [bits(value) for value in alone] == [bits(value) for value in whole]
    assert whole.to_list() == pytest.approx(frame.select(expr).to_series().to_list(), rel=1e-4)
