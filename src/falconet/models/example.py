"""Made-up rows that fit a schema: codes that the tables have, lists of different lengths, numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from falconet.batch import Feature, Ragged
from falconet.columns import tensor_type
from falconet.errors import SchemaError
from falconet.schema import Column, Tag

_LONGEST = 4  # values of a list of any length


def example_features(columns: Iterable[Column], rows: int, draw: torch.Generator) -> dict[str, Feature]:
    """Random values by column name: codes from 1 to below the cardinality, lists of 0 to 4, numbers around 0.

    Numbers lie between `min` and `max` where the column has both. Raises SchemaError for a column that is no tensor.
    """
    return {column.name: _feature(column, rows, draw) for column in columns}


def _feature(column: Column, rows: int, draw: torch.Generator) -> Feature:
    if column.list is None:
        return _values(column, rows, draw)
    if isinstance(column.list, int):
        return _values(column, rows * column.list, draw).view(rows, column.list)
    lengths = torch.randint(0, _LONGEST + 1, (rows,), generator=draw)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return Ragged(_values(column, int(offsets[-1]), draw), offsets)


def _values(column: Column, n: int, draw: torch.Generator) -> Tensor:
    dtype = tensor_type(column)
    if dtype is None:
        raise SchemaError(f"`{column.name}` holds {column.dtype}, which is no tensor")
    if Tag.CATEGORICAL in column.tags and column.cardinality is not None:
        return torch.randint(1, max(column.cardinality, 2), (n,), generator=draw, dtype=dtype)
    if not dtype.is_floating_point:
        return torch.randint(0, 2, (n,), generator=draw, dtype=dtype)
    if column.min is not None and column.max is not None and math.isfinite(column.max - column.min):
        return torch.rand(n, generator=draw, dtype=dtype) * (column.max - column.min) + column.min
    return torch.randn(n, generator=draw, dtype=dtype)
