"""Operators of one column: LambdaOp, FillMissing, AddTags, Rename."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from falconet.errors import ConfigError, SchemaError
from falconet.etl import expressions
from falconet.etl.op import OPS, ColumnOp, FrameOp, as_tuple, float32, freeze
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


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class FillMissing(FrameOp):
    """`fill_val` in place of nulls and NaN; in lists in place of null elements, and null lists become empty.

    The type of the column stays: a value that does not fit raises SchemaError. With `add_binary_cols` a Boolean column
    `NAME_filled` says where something was missing.
    """

    fill_val: int | float | str | bool = 0
    add_binary_cols: bool = False

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        flags = [f"{name}_filled" for name in columns] if self.add_binary_cols else []
        for name in flags:
            if name in columns:
                raise ConfigError(f"FillMissing would add a second column `{name}`", hint="rename it first")
        return super().sources(columns) | dict(zip(flags, super().sources(columns).values(), strict=False))

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        types = frame.select(columns).collect_schema()
        flags = [self._missing(name, types[name]).alias(f"{name}_filled") for name in columns]
        filled = [self._filled(name, types[name]) for name in columns]
        return frame.with_columns(*filled, *(flags if self.add_binary_cols else ()))

    def describe(self, inputs: Mapping[str, Column], outputs: Mapping[str, Column]) -> Mapping[str, Column]:
        return {name: replace(column, nullable=False) for name, column in outputs.items()}

    def row(self, values: dict[str, Any], columns: Mapping[str, Column]) -> dict[str, Any]:
        filled: dict[str, Any] = {}
        for name, value in values.items():
            fill = self._typed(columns[name].dtype)
            if columns[name].is_list:
                filled[name] = [fill if x is None or x != x else x for x in value or []]
            else:
                filled[name] = fill if value is None or value != value else value
            if self.add_binary_cols:
                filled[f"{name}_filled"] = value is None or value != value
        return filled

    def _typed(self, dtype: str) -> Any:
        """The fill value as a column of this type holds it."""
        if dtype == "float32":
            return float32(float(self.fill_val))
        if dtype.startswith("float"):
            return float(self.fill_val)
        if dtype.startswith(("int", "uint")):
            return int(self.fill_val)
        if dtype == "binary":
            return str(self.fill_val).encode()
        return bool(self.fill_val) if dtype == "bool" else self.fill_val

    def _missing(self, name: str, dtype: pl.DataType) -> pl.Expr:
        missing = pl.col(name).is_null()
        return missing | pl.col(name).is_nan().fill_null(False) if dtype.is_float() else missing

    def _filled(self, name: str, dtype: pl.DataType) -> pl.Expr:
        if isinstance(dtype, (pl.List, pl.Array)):
            inner = pl.DataType.from_python(dtype.inner) if isinstance(dtype.inner, type) else dtype.inner
            value = self._literal(name, inner)  # type: ignore[arg-type]
            x = pl.col(name).arr.to_list() if isinstance(dtype, pl.Array) else pl.col(name)
            element = pl.element().fill_nan(None) if inner.is_float() else pl.element()
            return x.list.eval(element.fill_null(value)).fill_null(pl.lit([], dtype=pl.List(inner)))
        x = pl.col(name).fill_nan(None) if dtype.is_float() else pl.col(name)
        return x.fill_null(self._literal(name, dtype))

    def _literal(self, name: str, dtype: pl.DataType) -> pl.Expr:
        try:
            value = pl.Series([self.fill_val]).cast(dtype)
        except pl.exceptions.PolarsError:
            value = pl.Series([None], dtype=dtype)
        kind = dtype.is_numeric() == isinstance(self.fill_val, (int, float)) or dtype == pl.Boolean
        if not kind or value.item() is None or (dtype.is_integer() and value.item() != self.fill_val):
            raise SchemaError(
                f"FillMissing fill_val={self.fill_val!r} does not fit `{name}`, which is {dtype}",
                hint="give a value of the column's own type",
            )
        return pl.lit(value.item(), dtype=dtype)


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class AddTags(ColumnOp):
    """Say what columns are for: `AddTags(["item", "id"])`. The values stay.

    A target, an id, a categorical or a weight is no continuous feature any more.

    >>> AddTags(["target", "binary"]).tags
    ('binary', 'target')
    """

    tags: str | Sequence[str] = field(kw_only=False)

    def __post_init__(self) -> None:
        freeze(self, tags=tuple(sorted(str(tag) for tag in as_tuple(self.tags))))
        if not self.tags:
            raise ConfigError("AddTags has no tags", hint='for example AddTags(["user", "id"])')

    def expr(self, x: pl.Expr, column: Column) -> pl.Expr:
        return x

    def describe(self, column: Column) -> Column:
        if {Tag.TARGET, Tag.CATEGORICAL, Tag.ID, Tag.WEIGHT, Tag.EMBEDDING} & set(self.tags):
            column = replace(column, tags=column.tags - {Tag.CONTINUOUS})
        return column.with_tags(*self.tags)

    def row(self, values: dict[str, Any], columns: Mapping[str, Column]) -> dict[str, Any]:
        return values


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class Rename(FrameOp):
    """New names: `names={"old": "new"}`, or a `prefix` and `postfix` for every column, or `name` for a single one.

    >>> Rename(postfix="_raw").sources(("age",))
    {'age_raw': ('age',)}
    """

    names: Mapping[str, str] | None = None
    prefix: str = ""
    postfix: str = ""
    name: str | None = None

    def __post_init__(self) -> None:
        given = [bool(self.names), bool(self.prefix or self.postfix), self.name is not None]
        if sum(given) != 1:
            raise ConfigError(
                "Rename needs one way", hint="`names={...}`, `prefix`/`postfix`, or `name` for one column"
            )

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        if self.name is not None and len(columns) != 1:
            raise ConfigError(f"Rename(name={self.name!r}) is for one column, not {', '.join(columns)}")
        renamed: dict[str, tuple[str, ...]] = {self._new(name): (name,) for name in columns}
        if len(renamed) != len(columns):
            raise ConfigError(f"Rename gives two of {', '.join(columns)} the same name")
        return renamed

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        kept = frame.select(pl.exclude(columns)).collect_schema().names()
        return frame.select(*kept, *(pl.col(name).alias(self._new(name)) for name in columns))

    def describe(self, inputs: Mapping[str, Column], outputs: Mapping[str, Column]) -> Mapping[str, Column]:
        return {new: replace(inputs[old], name=new) for new, (old,) in self.sources(tuple(inputs)).items()}

    def row(self, values: dict[str, Any], columns: Mapping[str, Column]) -> dict[str, Any]:
        return {self._new(name): value for name, value in values.items()}

    def _new(self, name: str) -> str:
        if self.name is not None:
            return self.name
        return self.names.get(name, name) if self.names else f"{self.prefix}{name}{self.postfix}"
