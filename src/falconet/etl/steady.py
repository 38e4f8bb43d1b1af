"""Expressions whose values do not depend on how many rows they see.

Polars takes for a constant whatever has one value in the frame at hand: a literal, a `when` no row of which holds, the
column of a hive folder. With a constant it reckons otherwise than with a column, except in a frame of one row: `x / c`
is `x * (1 / c)`, `49 // 49` is 0, minus zero plus zero stays minus zero. Values would then depend on the cut of the
data. Here what may be a constant is made a column before a float is divided or added to. The sum of a list is that of
its elements in their order, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce

import polars as pl

from falconet.errors import SchemaError
from falconet.etl import expressions
from falconet.etl.expressions import Tree
from falconet.etl.types import element

_OPERATORS = ("TrueDivide", "FloorDivide", "Modulus", "Plus", "Minus")
_FUNCTIONS = ("SumHorizontal", "MeanHorizontal")
_LISTS = {"ListExpr": "ListAgg", "ArrayExpr": "ArrayAgg"}
"""What the functions of lists and arrays are called, and what an aggregation of their elements is."""


def steady(tree: Tree, types: Mapping[str, pl.DataType], *, where: str) -> Tree:
    """The expression for columns of these types, so that each value is the one that its row has in a frame of its own.

    Raises SchemaError for a float to the power of a column, which Polars reckons otherwise in a frame of one row.
    """
    return _made(json.dumps(tree), tuple(types.items()), where)


@lru_cache(maxsize=256)
def _made(text: str, types: tuple[tuple[str, pl.DataType], ...], where: str) -> Tree:
    """The same once for each expression: asking Polars for the type of every node takes milliseconds."""
    return _Steady(dict(types), where, lambda inner: inner).of(json.loads(text))


@dataclass(frozen=True)
class _Steady:
    types: Mapping[str, pl.DataType]
    where: str
    around: Callable[[Tree], Tree]
    """What stands around an expression of a list's elements, for one of all of them."""
    depth: int = 0
    """In how many lists it stands."""

    def of(self, tree: Tree) -> Tree:
        if isinstance(tree, list):
            return [self.of(one) for one in tree]
        if not isinstance(tree, dict) or set(tree) == {"Literal"}:
            return tree
        if set(tree) == {"Eval"}:
            return {"Eval": self._eval(tree["Eval"])}
        made = {key: self.of(value) for key, value in tree.items()}
        if set(tree) == {"BinaryExpr"}:
            return {"BinaryExpr": self._binary(tree, made["BinaryExpr"])}
        return self._function(tree["Function"], made) if set(tree) == {"Function"} else made

    def _eval(self, body: Tree) -> Tree:
        def around(inner: Tree) -> Tree:
            of_lists = {"Array": {"as_list": True}} if isinstance(body["variant"], dict) else "List"
            return self.around({"Eval": {**body, "evaluation": inner, "variant": of_lists}})

        own = _Steady(self.types, self.where, around, self.depth + 1)
        return {**body, "expr": self.of(body["expr"]), "evaluation": own.of(body["evaluation"])}

    def _binary(self, was: Tree, made: Tree) -> Tree:
        left, name, right = was["BinaryExpr"]["left"], made["op"], was["BinaryExpr"]["right"]
        dtype = self._type(was) if name in _OPERATORS else None
        leaf = None if dtype is None else element(dtype)
        if leaf is None or not (leaf.is_float() or (leaf == pl.Duration and name == "TrueDivide")):
            return made
        columns = _columns([left, right])
        left, right = (
            self._spread(one, by, columns, leaf) for one, by in ((left, made["left"]), (right, made["right"]))
        )
        return {"left": left, "op": name, "right": right}

    def _function(self, was: Tree, made: Tree) -> Tree:
        (function, member), inputs = expressions.function_of(was), was["input"]
        if function in _LISTS and member in ("Sum", "Mean"):
            return self._of_elements(function, member, was, made)
        if function == "Pow" and len(inputs) == 2 and _columns([inputs[1]]):
            self._refuse_power(was)
        if function not in _FUNCTIONS:
            return made
        dtype, own = self._type({"Function": was}), [self._type(one) for one in inputs]
        if dtype is None or not dtype.is_float() or not any(one is not None and one.is_float() for one in own):
            return made
        columns = _columns(inputs)
        pairs = zip(inputs, made["Function"]["input"], strict=True)
        spread = [self._spread(one, by, columns, dtype) for one, by in pairs]
        return {"Function": {**made["Function"], "input": spread}}

    def _of_elements(self, family: str, member: str, was: Tree, made: Tree) -> Tree:
        """Polars adds the floats of a list in another order where some other list has a null, but not so here."""
        dtype = self._type({"Function": was})
        if dtype is None or not dtype.is_float():
            return made
        (lists,) = made["Function"]["input"]
        return {"Eval": {"expr": lists, "evaluation": {"Agg": {member: "Element"}}, "variant": _LISTS[family]}}

    def _refuse_power(self, body: Tree) -> None:
        dtype = self._type({"Function": body})
        if dtype is not None and element(dtype).is_float():
            raise SchemaError(
                f"{self.where}: a float to the power of a column has other last digits in a frame of one row",
                hint="take a constant exponent, or write `(x.log() * y).exp()`",
            )

    def _spread(self, was: Tree, made: Tree, columns: list[Tree], leaf: pl.DataType) -> Tree:
        """The same values, in as many rows as the columns have: multiplied with a one for each row."""
        dtype = self._type(was)
        if not columns or columns == [was] or dtype is None:
            return made
        one: pl.DataType = leaf
        if element(dtype) == pl.Duration:
            one = pl.Int64()
        elif leaf == pl.Duration:
            if not element(dtype).is_float():
                return made  # whole numbers divide a duration exactly
            one = pl.Float64()
        elif element(dtype) != leaf:
            made = _cast(made, pl.List(leaf) if dtype.is_nested() else leaf)
        return _binary(made, "Multiply", _cast(reduce(lambda a, b: _binary(a, "Or", b), map(_true, columns)), one))

    def _type(self, tree: Tree) -> pl.DataType | None:
        """The type of a node; None where Polars cannot tell, and will say why."""
        try:
            found = expressions.type_made(expressions.from_tree(self.around(tree)), self.types)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
            return None
        for _ in range(self.depth):
            found = element(found)
        return found


def _columns(trees: list[Tree]) -> list[Tree]:
    """What has a value for each row, of that which the expressions are made of."""
    found: list[Tree] = []
    for tree in trees:
        found.extend(one for one in _found(tree) if one not in found)
    return found


def _found(tree: Tree) -> Iterator[Tree]:
    if tree in ("Element", "Len"):
        yield tree
    if not isinstance(tree, dict) or "Literal" in tree:
        return
    ((kind, body),) = tree.items()
    is_whole = kind == "Function" and expressions.function_of(body)[1] in expressions.WHOLE_COLUMN
    if kind == "Column" or kind in expressions.IN_LISTS or is_whole:  # in lists these have a length of their own
        yield tree
    elif kind == "Eval":
        yield from _found(body["expr"])
    else:
        for child in expressions.children(body):
            yield from _found(child)


def _true(column: Tree) -> Tree:
    """True in each row of a column."""
    checks = [{"Function": {"input": [column], "function": {"Boolean": name}}} for name in ("IsNull", "IsNotNull")]
    return _binary(checks[0], "Or", checks[1])


def _binary(left: Tree, name: str, right: Tree) -> Tree:
    return {"BinaryExpr": {"left": left, "op": name, "right": right}}


def _cast(tree: Tree, dtype: pl.DataType) -> Tree:
    return expressions.substitute(expressions.to_tree(pl.col("x").cast(dtype)), {"x": tree})
