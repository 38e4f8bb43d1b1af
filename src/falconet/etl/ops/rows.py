"""Operators that drop rows: Filter, Dropna."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from falconet.errors import ColumnNotFoundError, DataError
from falconet.etl import expressions
from falconet.etl.interpret import plain_form
from falconet.etl.op import OPS, FrameOp, Group, Rows, freeze
from falconet.etl.rowwise import OnRow, Row
from falconet.etl.steady import steady
from falconet.etl.types import polars_type
from falconet.schema import Column


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class Filter(FrameOp):
    """The rows for which a condition holds; a null counts as no.

    The function gets the columns by name and is called once, when the graph is built. Lists may be asked about, too.

    >>> print(Filter(lambda row: row["rating"] > 3).f)
    [(col("rating")) > (dyn int: 3)]
    """

    f: Callable[[Any], pl.Expr] | pl.Expr = field(kw_only=False, compare=False)
    tree: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        tree = expressions.to_tree(expressions.call(self.f, expressions.Columns("Filter"), where="Filter"))
        freeze(self, tree=tree, f=expressions.from_tree(tree))

    @property
    def rows(self) -> Rows:
        return "fewer"

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        for name in expressions.columns_of(self.tree):
            if name not in columns:
                raise ColumnNotFoundError.of(name, columns, where="Filter")
        return {name: (name,) for name in columns}

    def reads(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        return expressions.columns_of(self.tree)

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        types = frame.select(expressions.columns_of(self.tree)).collect_schema()
        return frame.filter(expressions.from_tree(steady(self.tree, types, where="`Filter`")))

    def on_row(self, names: Group, columns: Mapping[str, Column]) -> OnRow | None:
        run = plain_form(self.tree, {name: polars_type(column) for name, column in columns.items()})
        if run is None:
            return None

        def keep(values: Row) -> Row | None:
            try:
                return values if run(values) else None
            except ValueError as error:
                raise DataError(f"`Filter` cannot use {values}: {error}") from error

        return keep


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class Dropna(FrameOp):
    """The rows in which none of the columns is null or NaN. An empty list, and one with nulls, is a value."""

    @property
    def rows(self) -> Rows:
        return "fewer"

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        types = frame.select(columns).collect_schema()
        present = [
            pl.col(name).is_not_null() & (pl.col(name).is_not_nan() if types[name].is_float() else True)
            for name in columns
        ]
        return frame.filter(pl.all_horizontal(present))

    def on_row(self, names: Group, columns: Mapping[str, Column]) -> OnRow:
        def keep(values: Row) -> Row | None:
            return None if any(value is None or value != value for value in values.values()) else values

        return keep
