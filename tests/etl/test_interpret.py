"""Expressions in plain Python, and in parts of any size, give what Polars gives for one row, bit for bit."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falconet.etl import expressions
from falconet.etl.interpret import plain_form
from falconet.etl.steady import steady
from plain_rows import bits

TYPES: dict[str, pl.DataType] = {
    "i": pl.Int64(), "small": pl.Int8(), "u": pl.UInt32(), "x": pl.Float64(), "f": pl.Float32(), "b": pl.Boolean(),
    "s": pl.String(), "l": pl.List(pl.Int64),
}  # fmt: skip
FRAME = pl.DataFrame(
    {
        "i": [0, 1, -1, None, 3, 7, -(2**63), 2**63 - 1, 2**53 + 1, 100, -7, 5],
        "small": [0, 1, -128, 127, None, 3, -3, 100, 7, -7, 2, 5],
        "u": [0, 1, 2**32 - 1, 3, 4, None, 7, 9, 100, 300, 5, 2],
        "x": [0.0, -0.0, 1.0, 2.5, None, float("nan"), float("inf"), float("-inf"), 1e300, -3.7, 0.1, 3.0],
        "f": [0.5, None, -0.0, 0.1, 3.0, float("nan"), float("inf"), -3.3, 1e30, 2.5, 7.0, -1.0],
        "b": [True, False, None, True, False, None, True, False, None, True, False, True],
        "s": ["a", "", None, "b", "é", "z", "Z", "aa", "Ω", "10", "a", "\U0001f600"],
        "l": [[1], [], None, [1, None], [2, 3, 4], [], [1], [1], [1], [1], [1], None],
    },
    schema=TYPES,
)
Spelled = tuple[Any, ...]
"""An expression as nested tuples: the name of a method of `pl.Expr`, and what it is called with."""

numbers = st.sampled_from(["i", "small", "u", "x", "f"]).map(lambda name: ("col", name))
literals = st.builds(
    lambda value: ("lit", value),
    st.integers(-300, 300) | st.sampled_from([0.5, 3.5, 0.1, -0.0, 3.0, 1e10, 0.3]) | st.sampled_from([0, 1, 2, 3, 7]),
)
arithmetic = st.sampled_from(["__add__", "__sub__", "__mul__", "__truediv__"])
whole = st.sampled_from(["__floordiv__", "__mod__"])
comparisons = st.sampled_from(["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "is_between"])
unary = st.sampled_from(["abs", "neg", "floor", "ceil"])
casts = st.sampled_from(["Int8", "Int64", "Float32", "Float64", "UInt16"])
typed = st.tuples(st.just("cast"), literals, st.sampled_from(["Int64", "Float64"]))
"""Constants of a type; others take that of what the `when` that chooses them meets."""
texts = st.sampled_from(["a", "", "é"]).map(lambda text: ("lit", text))
compared = (
    st.tuples(comparisons, numbers, numbers | literals)
    | st.tuples(st.sampled_from(["__eq__", "__lt__", "__ge__"]), st.just(("col", "s")), texts)
    | st.tuples(st.sampled_from(["is_null", "is_not_null"]), numbers | st.just(("col", "l")))
    | st.tuples(st.sampled_from(["is_nan", "is_not_nan"]), st.sampled_from([("col", "x"), ("col", "f")]))
)
conditions = st.recursive(
    compared | st.just(("col", "b")),
    lambda inner: (
        st.tuples(st.sampled_from(["__and__", "__or__", "__xor__"]), inner, inner) | st.tuples(st.just("not_"), inner)
    ),
    max_leaves=4,
)
reckoned = st.recursive(
    numbers
    | st.just(("len", ("col", "l")))
    | st.tuples(whole, st.sampled_from([("col", "i"), ("col", "small")]), literals),
    lambda inner: (
        st.tuples(arithmetic, inner, inner | literals)
        | st.tuples(arithmetic, literals, inner)
        | st.tuples(unary, inner)
        | st.tuples(st.just("cast"), inner, casts)
        | st.tuples(st.just("fill_null"), inner, literals | inner)
        | st.tuples(st.just("when"), conditions, inner, inner | literals)
        | st.tuples(st.just("when"), conditions, typed, typed)
    ),
    max_leaves=4,
)


def spell(it: Spelled) -> pl.Expr:
    """The expression that is meant."""
    name, *rest = it
    if name in ("col", "lit"):
        return getattr(pl, name)(*rest)  # type: ignore[no-any-return]
    if name == "cast":
        return spell(rest[0]).cast(getattr(pl, rest[1]), strict=False)
    inner = [spell(x) for x in rest]
    if name == "when":
        return pl.when(inner[0]).then(inner[1]).otherwise(inner[2])
    if name == "len":
        return inner[0].list.len()
    if name == "is_between":
        return inner[0].is_between(inner[1], inner[1] + 5, closed="left")
    return getattr(inner[0], name)(*inner[1:])  # type: ignore[no-any-return]


def check(expr: pl.Expr) -> None:
    """Fail where the plain form, if there is one, or a larger frame gives something else than Polars of each row."""
    tree = expressions.to_tree(expr)
    try:
        raw = _in_parts(expr, 1)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return  # such as the negative of an unsigned number: no workflow has it
    form = expressions.from_tree(steady(tree, TYPES, where="here"))
    want = _in_parts(form, 1)
    if "f" not in expressions.columns_of(tree):  # the type in which a constant meets Float32 depends on what is around
        assert want == raw, str(expr)
    for size in (5, len(FRAME)):
        assert _in_parts(form, size) == want, str(expr)
    if (run := plain_form(tree, TYPES)) is not None:
        assert [bits(run(row)) for row in FRAME.to_dicts()] == want, str(expr)


def _in_parts(expr: pl.Expr, size: int) -> list[Any]:
    return [bits(x) for part in FRAME.iter_slices(size) for x in part.with_columns(y=expr)["y"].to_list()]


@given(conditions)
@settings(max_examples=100, deadline=None)
def test_conditions(condition: Spelled) -> None:
    check(spell(condition))


@given(reckoned)
@settings(max_examples=100, deadline=None)
def test_numbers(number: Spelled) -> None:
    check(spell(number))


@pytest.mark.parametrize(
    "expr",
    [
        pl.col("x") > 3,
        (pl.col("i") * 0.1 > 0.25).cast(pl.Int8),
        pl.when(pl.col("x").is_null()).then(0.0).otherwise(pl.col("x") / 7),
        pl.col("x").fill_null(3).floor().cast(pl.Int64, strict=False) % 7,
        (pl.col("s") == "a") & ~pl.col("b") | pl.col("i").is_between(1, 5),
        pl.col("l").list.len() >= 2,
        1 / pl.col("x"),
        pl.col("i").is_in([1, 7, -7, 2**40]),
        pl.col("small").is_in(pl.Series([1, 300, 7])),
        pl.col("s").is_in(["a", "é"]),
    ],
    ids=str,
)
def test_usual_expressions_have_a_plain_form(expr: pl.Expr) -> None:
    assert plain_form(expressions.to_tree(expr), TYPES) is not None
    check(expr)


@pytest.mark.parametrize(
    "expr",
    [
        pl.col("s").str.to_uppercase(),
        pl.col("x").log(),
        pl.col("l").list.eval(pl.element() + 1),
        pl.col("x").is_in([1.0]),
    ],
    ids=str,
)
def test_others_have_none(expr: pl.Expr) -> None:
    assert plain_form(expressions.to_tree(expr), TYPES) is None


def test_a_strict_cast_that_fails_is_an_error() -> None:
    run = plain_form(expressions.to_tree(pl.col("i").cast(pl.Int8)), TYPES)
    assert run is not None
    with pytest.raises(ValueError, match="300 does not fit Int8"):
        run({"i": 300})


def test_an_integer_that_the_column_cannot_hold_is_an_error() -> None:
    run = plain_form(expressions.to_tree(pl.col("i") + 1), TYPES)
    assert run is not None
    assert run({"i": 2**63 - 1}) == -(2**63)
    for value in (2**63, 1.5):
        with pytest.raises(ValueError, match="does not fit Int64"):
            run({"i": value})
