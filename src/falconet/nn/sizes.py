"""How large the tables of some columns are, and what is refused of that."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from falconet.errors import ColumnNotFoundError, ConfigError, SchemaError
from falconet.memory import as_size, machine_memory
from falconet.schema import Column


def check_pooling(column: Column, pooling: str) -> None:
    """Raise ConfigError for a way of pooling that is none."""
    if pooling not in ("mean", "sum"):
        raise ConfigError(f'pooling of `{column.name}` must be "mean" or "sum", not {pooling!r}')


def check_memory(sizes: Mapping[str, tuple[int, int]]) -> None:
    """Raise ConfigError where tables of these (rows, width) take more than this machine has."""
    bytes = {table: 4 * rows * width for table, (rows, width) in sizes.items()}
    if torch.get_default_device().type != "cpu" or sum(bytes.values()) <= machine_memory():
        return
    table = max(bytes, key=lambda name: bytes[name])
    rows, width = sizes[table]
    raise ConfigError(
        f"the tables take {as_size(sum(bytes.values()))}, this machine has {as_size(machine_memory())} of memory; "
        f"the largest is `{table}`: {rows:,} rows of {width} numbers, {as_size(bytes[table])}",
        hint="a smaller width (`dim`), or fewer codes: Categorify(freq_threshold=…, max_size=…) or HashBucket",
    )


def cardinality_of(column: Column) -> int:
    """The rows of a column's table. Raises SchemaError where the column does not say."""
    if column.cardinality is None:
        raise SchemaError(f"`{column.name}` has no cardinality", hint="`Categorify` sets it")
    return column.cardinality


def width_of(column: Column, dims: int | Mapping[str, int]) -> int:
    """The width of a column's table, from one for all or those by column or table."""
    if not isinstance(dims, int):
        if column.name not in dims and column.table not in dims:
            raise ColumnNotFoundError.of(column.name, dims, where="`dims`")
        dims = dims[column.name] if column.name in dims else dims[column.table]
    if dims < 1:
        raise ConfigError(f"the table of `{column.name}` cannot be {dims} wide")
    return dims
