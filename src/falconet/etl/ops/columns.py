"""LambdaOp: a function of a column, as an expression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from falconet.errors import ConfigError
from falconet.etl import expressions
from falconet.etl.op import OPS, ColumnOp, freeze
from falconet.schema import Column, Tag


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class LambdaOp(ColumnOp):
    """A function of a Polars expression, called once when the graph is built; the expression is what is kept.

    It must be elementwise: no sums, no shifts, no Python functions inside. Nulls: whatever the expression does.

    >>> print(LambdaOp(lambda col: (col > 3).cast(pl.Int8)).f)
    [(col("__column__")) > (dyn int: 3)].strict_cast(Int8)
    """

    f: Callable[[pl.Expr], pl.Expr] | pl.Expr = field(kw_only=False, compare=False)
    tree: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        tree = expressions.to_tree(expressions.call(self.f, pl.col(expressions.HERE), where="LambdaOp"))
        others = [name for name in expressions.columns_of(tree) if name != expressions.HERE]
        if others:
            raise ConfigError(
                f"LambdaOp reads `{others[0]}` beside its own column", hint="its function sees one column, its argument"
            )
        freeze(self, tree=tree, f=expressions.from_tree(tree))

    def expr(self, x: pl.Expr, column: Column) -> pl.Expr:
        here = expressions.to_tree(x)
        return expressions.from_tree(expressions.substitute(self.tree, {expressions.HERE: here}))

    def describe(self, column: Column) -> Column:
        tags = column.tags - {Tag.CATEGORICAL, Tag.CONTINUOUS}
        if column.dtype.startswith("float") and not tags & {Tag.ID, Tag.EMBEDDING, Tag.TARGET}:
            tags |= {Tag.CONTINUOUS}
        return replace(column, tags=tags, cardinality=None, oov=None, domain=None, min=None, max=None, nullable=True)
