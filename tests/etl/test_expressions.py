"""Expressions as data: what may be saved, what is refused, and that numbers keep their bits."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falconet.etl.expressions import ForbiddenError, columns_of, from_tree, substitute, to_tree, walk

X = pl.col("x")


@given(st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=150, deadline=None)
def test_numbers_in_expressions_keep_their_bits(number: float) -> None:
    expr = from_tree(to_tree(X + number))
    assert pl.DataFrame({"x": [0.0]}).select(expr).item() == number


def test_a_number_keeps_the_narrow_type_of_its_column() -> None:
    frame = pl.DataFrame({"x": pl.Series([1.0], dtype=pl.Float32)})
    assert frame.select(from_tree(to_tree(X * 3.9854616129383293))).schema["x"] == pl.Float32


@pytest.mark.parametrize(
    "expr",
    [
        (X > 3).cast(pl.Int8),
        X.is_in([1, 2]),
        X.replace_strict({1: 5}, default=0),
        pl.when(X.is_null()).then(1).otherwise(X * 2),
        X.clip(1, 2).log1p().round(2),
        X.cast(pl.String).str.slice(0, 1),
        pl.max_horizontal(X, pl.lit(2)),
        pl.when(X > 1).then(pl.lit("Object")).otherwise(pl.lit("AnonymousFunction")),
    ],
    ids=str,
)
def test_what_is_read_back_gives_the_same(expr: pl.Expr) -> None:
    frame = pl.DataFrame({"x": [1, 2, None, 7]})
    assert frame.select(from_tree(json.loads(json.dumps(to_tree(expr))))).equals(frame.select(expr))


def test_sums_inside_a_list_are_of_one_row() -> None:
    frame = pl.DataFrame({"x": [[1, 2], [5]]})
    tree = to_tree(X.list.eval(pl.element() - pl.element().mean()))
    assert frame.select(from_tree(tree))["x"].to_list() == [[-0.5, 0.5], [0.0]]


def test_columns_are_found_and_replaced() -> None:
    tree = to_tree(pl.col("a") + pl.col("b") * pl.col("a"))
    assert columns_of(tree) == ("a", "b")
    assert pl.DataFrame({"c": [2], "b": [3]}).select(from_tree(substitute(tree, {"a": {"Column": "c"}}))).item() == 8


@pytest.mark.parametrize(
    "tree",
    [
        {"AnonymousFunction": {"input": [{"Column": "x"}], "function": [1, 2]}},
        {"Function": {"input": [{"Column": "x"}], "function": {"FfiPlugin": {"lib": "evil.so", "symbol": "run"}}}},
        {"Alias": [{"AnonymousFunction": {}}, "y"]},
        {"BinaryExpr": {"left": {"Column": "x"}, "op": "Plus", "right": {"SubPlan": [{}, []]}}},
        {"Cast": {"expr": {"Over": {}}, "dtype": {"Literal": "Int8"}, "options": "Strict"}},
        {"Ternary": {"predicate": {"Column": "x"}, "truthy": {"Column": "x"}, "falsy": {"Agg": {"Sum": {}}}}},
        {"Eval": {"expr": {"Column": "x"}, "evaluation": {"AnonymousFunction": {}}, "variant": "List"}},
        {"Literal": {"Dyn": {"Float": None}}},
        {"Literal": {"Series": [255, 255]}},
        {"Eval": {"expr": {"Column": "x"}, "evaluation": {"Agg": {"Sum": "Element"}}, "variant": {"Cumulative": {}}}},
        {"Function": {"input": [{"Column": "x"}], "function": {"Bitwise": "Xor"}}},
        {"Unheard": {}},
        "Len",
        [],
        {"Column": "x", "Other": 1},
    ],
    ids=str,
)
def test_what_is_not_on_the_list_is_refused(tree: Any) -> None:
    with pytest.raises(ForbiddenError):
        walk(tree)
    with pytest.raises(ForbiddenError):
        from_tree(tree)
