"""What a user says about columns: tags, and the properties a schema has a place for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from falconet.errors import ConfigError, suggest
from falconet.etl.op import as_tuple
from falconet.schema import Column, Tag

PROPERTIES: dict[str, type | tuple[type, ...]] = {
    "cardinality": int,
    "dim": int,
    "domain": str,
    "max": (int, float),
    "min": (int, float),
    "oov": int,
}
"""The properties of a column that may be set by hand, with their types."""


def tags_of(tags: str | Sequence[str] | None) -> tuple[str, ...]:
    """Tags as a sorted tuple of strings."""
    return tuple(sorted({str(tag) for tag in as_tuple(tags)}))


def properties_of(properties: Mapping[str, Any] | None, *, where: str) -> dict[str, Any]:
    """Properties, checked. Raises ConfigError for one the schema has no place for, or of another type."""
    checked = dict(properties or {})
    for name, value in checked.items():
        if name not in PROPERTIES:
            raise ConfigError(f"{where}: a schema has no property `{name}`", hint=suggest(name, PROPERTIES))
        if isinstance(value, bool) or not isinstance(value, PROPERTIES[name]):
            raise ConfigError(f"{where}: `{name}` cannot be {value!r}", hint=_NEEDS[PROPERTIES[name]])
    return checked


def tagged(column: Column, tags: Sequence[str]) -> Column:
    """The column with more tags. A target, an id, a categorical or a weight is no continuous feature any more."""
    if {Tag.TARGET, Tag.CATEGORICAL, Tag.ID, Tag.WEIGHT, Tag.EMBEDDING} & set(tags):
        column = replace(column, tags=column.tags - {Tag.CONTINUOUS})
    return column.with_tags(*tags)


def forget_values(column: Column) -> Column:
    """The column without what is known of its values: codes, limits, whether there are nulls."""
    return replace(column, cardinality=None, oov=None, domain=None, min=None, max=None, nullable=True)


_NEEDS = {int: "a whole number", str: "a name", (int, float): "a number"}
