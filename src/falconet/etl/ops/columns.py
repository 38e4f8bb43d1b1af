"""LambdaOp: a function of a column, and of the columns beside it, as an expression."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from falconet.errors import ConfigError, DataError, SchemaError
from falconet.etl import expressions
from falconet.etl.describe import forget_values, properties_of, tagged, tags_of
from falconet.etl.interpret import plain_form
from falconet.etl.op import OPS, FrameOp, Group, freeze
from falconet.etl.rowwise import OnRow, Row
from falconet.etl.selector import Node, names_of
from falconet.etl.steady import steady
from falconet.etl.types import column_of, polars_type
from falconet.schema import Column, Tag


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class LambdaOp(FrameOp):
    """A function of a Polars expression, called once when the graph is built; the expression is what is kept.

    `f(col)` sees one column, `f(col, row)` others too: `row["price"]`. Those it reads need not be selected;
    `dependency` says where they come from if they are columns of another node, and limits what may be read. `dtype` is
    the type of the result ("float32", pl.Float32; of the elements of lists), `tags` and `properties` what the schema
    says of it, `label` the operator's name in messages. The function must be elementwise: no sums, no shifts, no Python
    functions inside. Nulls and lists: whatever the expression does. Floats are divided one by one, not multiplied with
    one over a constant, so that a value never depends on the rows beside it.

    >>> print(LambdaOp(lambda col: (col > 3).cast(pl.Int8)).f)
    [(col("__column__")) > (dyn int: 3)].strict_cast(Int8)
    """

    f: Callable[..., pl.Expr] | pl.Expr = field(kw_only=False, compare=False)
    dependency: Any = ()
    dtype: Any = None
    label: str = ""
    tags: str | Sequence[str] = ()
    properties: Mapping[str, Any] = field(default_factory=dict)
    tree: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        here = pl.col(expressions.HERE)
        tree = expressions.to_tree(expressions.call(_of_row(self.f), here, where="LambdaOp"))
        given = (self.dependency,) if isinstance(self.dependency, (str, Node)) else tuple(self.dependency)
        freeze(
            self,
            tree=tree,
            f=expressions.from_tree(tree),
            dependency=given,
            dtype=None if self.dtype is None else _type_name(self.dtype),
            tags=tags_of(self.tags),
            properties=properties_of(self.properties, where="LambdaOp"),
        )
        if given:
            for name in self._beside:
                if name not in names_of(given):
                    raise ConfigError(
                        f"LambdaOp reads `{name}`, which is not among its dependencies {', '.join(names_of(given))}"
                    )

    @property
    def title(self) -> str:
        return f"LambdaOp {self.label}" if self.label else "LambdaOp"

    @property
    def also(self) -> tuple[str | Node, ...]:
        return self.dependency or self._beside

    @property
    def _beside(self) -> tuple[str, ...]:
        return tuple(name for name in expressions.columns_of(self.tree) if name != expressions.HERE)

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        beside = tuple(name for name in self._beside if name in columns)
        return {name: tuple(dict.fromkeys((name, *beside))) for name in columns}

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        types = frame.select(*columns, *(name for name in self._beside if name not in columns)).collect_schema()
        trees = {name: steady(self._tree(name), types, where=f"`{self.title}` on `{name}`") for name in columns}
        return frame.with_columns(self._typed(tree, types).alias(name) for name, tree in trees.items())

    def describe(self, inputs: Mapping[str, Column], outputs: Mapping[str, Column]) -> Mapping[str, Column]:
        return {name: self._described(column) for name, column in outputs.items()}

    def _described(self, column: Column) -> Column:
        tags = column.tags - {Tag.CATEGORICAL, Tag.CONTINUOUS}
        if column.dtype.startswith("float") and not tags & {Tag.ID, Tag.EMBEDDING, Tag.TARGET}:
            tags |= {Tag.CONTINUOUS}
        column = tagged(forget_values(replace(column, tags=tags)), tags_of(self.tags))
        return replace(column, **self.properties)

    def on_row(self, names: Group, columns: Mapping[str, Column]) -> OnRow | None:
        types = {name: polars_type(column) for name, column in columns.items()}
        trees = {name: expressions.to_tree(self._typed(self._tree(name), types)) for name in names}
        made = [(name, run) for name, tree in trees.items() if (run := plain_form(tree, types)) is not None]
        if len(made) != len(names):
            return None

        def apply(values: Row) -> Row:
            try:
                return {name: run(values) for name, run in made}
            except ValueError as error:
                raise DataError(f"`{self.title}` cannot use {values}: {error}") from error

        return apply

    def _tree(self, name: str) -> expressions.Tree:
        """The expression of a column."""
        return expressions.substitute(self.tree, {expressions.HERE: {"Column": name}})

    def _typed(self, tree: expressions.Tree, types: Mapping[str, pl.DataType]) -> pl.Expr:
        """An expression of columns of these types, and of the type that was asked for."""
        made = expressions.from_tree(tree)
        found = expressions.type_made(made, types)
        if self.dtype is None:
            claimed = pl.LazyFrame(schema=dict(types)).select(made.alias("made")).collect_schema()["made"]
            return made if found == claimed else made.cast(found)
        return made.cast(polars_type(Column(name="made", dtype=self.dtype, list=column_of("made", found).list)))


def _of_row(f: Any) -> Any:
    """A user's function as one of the column alone."""
    if isinstance(f, pl.Expr) or not callable(f):
        return f
    asked = [p for p in inspect.signature(f).parameters.values() if p.default is p.empty and p.kind in _PLACES]
    return f if len(asked) < 2 else lambda col: f(col, expressions.Columns("LambdaOp"))


def _type_name(dtype: Any) -> str:
    """A type by its schema name. Raises ConfigError for one that a column cannot have."""
    try:
        if isinstance(dtype, str):
            polars_type(Column(name="dtype", dtype=dtype))
            return dtype
        return column_of("dtype", dtype if isinstance(dtype, pl.DataType) else dtype()).dtype
    except (SchemaError, TypeError):
        raise ConfigError(f"LambdaOp dtype={dtype!r}", hint='a Polars type, or a name such as "float32"') from None


_PLACES = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
