"""Polars expressions as data: written as JSON, walked against an allow-list before Polars sees them.

A function a user gives is called once, when the graph is built, and only its expression is kept. What is on the list is
elementwise (a row's value never depends on other rows, hence not on how the data was cut) and holds no code.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import polars as pl

from falconet.errors import ConfigError

Tree = Any
"""Polars' JSON of an expression, read."""

HERE = "__column__"
"""What stands for the operator's own column in the expression of a LambdaOp."""

_NODES = {"Column", "Literal", "BinaryExpr", "Cast", "Ternary", "Function", "Alias", "Eval"}
IN_LISTS = ("Agg", "Filter", "Sort", "SortBy", "Slice")  # inside `list.eval` the rows are one row's elements
_FAMILIES = {"StringExpr", "ListExpr", "ArrayExpr", "TemporalExpr", "Boolean", "Pow", "Trigonometry", "Bitwise"}
_FUNCTIONS = {
    "Abs", "Atan2", "Cbrt", "Ceil", "Clip", "Coalesce", "Cosh", "Cot", "Cut", "Degrees", "Exp", "Expm1", "FillNull",
    "Floor", "Hypot", "Log", "Log1p", "MaxHorizontal", "MeanHorizontal", "MinHorizontal", "Negate", "Radians",
    "Replace", "ReplaceStrict", "Round", "RoundSF", "Sign", "Sqrt", "SumHorizontal", "Truncate",
}  # fmt: skip
WHOLE_COLUMN = {"Any", "All", "AllHorizontalAgg", "IsDuplicated", "IsFirstDistinct", "IsLastDistinct", "IsUnique"}
WHOLE_COLUMN |= {"ConcatVertical", "HasNulls", "IsEmpty", "IsSorted", "And", "Or", "Xor"}  # bits of all rows
_TAKES_SETS = {"IsIn", "Replace", "ReplaceStrict", "ContainsAny", "ExtractMany", "FindMany", "ReplaceMany"}
"""Functions whose second and third argument may be a series: values to look for, not one for each row."""
_REASONS = {
    "AnonymousFunction": "it calls a Python function, which cannot be saved",
    "AnonymousAgg": "it calls a Python function, which cannot be saved",
    "FfiPlugin": "it calls a plug-in, which cannot be saved",
    "Agg": "it depends on other rows, so its values would depend on how the data is cut",
    "Over": "it depends on other rows, so its values would depend on how the data is cut",
    "Len": "it depends on other rows, so its values would depend on how the data is cut",
}
_WAY_OUT = (
    "write it with Polars expressions of the row alone (arithmetic, comparisons, pl.when, replace_strict, .str, .list, "
    ".dt), use a statistical operator such as Normalize, or compute the column before the workflow"
)


class ForbiddenError(ValueError):
    """An expression that is not on the list, with the node's name and the reason."""


def to_tree(expr: pl.Expr) -> Tree:
    """The expression as data. Raises ConfigError with the way out where it is not on the list."""
    tree = json.loads(_serialize(expr))
    try:
        walk(tree)
    except ForbiddenError as error:
        raise ConfigError(f"this expression cannot be used in a workflow: {error}", hint=_WAY_OUT) from None
    return tree


def from_tree(tree: Tree) -> pl.Expr:
    """The expression of a tree, which is walked first. Raises ForbiddenError, or Polars' own error."""
    walk(tree)
    expr = _parse(tree)
    if json.loads(_serialize(expr)) == tree:
        return expr
    exact = _exact(tree)
    expr = _parse(exact)
    if json.loads(_serialize(expr)) != exact:
        raise ForbiddenError("Polars reads it differently from how it was written")
    return expr


def walk(tree: Tree, *, in_list: bool = False) -> None:
    """Raise ForbiddenError unless every node is on the list."""
    if tree in ("Element", "Len"):
        if not in_list:
            raise ForbiddenError(f"`{tree}`: {_REASONS.get(tree, 'it has no meaning outside a list')}")
        return
    if not isinstance(tree, dict) or len(tree) != 1:
        raise ForbiddenError(f"`{str(tree)[:60]}` is no known node")
    ((kind, body),) = tree.items()
    allowed = _NODES.union(IN_LISTS) if in_list else _NODES
    if kind not in allowed:
        raise ForbiddenError(f"`{kind}`: {_REASONS.get(kind, 'it is not a plain function of the row')}")
    if kind == "Literal":
        if "Series" in body:
            raise ForbiddenError("a series beside the column has a value for each row of one frame only")
        if any(value is None for value in named(body, ("Float", "Float32", "Float64"))):
            raise ForbiddenError("a literal NaN or infinity cannot be saved")
        if any(True for _ in named(body, ("Object",))):
            raise ForbiddenError("a literal Python object cannot be saved")
        return
    if kind == "Column":
        if not isinstance(body, str):
            raise ForbiddenError("a column is named by a string")
        if in_list:
            raise ForbiddenError("a column inside a list is of other rows than the list")
        return
    if kind == "Function":
        _walk_function(body, in_list=in_list)
        return
    if kind == "Eval":
        if "Cumulative" in body["variant"]:
            raise ForbiddenError(f"`cumulative_eval`: {_REASONS['Agg']}")
        walk(body["expr"], in_list=in_list)
        walk(body["evaluation"], in_list=True)
        return
    if kind == "Alias":
        walk(body[0], in_list=in_list)
        return
    for child in children(body):
        walk(child, in_list=in_list)


def _walk_function(body: Tree, *, in_list: bool) -> None:
    name, member = function_of(body)
    if name in _FAMILIES:
        if member == "Sample":
            raise ForbiddenError("`Sample` gives other values each time")
        if member in WHOLE_COLUMN and not in_list:
            raise ForbiddenError(f"`{member}`: {_REASONS['Agg']}")
        if member == "Strptime" and None in named(body["function"], ("format",)):
            raise ForbiddenError("`Strptime` without a format guesses it from the first row")
    elif name not in _FUNCTIONS:
        raise ForbiddenError(f"`{name}`: {_REASONS.get(name, 'it is not a plain function of the row')}")
    for place, child in enumerate(body["input"]):
        if not (place in (1, 2) and member in _TAKES_SETS and _is_series(child)):
            walk(child, in_list=in_list)


def function_of(body: Tree) -> tuple[str, str]:
    """The family and the name of a function; the two are one where it belongs to none."""
    function = body["function"]
    name: str = function if isinstance(function, str) else next(iter(function))
    if name not in _FAMILIES:
        return name, name
    inner = function[name]
    return name, inner if isinstance(inner, str) else next(iter(inner))


def values_of(tree: Tree) -> pl.Series | None:
    """The values of a literal list or series, which a function looks for; None for other nodes."""
    if not isinstance(tree, dict) or set(tree) != {"Literal"}:
        return None
    found = pl.select(_parse(tree).alias("values"))["values"]
    return found.explode() if isinstance(found.dtype, pl.List) else found


def _is_series(tree: Tree) -> bool:
    return isinstance(tree, dict) and set(tree) == {"Literal"} and set(tree["Literal"]) == {"Series"}


def children(body: Tree) -> Iterator[Tree]:
    """The expressions below a node; settings (operators, types) are skipped."""
    settings = {"op", "dtype", "options", "sort_options"}
    if isinstance(body, list):
        for item in body:
            yield from children(item) if not _is_node(item) else (item,)
        return
    if not isinstance(body, dict):
        return
    for key, value in body.items():
        if key in settings:
            continue
        if _is_node(value):
            yield value
        else:
            yield from children(value)


def _is_node(value: Tree) -> bool:
    if isinstance(value, str):
        return value in ("Element", "Len")
    return isinstance(value, dict) and len(value) == 1 and next(iter(value))[:1].isupper()


def named(tree: Tree, names: tuple[str, ...]) -> Iterator[Any]:
    """What stands under these keys, anywhere in a tree."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key in names:
                yield value
            yield from named(value, names)
    elif isinstance(tree, list) and not (tree and isinstance(tree[0], int)):  # bytes of an Arrow series
        for value in tree:
            yield from named(value, names)


def substitute(tree: Tree, names: Mapping[str, Tree]) -> Tree:
    """The tree with columns replaced by other trees."""
    if isinstance(tree, dict):
        if set(tree) == {"Column"} and tree["Column"] in names:
            return names[tree["Column"]]
        return {key: value if key == "Literal" else substitute(value, names) for key, value in tree.items()}
    return [substitute(value, names) for value in tree] if isinstance(tree, list) else tree


def columns_of(tree: Tree) -> tuple[str, ...]:
    """The names of the columns an expression reads, in order of appearance."""
    found = [name for name in named(tree, ("Column",)) if isinstance(name, str)]
    return tuple(dict.fromkeys(found))


def type_made(expr: pl.Expr, types: Mapping[str, pl.DataType]) -> pl.DataType:
    """The type of what an expression makes of columns of these types: what it really makes of nulls, since a plan's
    schema says another type where a constant is divided by Float32.
    """
    nulls = pl.DataFrame({name: [None, None] for name in types}, schema=dict(types))
    return nulls.select(expr.alias("made"))["made"].dtype


class Columns:
    """The columns of a row as expressions, for a function that a user gives: `row["rating"]`."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __getitem__(self, name: str) -> pl.Expr:
        return pl.col(name)

    def __getattr__(self, name: str) -> pl.Expr:
        raise ConfigError(f"{self._where}'s function asks for `.{name}`", hint=f'a column is `row["{name}"]`')


def call(function: Callable[[Any], Any] | pl.Expr, argument: Any, *, where: str) -> pl.Expr:
    """The expression a user's function gives for `argument`. Raises ConfigError where it gives none."""
    if isinstance(function, pl.Expr):
        return function
    if not callable(function):
        raise ConfigError(f"{where} needs a function of a Polars expression, not {function!r}")
    result = function(argument)
    if not isinstance(result, pl.Expr):
        raise ConfigError(
            f"the function of {where} gives {type(result).__name__}, not a Polars expression", hint=_WAY_OUT
        )
    return result


def _serialize(expr: pl.Expr) -> str:
    return expr.meta.serialize(format="json")


def _parse(tree: Tree) -> pl.Expr:
    return pl.Expr.deserialize(io.StringIO(json.dumps(tree)), format="json")


def _exact(tree: Tree) -> Tree:
    """The tree with literal floats, which Polars' JSON reader may round, as products that it reads exactly."""
    if isinstance(tree, list):
        return [_exact(value) for value in tree]
    if not isinstance(tree, dict):
        return tree
    if set(tree) == {"Literal"}:
        ((form, body),) = tree["Literal"].items() if isinstance(tree["Literal"], dict) else (("", None),)
        if isinstance(body, dict) and isinstance(value := next(iter(body.values())), float):
            return _spell(value, lambda x: {"Literal": {form: {next(iter(body)): x}}})
        return tree
    return {key: _exact(value) for key, value in tree.items()}


def _spell(value: float, literal: Callable[[int | float], Tree]) -> Tree:
    """`value` as integer x 2^k x ...: integers below 2^53 and powers from 2^-22 to 2^63 are read exactly."""
    fraction, exponent = math.frexp(value)
    number, exponent = fraction * 2.0**53, exponent - 53
    while number and number % 2 == 0:
        number, exponent = number / 2, exponent + 1
    tree = literal(int(number))  # digits without ".0", which the reader would count as one more digit
    while exponent:
        step = max(-22, min(62, exponent))
        tree = {"BinaryExpr": {"left": tree, "op": "Multiply", "right": literal(2**step)}}
        exponent -= step
    return tree
