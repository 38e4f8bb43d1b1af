"""Which columns of a data set are loaded, and as what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from falconet.columns import Field, tensor_type
from falconet.errors import ColumnNotFoundError, SchemaError
from falconet.schema import Column, Schema, Tag


def targets(schema: Schema) -> Schema:
    """The columns that become the targets of a batch."""
    return schema.select(Tag.TARGET)


def weights(schema: Schema) -> Schema:
    """The column, or none, that becomes the weights of a batch."""
    return schema.select(Tag.WEIGHT).without_tags(Tag.TARGET)


def named(schema: Schema, path: Path, target_names: Sequence[str], weight_name: str | None) -> Schema:
    """The schema with its target and weight columns named by hand; those it had lose their tags."""

    def tagged(column: Column, names: Sequence[str], tag: str) -> Column:
        if column.name in names:
            return column.with_tags(tag)
        return replace(column, tags=frozenset()) if tag in column.tags else column

    for name in (*target_names, *([] if weight_name is None else [weight_name])):
        if name not in schema:
            raise ColumnNotFoundError.of(name, schema.names, where=f"`{path}`")
    columns = schema.columns
    if target_names:
        columns = tuple(tagged(c, target_names, Tag.TARGET) for c in columns)
    if weight_name is not None:
        columns = tuple(tagged(c, [weight_name], Tag.WEIGHT) for c in columns)
    return Schema(columns)


def fields_of(path: Path, schema: Schema, names: Sequence[str] | None, by_tag: bool) -> tuple[Field, ...]:
    """The columns to load, features first. Raises SchemaError for one that cannot be a tensor.

    `names`: the features; without them those with a tag, or where not `by_tag` all that can be tensors.
    """
    targets_, weights_ = targets(schema), weights(schema)
    if len(weights_) > 1:
        raise SchemaError(f"`{path}` has several columns tagged `weight`: {', '.join(weights_.names)}")
    if names is not None:
        for name in names:
            if name not in schema:
                raise ColumnNotFoundError.of(name, schema.names, where=f"`{path}`")
        features = schema.only(dict.fromkeys(names))
    elif by_tag:
        features = Schema(tuple(column for column in schema if column.tags))
    else:
        features = Schema(tuple(column for column in schema if tensor_type(column)))
    special = targets_ + weights_
    fields = [_field(path, column) for column in features.without(special.names)]
    for column in special:
        if column.list == "ragged" or (column.list is not None and column in weights_):
            raise SchemaError(
                f"column `{column.name}` of `{path}` holds lists, which no {Tag.TARGET} or {Tag.WEIGHT} may"
            )
        _field(path, column)
        fields.append(Field(column, torch.float32))
    return tuple(fields)


def no_tensors(schema: Schema) -> list[str]:
    """The columns that cannot be tensors, each with its type."""
    return [f"{column.name} ({column.dtype})" for column in schema if tensor_type(column) is None]


def _field(path: Path, column: Column) -> Field:
    dtype = tensor_type(column)
    if dtype is None:
        raise SchemaError(
            f"column `{column.name}` of `{path}` holds {column.dtype}, which cannot become a tensor",
            hint="`Categorify` turns values into codes; or name the columns to load with `columns`",
        )
    return Field(column, dtype)
