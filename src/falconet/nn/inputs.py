"""The columns of a schema as numbers: what every ranker starts from.

Shapes: B rows, C continuous columns, F fields (columns that have a vector), D width of a vector, H width of a layer,
W width of everything side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from falconet.batch import Batch, feature_of
from falconet.errors import SchemaError
from falconet.nn.batchnorm import BatchNorm
from falconet.nn.embedding import Tables
from falconet.nn.numbers import SoftEmbeddings
from falconet.nn.pooling import Pooling
from falconet.schema import Column, Schema, Tag

_WIDTH = 16  # of the vectors that stand beside tables of several widths


class Inputs(nn.Module):
    """Categorical columns through `Tables` (lists as bags), continuous ones through a BatchNorm, and columns tagged
    `embedding`, vectors that the data brings, through a linear layer each.

    The columns are taken by name, so that neither a batch's nor a schema's order matters. `dims`: the width of all
    vectors, or one per column. `soft`: so many vectors for each continuous column, of which its value is a soft choice
    (see `SoftEmbeddings`); with 0 it is a plain number. `list_weights`: see `Tables`. Raises SchemaError for a
    continuous column of lists, and for an `embedding` column whose lists are not of one length.
    """

    def __init__(
        self,
        columns: Schema,
        dims: int | Mapping[str, int],
        pooling: Pooling = "mean",
        *,
        soft: int = 0,
        list_weights: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        by_name = Schema(tuple(sorted(columns, key=lambda column: column.name)))
        categorical = by_name.select(Tag.CATEGORICAL)
        weighed = {name: by for name, by in (list_weights or {}).items() if name in categorical}
        self.tables = Tables(categorical.columns, dims, pooling, list_weights=weighed)
        numbers = by_name.select(Tag.CONTINUOUS).without_tags(Tag.EMBEDDING)
        self.continuous = numbers.names
        for column in numbers:
            if column.is_list:
                raise SchemaError(
                    f"`{column.name}` holds lists, where a continuous input is one number per row",
                    hint="leave it out of `columns`, or make one number of each list in the ETL",
                )
        self.norm = BatchNorm(len(self.continuous), affine=False) if self.continuous else None
        self.soft = None
        width = dims if isinstance(dims, int) else _WIDTH
        if soft and self.continuous:
            self.soft = SoftEmbeddings(len(self.continuous), soft, width)
        self.given = {column.name: module_key("given", column.name) for column in by_name.select(Tag.EMBEDDING)}
        self.layers = nn.ModuleDict(
            {self.given[c.name]: nn.Linear(_length(c), width) for c in by_name.select(Tag.EMBEDDING)}
        )

    @property
    def plain(self) -> int:
        """How many columns are plain numbers: the width of `numbers`."""
        return 0 if self.soft is not None else len(self.continuous)

    @property
    def fields(self) -> int:
        """How many columns have a vector: F."""
        return len(self.tables.columns) + len(self.continuous) - self.plain + len(self.given)

    @property
    def width(self) -> int:
        """The width of everything side by side: W."""
        given = sum(layer.out_features for layer in self.layers.values() if isinstance(layer, nn.Linear))
        return self.tables.width + (self.plain if self.soft is None else self.soft.width) + given

    def numbers(self, batch: Batch) -> Tensor:
        """The plain numbers, normalised: [B, C], of no columns where there are none."""
        if not self.plain:
            return torch.zeros(batch.rows, 0, device=_device(self, batch))
        return self._normalised(batch)

    def vectors(self, batch: Batch) -> Tensor:
        """The vectors of all fields, which must be of one width: [B, F, D]."""
        return torch.stack(self.by_field(batch), dim=1)

    def by_field(self, batch: Batch) -> list[Tensor]:
        """The vectors of all fields: [B, D] each."""
        return [*self.tables(batch).values(), *self._vectors_beside(batch)]

    def forward(self, batch: Batch, columns: Sequence[str] | None = None) -> Tensor:
        """Everything side by side, or of the categorical columns the named ones alone: [B, W]."""
        return torch.cat([*self.tables(batch, columns).values(), self._beside(batch)], dim=1)

    def project(self, batch: Batch, linear: nn.Linear) -> Tensor:
        """`linear(self(batch))`, at the cost of the distinct rows of the tables: [B, H]."""
        beside = self._beside(batch)
        if not self.tables.columns:
            result: Tensor = linear(beside)
            return result
        return self.tables.project(batch, linear, extra=beside if beside.shape[1] else None)

    def _beside(self, batch: Batch) -> Tensor:
        """What stands beside the vectors of the tables."""
        return torch.cat([self.numbers(batch), *self._vectors_beside(batch)], dim=1)

    def _vectors_beside(self, batch: Batch) -> list[Tensor]:
        """Soft embeddings, then the vectors that the data brings: [B, D] each."""
        soft = [] if self.soft is None else self.soft(self._normalised(batch)).unbind(1)
        return [*soft, *(self.layers[key](_vectors_of(batch, name)) for name, key in self.given.items())]

    def _normalised(self, batch: Batch) -> Tensor:
        assert self.norm is not None
        result: Tensor = self.norm(torch.stack([numbers_of(batch, name) for name in self.continuous], dim=1))
        return result


class Linear(nn.Module):
    """A linear model of the columns: a weight per value and per number (of vectors too), added up, and a bias: [B].

    A list adds the mean of its values' weights. No two columns share weights: what an item is worth in a history says
    nothing of what it is worth as a candidate. All weights start at zero.
    """

    def __init__(self, columns: Schema, list_weights: Mapping[str, str] | None = None) -> None:
        super().__init__()
        alone = Schema(tuple(replace(column, domain=None) for column in columns))
        self.inputs = Inputs(alone, 1, list_weights=list_weights)
        for weight in self.inputs.parameters():
            nn.init.zeros_(weight)
        self.slopes = nn.Parameter(torch.zeros(self.inputs.plain)) if self.inputs.plain else None
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, batch: Batch) -> Tensor:
        total_B = self.bias.expand(batch.rows)
        for field_B1 in self.inputs.by_field(batch):
            total_B = total_B + field_B1.squeeze(1)
        if self.slopes is not None:
            total_B = total_B + self.inputs.numbers(batch) @ self.slopes
        return total_B


def module_key(kind: str, name: str) -> str:
    """The name of a column's module: one that torch takes, with no dots, and never the name of a method."""
    return f"{kind}_{name.replace('%', '%25').replace('.', '%2E')}"


def numbers_of(batch: Batch, name: str) -> Tensor:
    """A continuous column of a batch: float32 of [B]. Raises SchemaError where it is not there, or holds lists."""
    values = feature_of(batch, name)
    if not isinstance(values, Tensor) or values.dim() != 1:
        raise SchemaError(f"the batch's `{name}` holds lists, where one number per row is needed")
    return values.float()


def _vectors_of(batch: Batch, name: str) -> Tensor:
    """An `embedding` column of a batch: float32 of [B, width]."""
    vectors = feature_of(batch, name)
    if not isinstance(vectors, Tensor) or vectors.dim() != 2:
        raise SchemaError(f"the batch's `{name}` holds no vectors of one length")
    return vectors.float()


def _length(column: Column) -> int:
    if not isinstance(column.list, int):
        raise SchemaError(
            f"`{column.name}` is tagged `embedding`, but holds no lists of one length",
            hint="leave it out of `columns`, or store lists of one length",
        )
    return column.list


def _device(module: nn.Module, batch: Batch) -> torch.device:
    first = next(iter(batch.features.values()), None)
    if first is None:
        return next(module.parameters()).device
    return first.device if isinstance(first, Tensor) else first.values.device
