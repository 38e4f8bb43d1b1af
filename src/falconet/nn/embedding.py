"""Embedding tables: the one place where ids become vectors.

The trainer keeps tables out of DistributedDataParallel. While it collects, every look-up reads the distinct rows of
a batch as a leaf, so that `backward` leaves one coalesced gradient of the touched rows and never one of the whole
table. Where nobody collects, the weights are ordinary parameters and any torch optimizer works.

Shapes: N ids, U distinct ids, R rows of the batch, D width of a table, H width after a linear layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from falconet.batch import Batch, Feature, Ragged, feature_of
from falconet.errors import ColumnNotFoundError, ConfigError, SchemaError
from falconet.nn.lookup import PADDING, check_range, distinct, filled, filled_length, ids_of, rows_of
from falconet.nn.pooling import Pooling, pool
from falconet.nn.projection import Local, Projected, Stack, Visit, add_rows, project
from falconet.nn.sizes import cardinality_of, check_memory, check_pooling, width_of
from falconet.schema import Column


class Reader(Protocol):
    """Gives the rows of a table that does not lie here as a weight of float32. `ids_U` are distinct and ascending, with
    padding first."""

    def read(self, ids_U: Tensor, out_UD: Tensor) -> None:
        """Write the rows of these ids to a tensor on their device."""

    def visit(self, ids_U: Tensor) -> Visit:
        """The rows of these ids, to be multiplied where they lie."""


@dataclass(frozen=True)
class Touched:
    """The distinct ids [U] of one table that one look-up read, and their rows [U, D], a leaf that gets a gradient.

    The rows are in bfloat16 where only a layer reads them that rounds them to it anyway. Many are followed by padding.
    """

    table: str
    ids: Tensor
    rows: Tensor


class Tables(nn.Module):
    """One table of vectors per `Column.table`: columns of one domain share it. Row 0 is padding, zero for ever.

    `dims`: the width of all tables, or one per column or table name. `pooling`: how the vectors of a list become one,
    for all columns or by column name ("mean" where a name is missing); padding does not count and an empty list gives
    zeros. `init`: the standard deviation of fresh weights. `list_weights`: by column of lists the column of lists of
    numbers that say what each value counts; the mean is then their weighted one, zeros where they add up to 0.

    Raises SchemaError for a column without cardinality or tables whose columns disagree, ConfigError for a bad width or
    tables that this machine cannot hold.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        dims: int | Mapping[str, int],
        pooling: Pooling | Mapping[str, Pooling] = "mean",
        init: float = 0.05,
        list_weights: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.list_weights = {} if list_weights is None else dict(list_weights)
        self.columns: dict[str, Column] = {column.name: column for column in columns}
        self._pooling = {c.name: pooling if isinstance(pooling, str) else pooling.get(c.name, "mean") for c in columns}
        self._sizes: dict[str, tuple[int, int]] = {}
        for column in columns:
            check_pooling(column, self._pooling[column.name])
            size = (cardinality_of(column), width_of(column, dims))
            if self._sizes.setdefault(column.table, size) != size:
                raise SchemaError(
                    f"column `{column.name}` asks for a table `{column.table}` of (rows, width) {size}, "
                    f"another column of that domain for {self._sizes[column.table]}",
                    hint="columns of one domain have one cardinality and one width",
                )
        check_memory(self._sizes)
        self.weights = nn.ParameterDict()
        for table, (rows, width) in self._sizes.items():
            weight = torch.randn(rows, width) * init
            weight[PADDING] = 0
            self.weights[_key(table)] = nn.Parameter(weight)
        self._collected: list[Touched | Projected] | None = None
        self._readers: dict[str, Reader] = {}
        self._on_host: set[str] = set()
        self._unseen = False

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables."""
        return tuple(self._sizes)

    @property
    def width(self) -> int:
        """The width of all columns' vectors side by side: what a layer after `torch.cat` of them takes in."""
        return sum(self.width_of(name) for name in self.columns)

    def width_of(self, column: str) -> int:
        """The width of one column's vectors."""
        return self._sizes[self._column(column).table][1]

    def weight(self, table: str) -> nn.Parameter:
        """The vectors of a table: [cardinality, D].

        Within `collect` they are a leaf, of which every row is read: a loss of the whole table teaches all of it.
        """
        weight = self._weight(table)
        if self._collected is None:
            return weight
        ids_V = torch.arange(self._sizes[table][0], device=weight.device)
        with torch.no_grad():
            whole = self._rows_of(table, ids_V, weight.dtype)[: len(ids_V)] if table in self._readers else weight.data
        rows_VD = nn.Parameter(whole, requires_grad=torch.is_grad_enabled())
        self._collected.append(Touched(table, ids_V, rows_VD))
        return rows_VD

    def _weight(self, table: str) -> nn.Parameter:
        if table not in self._sizes:
            raise ColumnNotFoundError.of(table, self._sizes, where="Tables")
        parameter = self.weights[_key(table)]
        assert isinstance(parameter, nn.Parameter)
        return parameter

    @contextmanager
    def collect(self) -> Iterator[list[Touched | Projected]]:
        """Within the block, look-ups read distinct rows as leaves and list them here; the weights get no gradient."""
        touched: list[Touched | Projected] = []
        self._collected = touched
        try:
            yield touched
        finally:
            self._collected = None

    def read_by(self, table: str, reader: Reader | None) -> None:
        """From now on, get the rows of a table from `reader` (None: from its weight), for a table that lies elsewhere.

        Every process then looks up the same columns in the same order, for a reader may ask the others.
        """
        self._weight(table)  # is there
        self._readers.pop(table, None)
        if reader is not None:
            self._readers[table] = reader

    def keep_on_host(self, table: str) -> None:
        """From now on, the weight of a table stays where it is when the module moves: only the rows that are read go
        to the device of their ids."""
        self._weight(table)
        self._on_host.add(table)

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Within the block, no step depends on what the ids are, as `torch.export` needs: their range is not checked,
        and each is read on its own."""
        self._unseen = True
        try:
            yield
        finally:
            self._unseen = False

    def read_each(self) -> None:
        """From now on, as within `unseen`: for a model that only answers, a few rows at a time."""
        self._unseen = True

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Tables:
        stay = [self._weight(table) for table in self._on_host]
        super()._apply(lambda x: x if any(x is weight for weight in stay) else fn(x), recurse)  # type: ignore[no-untyped-call]
        return self

    def forward(self, batch: Batch, columns: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Column name to vectors [R, D], of all columns or the named ones; lists are pooled.

        Raises IndexError for an id that no row of the table has.
        """
        found: dict[str, Tensor] = {}
        for group in self._by_table(columns):
            features = {name: feature_of(batch, name) for name in group}
            rows_XD, places = self._read(group, features)
            for name in group:
                weights_N = self._weights(batch, name, features[name])
                found[name] = pool(rows_XD, features[name], places[name], self._pooling[name], weights_N)
        return {name: found[name] for name in (self.columns if columns is None else columns)}

    def project(
        self, batch: Batch, linear: nn.Linear, columns: Sequence[str] | None = None, extra: Tensor | None = None
    ) -> Tensor:
        """`linear(torch.cat([*self(batch, columns).values(), extra], 1))`: [R, H], at the cost of the distinct rows.

        The layer is applied to the distinct rows of a table, which are then gathered: the same sum in another order.
        `extra`: [R, E] of further inputs.
        """
        names = tuple(self.columns) if columns is None else tuple(columns)
        widths = [self.width_of(name) for name in names]
        given = sum(widths) + (0 if extra is None else extra.shape[1])
        if given != linear.in_features:
            raise ConfigError(f"the linear layer takes {linear.in_features} inputs, the columns give {given}")
        parts = dict(zip([*names, ""], torch.split(linear.weight, [*widths, given - sum(widths)], dim=1), strict=True))
        beside = [] if extra is None else [F.linear(extra, parts[""])]
        products: list[tuple[Tensor, Tensor]] = []  # of distinct rows, and which of them belongs to each row
        dtype = _layer_type(linear.weight)
        most = sum(self._rows_for(name, batch) for name in names) + len(beside) * batch.rows + 1
        stack = Stack(0 if self._unseen else most, linear.weight, dtype)
        for group in self._by_table(names):
            features = {name: feature_of(batch, name) for name in group}
            # The choice must not depend on this process's share of the batch: all ranks build the same graph.
            first = not self._unseen and (
                self._sizes[self.columns[group[0]].table][0] <= batch.global_rows
                or not any(self.columns[name].is_list for name in group)
            )
            vectors_XD, places = (
                self._products(group, features, parts, stack) if first else self._unprojected(group, features)
            )
            for name in group:
                feature = features[name]
                if first and isinstance(feature, Tensor) and feature.dim() == 1:
                    products.append((vectors_XD[name], places[name]))
                    continue
                weights_N = self._weights(batch, name, feature)
                pooled = pool(vectors_XD[name], feature, places[name], self._pooling[name], weights_N)
                beside.append(pooled if first else F.linear(pooled, parts[name]))
        if products:
            return add_rows(products, beside, linear.bias, dtype, stack)
        total_RH = linear.weight.new_zeros(batch.rows, linear.out_features) if linear.bias is None else linear.bias
        return sum((x.float() for x in beside), start=total_RH.expand(batch.rows, -1)).to(dtype)

    def _rows_for(self, name: str, batch: Batch) -> int:
        """How many rows a column may add to what a layer's outputs are the sums of."""
        feature = feature_of(batch, name)
        if not isinstance(feature, Tensor) or feature.dim() != 1:
            return batch.rows
        return filled_length(min(batch.rows + 1, self._sizes[self._column(name).table][0]))

    def _unprojected(
        self, group: Sequence[str], features: Mapping[str, Feature]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        rows_XD, places = self._read(group, features)
        return dict.fromkeys(group, rows_XD), places

    def _products(
        self, group: Sequence[str], features: Mapping[str, Feature], parts: Mapping[str, Tensor], stack: Stack
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The distinct rows of one table times the weights for each column, and the place among them of each id."""
        table, dtype = self._column(group[0]).table, _layer_type(parts[group[0]])
        height = len(parts[group[0]])
        if self._collected is None or height * len(group) >= self._sizes[table][1] or _is_half(parts[group[0]]):
            rows_XD, places = self._read(group, features, dtype if len(group) == 1 else torch.float32)
            return {name: F.linear(rows_XD, parts[name]) for name in group}, places
        ids_U, places = self._distinct(group, features)
        reader = self._readers.get(table)
        visit = Local(self._weight(table), ids_U) if reader is None else reader.visit(ids_U)
        alone = len(group) == 1
        weight_HD = parts[group[0]] if alone else torch.cat([parts[name] for name in group])
        products_XH, made = project(table, visit, weight_HD, dtype, stack if alone else None)
        self._collected.append(made)
        each = [products_XH] if alone else torch.split(products_XH, height, dim=1)
        return dict(zip(group, each, strict=True)), places

    def lookup(self, column: str, ids: Feature) -> Tensor:
        """The vectors of given ids, as if they stood in that column of a batch: [R, D]; lists are pooled."""
        rows_XD, places = self._read((column,), {column: ids})
        return pool(rows_XD, ids, places[column], self._pooling[column])

    def rows(self, column: str, ids: Tensor) -> Tensor:
        """The vectors of given ids one by one, not pooled: [*ids.shape, D]."""
        rows_XD, places = self._read((column,), {column: ids.reshape(-1)})
        return rows_XD.index_select(0, places[column]).reshape(*ids.shape, rows_XD.shape[1])

    def _read(
        self, group: Sequence[str], features: Mapping[str, Feature], dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Vectors of one table, and for each column the place among them of each of its ids, flat.

        While it collects, the vectors are of type `dtype`.
        """
        table = self._column(group[0]).table
        weight = self._weight(table)
        if self._unseen:
            return weight, {name: ids_of(features[name]) for name in group}
        ids_U, places = self._distinct(group, features)
        if table not in self._readers and self._collected is None:
            return F.embedding(ids_U.to(weight.device), weight, padding_idx=PADDING).to(ids_U.device), places
        with torch.no_grad():
            rows_UD = self._rows_of(table, ids_U, dtype)
        if self._collected is not None:
            rows_UD.requires_grad_(torch.is_grad_enabled())
            self._collected.append(Touched(table, ids_U, rows_UD))
        return rows_UD, places

    def _distinct(self, group: Sequence[str], features: Mapping[str, Feature]) -> tuple[Tensor, dict[str, Tensor]]:
        """The distinct ids of one table, and for each column the place among them of each of its ids, flat."""
        cardinality = self._sizes[self._column(group[0]).table][0]
        ids = {name: ids_of(features[name]) for name in group}
        for name, ids_N in ids.items():
            check_range(name, ids_N, cardinality)
        lengths = [len(x) for x in ids.values()]
        ids_U, place_N = distinct(torch.cat(list(ids.values())) if len(ids) > 1 else ids[group[0]])
        return ids_U, dict(zip(group, torch.split(place_N, lengths), strict=True))

    def _weights(self, batch: Batch, column: str, feature: Feature) -> Tensor | None:
        """What each value of a batch's lists counts, flat; None where all count alike."""
        if column not in self.list_weights:
            return None
        weights = feature_of(batch, self.list_weights[column])
        if isinstance(feature, Ragged) and isinstance(weights, Ragged):
            fits = self._unseen or torch.equal(feature.lengths, weights.lengths)
        else:
            fits = isinstance(feature, Tensor) and isinstance(weights, Tensor) and feature.shape == weights.shape
        if not fits:
            raise SchemaError(
                f"the weights `{self.list_weights[column]}` do not fit the lists of `{column}`",
                hint="in every row as many weights as values, both in lists of any or both in lists of one length",
            )
        return (weights.values if isinstance(weights, Ragged) else weights.reshape(-1)).float()

    def _rows_of(self, table: str, ids_U: Tensor, dtype: torch.dtype) -> Tensor:
        """The rows of distinct ids, and of padding after them."""
        reader, more = self._readers.get(table), filled(ids_U)
        if reader is None:
            return rows_of(self._weight(table), more, dtype)
        rows_UD = torch.zeros(len(more), self._sizes[table][1], dtype=dtype, device=ids_U.device)
        reader.read(ids_U, rows_UD[: len(ids_U)])
        return rows_UD

    def _by_table(self, columns: Sequence[str] | None) -> list[list[str]]:
        """The columns, grouped by table, in order of first appearance."""
        groups: dict[str, list[str]] = {}
        for name in self.columns if columns is None else columns:
            groups.setdefault(self._column(name).table, []).append(name)
        return list(groups.values())

    def _column(self, name: str) -> Column:
        if name not in self.columns:
            raise ColumnNotFoundError.of(name, self.columns, where="Tables")
        return self.columns[name]

    def extra_repr(self) -> str:
        return ", ".join(f"{table}: {rows:,} x {width}" for table, (rows, width) in self._sizes.items())


def _layer_type(weight: Tensor) -> torch.dtype:
    """bfloat16 where a linear layer of these weights works in it, else float32."""
    kind = weight.device.type
    rounds = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16
    return torch.bfloat16 if rounds else torch.float32


def _is_half(weight: Tensor) -> bool:
    """Whether a linear layer of these weights works in float16."""
    kind = weight.device.type
    return torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16


def _key(table: str) -> str:
    """A name that torch takes for a parameter: no dots, and never the name of a method."""
    return "table_" + table.replace("%", "%25").replace(".", "%2E")
