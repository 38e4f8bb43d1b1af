"""DropLowCardinality: categorical columns that say next to nothing are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from falconet.errors import ConfigError
from falconet.etl.codes import FIRST
from falconet.etl.op import OPS, ColumnOp
from falconet.schema import Column, Tag


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class DropLowCardinality(ColumnOp):
    """Leave out the categorical columns that have fewer than `min_cardinality` values; all others stay as they are.

    Values are counted, not codes: those for padding, null and out of vocabulary do not count. Columns that share a
    vocabulary or a table have its values. How many there are is known once the operators before it are fitted, so the
    columns are there while a workflow is built and fitted; the fitted workflow lacks them, and what was made of them.
    """

    min_cardinality: int = 4

    def __post_init__(self) -> None:
        if isinstance(self.min_cardinality, bool) or not isinstance(self.min_cardinality, int):
            raise ConfigError(f"DropLowCardinality min_cardinality={self.min_cardinality!r}", hint="a number of values")

    def expr(self, x: pl.Expr, column: Column) -> pl.Expr:
        return x

    def drops(self, inputs: Mapping[str, Column]) -> tuple[str, ...]:
        return tuple(
            name
            for name, column in inputs.items()
            if Tag.CATEGORICAL in column.tags
            and column.cardinality is not None
            and column.cardinality - FIRST - (column.oov or 0) < self.min_cardinality
        )

    def row(self, values: dict[str, Any], columns: Mapping[str, Column]) -> dict[str, Any]:
        return values
