"""An expression as a plain Python function of one row, for the nodes that most conditions and labels are made of.

Types are Polars' own: every node's type, and the type two operands meet in, is what Polars says of the very expression.
The values then follow its rules: integers wrap, Float32 is rounded after every step, NaN equals itself and is above all
numbers, a null makes a null, `and` and `or` know three values. A property test holds them to it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

from falconet.etl import expressions
from falconet.etl.expressions import Tree
from falconet.etl.op import float32
from falconet.etl.rowwise import Row
from falconet.etl.types import bounds

Run = Callable[[Row], Any]


class _UnknownError(Exception):
    """A node, or a type, that has no plain form."""


def plain_form(tree: Tree, types: Mapping[str, pl.DataType]) -> Run | None:
    """The function, or None where some node has no plain form. It raises ValueError where a strict cast fails."""
    try:
        return _Compiler(types).run(tree)
    except _UnknownError:
        return None


class _Compiler:
    def __init__(self, types: Mapping[str, pl.DataType]) -> None:
        self._types = types

    def run(self, tree: Tree) -> Run:
        """The function of a node."""
        if not expressions.columns_of(tree):
            return _constant(_evaluate(expressions.from_tree(tree)))
        ((kind, body),) = tree.items()
        if kind == "Column":
            return _integer(body, self._types[body]) if self._types[body].is_integer() else operator.itemgetter(body)
        if kind == "Alias":
            return self.run(body[0])
        if kind == "BinaryExpr":
            return self._binary(tree, body["op"], body["left"], body["right"])
        if kind == "Ternary":
            dtype = self._type(tree)
            condition = self._as(body["predicate"], pl.Boolean())
            return _chosen(condition, self._as(body["truthy"], dtype), self._as(body["falsy"], dtype))
        if kind == "Cast":
            return self._cast(tree, body)
        if kind == "Function":
            return self._function(tree, body["function"], body["input"])
        raise _UnknownError

    def _type(self, tree: Tree) -> pl.DataType:
        return self._made(expressions.from_tree(tree))

    def _meeting(self, left: Tree, right: Tree) -> pl.DataType:
        """The type in which two operands are compared or reckoned with."""
        met = pl.when(True).then(expressions.from_tree(left)).otherwise(expressions.from_tree(right))
        return self._made(met)

    def _made(self, expr: pl.Expr) -> pl.DataType:
        try:
            return expressions.type_made(expr, self._types)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
            raise _UnknownError from None

    def _as(self, tree: Tree, dtype: pl.DataType) -> Run:
        """The function of a node whose values are widened to another type."""
        if not expressions.columns_of(tree):
            try:
                return _constant(_evaluate(expressions.from_tree(tree).cast(dtype)))
            except pl.exceptions.InvalidOperationError:
                raise _UnknownError from None
        own, run = self._type(tree), self.run(tree)
        if own == dtype:
            return run
        whole = own.is_integer() or own == pl.Boolean
        if own.is_integer() and dtype.is_integer() and not _within(bounds(own), bounds(dtype)):
            raise _UnknownError  # constants that a `when` chooses: Polars gives them the type of what they meet
        if whole and dtype.is_integer():
            return _known(int, run) if own == pl.Boolean else run
        if dtype == pl.Float64 and whole:
            return _known(float, run)
        if dtype == pl.Float32 and own in (pl.Boolean, pl.Int8, pl.Int16, pl.UInt8, pl.UInt16):
            return _known(float, run)
        if dtype == pl.Float64 and own == pl.Float32:
            return run
        raise _UnknownError

    def _binary(self, tree: Tree, name: str, left: Tree, right: Tree) -> Run:
        if name in ("And", "Or", "Xor"):
            if self._type(left) != pl.Boolean or self._type(right) != pl.Boolean:
                raise _UnknownError
            return _LOGIC[name](self.run(left), self.run(right))
        if name in _ORDER:
            dtype = self._meeting(left, right)
            if not (_reckons(dtype) or dtype in (pl.Boolean, pl.String)):
                raise _UnknownError
            compare = _FLOAT_ORDER[name] if dtype.is_float() else _ORDER[name]
            return _both(compare, self._as(left, dtype), self._as(right, dtype))
        dtype = self._type(tree)
        if not _reckons(dtype):
            raise _UnknownError
        if name not in _ARITHMETIC or (dtype.is_float() and name in ("FloorDivide", "Modulus")):
            raise _UnknownError
        return _both(_held(_ARITHMETIC[name], dtype), self._as(left, dtype), self._as(right, dtype))

    def _cast(self, tree: Tree, body: Tree) -> Run:
        own, dtype, run = self._type(body["expr"]), self._type(tree), self.run(body["expr"])
        if body["options"] not in ("Strict", "NonStrict"):
            raise _UnknownError
        if own == dtype:
            return run
        strict = body["options"] == "Strict"
        if own == pl.Boolean and _reckons(dtype):
            return _known(float if dtype.is_float() else int, run)
        if own.is_integer() and dtype == pl.String:
            return _known(str, run)
        if not (_reckons(own) and _reckons(dtype)):
            raise _UnknownError
        if dtype == pl.Float64:
            return _known(float, run)
        if dtype == pl.Float32:
            return _known(float32, run) if own.is_float() else _known(_nearest_float32, run)
        least, most = bounds(dtype)

        def cut(x: float) -> int | None:
            whole = None if math.isnan(x) or math.isinf(x) else int(x)
            if whole is not None and least <= whole <= most:
                return whole
            if strict:
                raise ValueError(f"{x} does not fit {dtype}")
            return None

        return _known(cut, run)

    def _function(self, tree: Tree, function: Tree, inputs: Tree) -> Run:
        family, member = function, ""
        if isinstance(function, dict):
            ((family, member),) = function.items()
        first = self._type(inputs[0]) if expressions.columns_of(inputs[0]) else None
        if first is None:
            raise _UnknownError
        run = self.run(inputs[0])
        if family == "Boolean" and isinstance(member, dict) and "IsIn" in member:
            return self._is_in(first, run, inputs[1], nulls_equal=member["IsIn"]["nulls_equal"])
        if family == "Boolean":
            return self._boolean(member, first, run, inputs)
        if family == "FillNull":
            dtype = self._type(tree)
            value, other = self._as(inputs[0], dtype), self._as(inputs[1], dtype)
            return lambda row: other(row) if (x := value(row)) is None else x
        if family == "ListExpr" and member == "Length" and isinstance(first, pl.List):
            return _known(len, run)
        if family == "StringExpr" and member == "LenChars":
            return _known(len, run)
        if family in ("Abs", "Negate") and _reckons(first) and not first.is_unsigned_integer():
            return _known(_held(abs if family == "Abs" else operator.neg, first), run)
        if family in ("Floor", "Ceil") and _reckons(first):
            return run if first.is_integer() else _known(_whole(math.floor if family == "Floor" else math.ceil), run)
        raise _UnknownError

    def _is_in(self, first: pl.DataType, run: Run, values: Tree, *, nulls_equal: bool) -> Run:
        found = expressions.values_of(values)
        if nulls_equal or found is None or found.null_count():
            raise _UnknownError
        if not (first.is_integer() and found.dtype.is_integer()) and not first == found.dtype == pl.String:
            raise _UnknownError
        wanted = frozenset(found.to_list())
        return _known(lambda x: x in wanted, run)

    def _boolean(self, member: Tree, first: pl.DataType, run: Run, inputs: Tree) -> Run:
        if member == "IsNull":
            return lambda row: run(row) is None
        if member == "IsNotNull":
            return lambda row: run(row) is not None
        if member == "Not" and first == pl.Boolean:
            return _known(operator.not_, run)
        if member in ("IsNan", "IsNotNan") and first.is_float():
            return _known((lambda x: x != x) if member == "IsNan" else (lambda x: x == x), run)
        if isinstance(member, dict) and "IsBetween" in member:
            closed = member["IsBetween"]["closed"]
            low = self._binary({}, "GtEq" if closed in ("Both", "Left") else "Gt", inputs[0], inputs[1])
            high = self._binary({}, "LtEq" if closed in ("Both", "Right") else "Lt", inputs[0], inputs[2])
            return _and(low, high)
        raise _UnknownError


def _within(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _reckons(dtype: pl.DataType) -> bool:
    return dtype.is_integer() or dtype in (pl.Float32, pl.Float64)


def _evaluate(expr: pl.Expr) -> Any:
    value = pl.select(expr.alias("x"))["x"]
    return value.item()


def _integer(name: str, dtype: pl.DataType) -> Run:
    """An integer of the row. Raises ValueError for what a column of the type could not hold."""
    least, most = bounds(dtype)

    def run(row: Row) -> int | None:
        x: int | None = row[name]
        if x is not None and not (isinstance(x, int) and least <= x <= most):
            raise ValueError(f"{x} does not fit {dtype}")
        return x

    return run


def _constant(value: Any) -> Run:
    return lambda row: value


def _known(function: Callable[[Any], Any], run: Run) -> Run:
    """A function of a value that is there."""
    return lambda row: None if (x := run(row)) is None else function(x)


def _both(function: Callable[[Any, Any], Any], left: Run, right: Run) -> Run:
    """A function of two values that are there."""

    def run(row: Row) -> Any:
        if (a := left(row)) is None or (b := right(row)) is None:
            return None
        return function(a, b)

    return run


def _chosen(condition: Run, yes: Run, no: Run) -> Run:
    return lambda row: yes(row) if condition(row) else no(row)


def _held(function: Callable[..., Any], dtype: pl.DataType) -> Callable[..., Any]:
    """The result as the type holds it: integers wrap, Float32 is rounded."""
    if dtype == pl.Float64:
        return function
    if dtype == pl.Float32:
        return lambda *values: float32(function(*values))
    least, most = bounds(dtype)

    def wrapped(*values: int) -> int | None:
        x: int | None = function(*values)
        return x if x is None or least <= x <= most else (x - least) % (most - least + 1) + least

    return wrapped


def _whole(function: Callable[[float], int]) -> Callable[[float], float]:
    """Floor or ceiling as a float; minus zero, NaN and infinities are their own."""
    return lambda x: x if x != x or math.isinf(x) else math.copysign(float(function(x)), x)


def _nearest_float32(x: int) -> float:
    """An integer rounded once."""
    if abs(x) < 2**53:
        return float32(float(x))
    return float(pl.Series([x], dtype=pl.Int128).cast(pl.Float32).item())


def _divide(a: float, b: float) -> float:
    if b:
        return a / b
    return math.nan if a != a or not a else math.copysign(math.inf, a) * math.copysign(1.0, b)


def _and(left: Run, right: Run) -> Run:
    def run(row: Row) -> bool | None:
        a, b = left(row), right(row)
        if a is False or b is False:
            return False
        return None if a is None or b is None else True

    return run


def _or(left: Run, right: Run) -> Run:
    def run(row: Row) -> bool | None:
        a, b = left(row), right(row)
        if a or b:
            return True
        return None if a is None or b is None else False

    return run


_LOGIC: dict[str, Callable[[Run, Run], Run]] = {
    "And": _and,
    "Or": _or,
    "Xor": lambda left, right: _both(operator.ne, left, right),
}
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Lt": operator.lt,
    "LtEq": operator.le,
    "Gt": operator.gt,
    "GtEq": operator.ge,
}
_FLOAT_ORDER: dict[str, Callable[[float, float], bool]] = {
    "Eq": lambda a, b: a == b or (a != a and b != b),
    "NotEq": lambda a, b: a != b and (a == a or b == b),
    "Lt": lambda a, b: a < b or (b != b and a == a),
    "LtEq": lambda a, b: a <= b or b != b,
    "Gt": lambda a, b: a > b or (a != a and b == b),
    "GtEq": lambda a, b: a >= b or a != a,
}
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "Plus": operator.add,
    "Minus": operator.sub,
    "Multiply": operator.mul,
    "TrueDivide": _divide,
    "FloorDivide": lambda a, b: a // b if b else None,
    "Modulus": lambda a, b: a % b if b else None,
}
