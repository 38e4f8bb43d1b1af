"""Operators that only say what columns are: AddTags, AddProperties, AddMetadata and the four shorthands of a role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from falconet.errors import ConfigError
from falconet.etl.describe import properties_of, tagged, tags_of
from falconet.etl.op import OPS, ColumnOp, freeze
from falconet.schema import Column, Tag


class _Said(ColumnOp):
    """The values stay, nulls and lists too; only the description changes."""

    def expr(self, x: pl.Expr, column: Column) -> pl.Expr:
        return x

    def row(self, values: dict[str, Any], columns: Mapping[str, Column]) -> dict[str, Any]:
        return values


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class AddTags(_Said):
    """Say what columns are for: `AddTags(["item", "id"])`. The values stay.

    A target, an id, a categorical or a weight is no continuous feature any more.

    >>> AddTags(["target", "binary"]).tags
    ('binary', 'target')
    """

    tags: str | Sequence[str] = field(kw_only=False)

    def __post_init__(self) -> None:
        freeze(self, tags=tags_of(self.tags))
        if not self.tags:
            raise ConfigError("AddTags has no tags", hint='for example AddTags(["user", "id"])')

    def describe(self, column: Column) -> Column:
        return tagged(column, tags_of(self.tags))


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class AddProperties(_Said):
    """Say what is known of the values: `cardinality`, `oov`, `domain`, `min`, `max`, `dim`. The values stay.

    These are the properties a schema has a place for; others raise ConfigError. They are promises of the user's, for
    columns that come with codes or limits of their own; nothing checks the values against them.

    >>> AddProperties({"domain": "movie", "cardinality": 1000}).properties
    {'domain': 'movie', 'cardinality': 1000}
    """

    properties: Mapping[str, Any] = field(kw_only=False)

    def __post_init__(self) -> None:
        freeze(self, properties=properties_of(self.properties, where="AddProperties"))
        if not self.properties:
            raise ConfigError("AddProperties has no properties", hint='for example AddProperties({"dim": 32})')

    def describe(self, column: Column) -> Column:
        return replace(column, **self.properties)


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class AddMetadata(_Said):
    """`AddTags` and `AddProperties` at once. The values stay."""

    tags: str | Sequence[str] = ()
    properties: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        freeze(self, tags=tags_of(self.tags), properties=properties_of(self.properties, where="AddMetadata"))
        if not self.tags and not self.properties:
            raise ConfigError("AddMetadata says nothing", hint="set `tags`, `properties` or both")

    def describe(self, column: Column) -> Column:
        return replace(tagged(column, tags_of(self.tags)), **self.properties)


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class TagAsUserID(_Said):
    """The column says who the user is: tags `user` and `id`. The values stay."""

    def describe(self, column: Column) -> Column:
        return tagged(column, (Tag.USER, Tag.ID))


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class TagAsItemID(_Said):
    """The column says which item it is: tags `item` and `id`. The values stay."""

    def describe(self, column: Column) -> Column:
        return tagged(column, (Tag.ITEM, Tag.ID))


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class TagAsUserFeatures(_Said):
    """The columns describe the user: tag `user`. The values stay."""

    def describe(self, column: Column) -> Column:
        return tagged(column, (Tag.USER,))


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class TagAsItemFeatures(_Said):
    """The columns describe the item: tag `item`. The values stay."""

    def describe(self, column: Column) -> Column:
        return tagged(column, (Tag.ITEM,))
