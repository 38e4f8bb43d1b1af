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
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from falconet.batch import Batch, Feature, Ragged
from falconet.errors import ColumnNotFoundError, ConfigError, SchemaError
from falconet.memory import as_size, machine_memory
from falconet.schema import Column

Pooling = Literal["mean", "sum"]
PADDING = 0
_DIRECT = 64  # a table of up to this many rows per id is cheaper to mark than the ids are to sort
_FEW = 64  # lists of so few distinct values are pooled by a matrix product, whose way back needs no sorting
_FILL = 1024
_BLOCK = 1 << 18  # numbers that are read and rounded at once, so that they need not leave the processor's cache


Reader = Callable[[Tensor, Tensor], None]
"""Writes the rows of distinct ids [U], ascending with padding first, to a tensor [U, D] on the device of the ids."""


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
            _check(column, self._pooling[column.name])
            size = (_cardinality(column), _width(column, dims))
            if self._sizes.setdefault(column.table, size) != size:
                raise SchemaError(
                    f"column `{column.name}` asks for a table `{column.table}` of (rows, width) {size}, "
                    f"another column of that domain for {self._sizes[column.table]}",
                    hint="columns of one domain have one cardinality and one width",
                )
        _check_memory(self._sizes)
        self.weights = nn.ParameterDict()
        for table, (rows, width) in self._sizes.items():
            weight = torch.randn(rows, width) * init
            weight[PADDING] = 0
            self.weights[_key(table)] = nn.Parameter(weight)
        self._collected: list[Touched] | None = None
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
    def collect(self) -> Iterator[list[Touched]]:
        """Within the block, look-ups read distinct rows as leaves and list them here; the weights get no gradient."""
        touched: list[Touched] = []
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
            features = {name: _feature(batch, name) for name in group}
            rows_XD, places = self._read(group, features)
            for name in group:
                weights_N = self._weights(batch, name, features[name])
                found[name] = _pool(rows_XD, features[name], places[name], self._pooling[name], weights_N)
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
        sums: list[Tensor] = []
        for group in self._by_table(names):
            features = {name: _feature(batch, name) for name in group}
            # The choice must not depend on this process's share of the batch: all ranks build the same graph.
            first = not self._unseen and (
                self._sizes[self.columns[group[0]].table][0] <= batch.global_rows
                or not any(self.columns[name].is_list for name in group)
            )
            dtype = _layer_type(linear.weight) if first and len(group) == 1 else torch.float32
            rows_XD, places = self._read(group, features, dtype)
            for name in group:
                vectors_XD = F.linear(rows_XD, parts[name]).float() if first else rows_XD
                weights_N = self._weights(batch, name, features[name])
                pooled = _pool(vectors_XD, features[name], places[name], self._pooling[name], weights_N)
                sums.append(pooled if first else F.linear(pooled, parts[name]).float())
        if extra is not None:
            sums.append(F.linear(extra, parts[""]).float())
        total_RH = sums[0]
        for part_RH in [*sums[1:], *([] if linear.bias is None else [linear.bias])]:
            total_RH += part_RH
        return total_RH

    def lookup(self, column: str, ids: Feature) -> Tensor:
        """The vectors of given ids, as if they stood in that column of a batch: [R, D]; lists are pooled."""
        rows_XD, places = self._read((column,), {column: ids})
        return _pool(rows_XD, ids, places[column], self._pooling[column])

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
        weight, cardinality = self._weight(table), self._sizes[table][0]
        ids = {name: _ids(features[name]) for name in group}
        if self._unseen:
            return weight, ids
        for name, ids_N in ids.items():
            _check_range(name, ids_N, cardinality)
        lengths = [len(x) for x in ids.values()]
        ids_U, place_N = distinct(torch.cat(list(ids.values())) if len(ids) > 1 else ids[group[0]], cardinality)
        reader = self._readers.get(table)
        if reader is None and self._collected is None:
            rows_UD = F.embedding(ids_U.to(weight.device), weight, padding_idx=PADDING).to(ids_U.device)
        else:
            with torch.no_grad():
                rows_UD = self._rows_of(table, ids_U, dtype)
            if self._collected is not None:
                rows_UD.requires_grad_(torch.is_grad_enabled())
                self._collected.append(Touched(table, ids_U, rows_UD))
        return rows_UD, dict(zip(group, torch.split(place_N, lengths), strict=True))

    def _weights(self, batch: Batch, column: str, feature: Feature) -> Tensor | None:
        """What each value of a batch's lists counts, flat; None where all count alike."""
        if column not in self.list_weights:
            return None
        weights = _feature(batch, self.list_weights[column])
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
        reader, filled = self._readers.get(table), _filled(ids_U)
        if reader is None:
            return rows_of(self._weight(table), filled, dtype)
        rows_UD = torch.zeros(len(filled), self._sizes[table][1], dtype=dtype, device=ids_U.device)
        reader(ids_U, rows_UD[: len(ids_U)])
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


def distinct(ids_N: Tensor, cardinality: int) -> tuple[Tensor, Tensor]:
    """The distinct ids, ascending, with padding always first, and the place among them of every id.

    >>> distinct(torch.tensor([5, 2, 5]), 10)
    (tensor([0, 2, 5]), tensor([2, 1, 2]))
    """
    if cardinality > _DIRECT * len(ids_N):
        ids_U, place_N = torch.unique(torch.cat([ids_N.new_zeros(1), ids_N]), return_inverse=True)
        return ids_U, place_N[1:]
    seen = torch.zeros(cardinality, dtype=torch.bool, device=ids_N.device)
    seen[PADDING] = True
    seen.index_fill_(0, ids_N, True)
    ids_U = seen.nonzero().squeeze(1)
    place = torch.empty(cardinality, dtype=torch.int64, device=ids_N.device)
    place[ids_U] = torch.arange(len(ids_U), device=ids_N.device)
    return ids_U, place.index_select(0, ids_N)


def _filled(ids_U: Tensor) -> Tensor:
    """Many ids filled up with padding to a multiple of 1,024: for every new shape oneDNN makes new kernels, which takes
    as long as the product."""
    missing = -len(ids_U) % _FILL
    return ids_U if len(ids_U) < 4 * _FILL else F.pad(ids_U, (0, missing), value=PADDING)


def rows_of(weight: Tensor, ids_U: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of a table in type `dtype`, on the device of the ids: [U, D]."""
    ids = ids_U.to(weight.device)
    if dtype == weight.dtype or weight.is_cuda:
        return weight.index_select(0, ids).to(ids_U.device, dtype)
    rows_UD = weight.new_empty(len(ids), weight.shape[1], dtype=dtype)
    block = max(_BLOCK // weight.shape[1], 1)
    for some, there in zip(torch.split(ids, block), torch.split(rows_UD, block), strict=True):
        there.copy_(weight.index_select(0, some))
    return rows_UD.to(ids_U.device)


def _layer_type(weight: Tensor) -> torch.dtype:
    """bfloat16 where a linear layer of these weights works in it, else float32."""
    kind = weight.device.type
    rounds = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16
    return torch.bfloat16 if rounds else torch.float32


def _pool(
    vectors_XD: Tensor, feature: Feature, place_N: Tensor, pooling: Pooling, weights_N: Tensor | None = None
) -> Tensor:
    """One vector per row, from the places of its ids. Place 0 is padding."""
    if isinstance(feature, Tensor) and feature.dim() == 1:
        return vectors_XD.index_select(0, place_N)
    if isinstance(feature, Ragged) and place_N.shape[0] == 0:
        # Nothing but empty lists; the product keeps the graph the same as on other ranks.
        return vectors_XD.sum(0, keepdim=True).expand(len(feature), -1) * 0
    if vectors_XD.shape[0] <= _FEW and torch.is_grad_enabled():
        with torch.autocast(vectors_XD.device.type, enabled=False):
            return _shares(feature, place_N, vectors_XD.shape[0], pooling, weights_N) @ vectors_XD
    if weights_N is not None:
        return _weighted(vectors_XD, feature, place_N, pooling, weights_N)
    if isinstance(feature, Ragged):
        offsets = feature.offsets.to(torch.int64)
        return F.embedding_bag(
            place_N, vectors_XD, offsets, mode=pooling, include_last_offset=True, padding_idx=PADDING
        )
    return F.embedding_bag(place_N.view(feature.shape), vectors_XD, mode=pooling, padding_idx=PADDING)


def _weighted(vectors_XD: Tensor, feature: Feature, place_N: Tensor, pooling: Pooling, weights_N: Tensor) -> Tensor:
    """The sum of weights times vectors, divided by that of the weights for a mean: [R, D]."""
    weights_N = weights_N.masked_fill(place_N == PADDING, 0.0)
    row_N = _row_of_value(feature, place_N)
    total_RD = vectors_XD.new_zeros(
        feature.shape[0] if isinstance(feature, Tensor) else len(feature), vectors_XD.shape[1]
    )
    scaled_ND = vectors_XD.index_select(0, place_N) * weights_N[:, None].to(vectors_XD)
    total_RD = total_RD.index_add(0, row_N, scaled_ND)
    if pooling == "sum":
        return total_RD
    return total_RD / _not_zero(weights_N.new_zeros(len(total_RD)).index_add(0, row_N, weights_N))[:, None]


def _shares(
    feature: Feature, place_N: Tensor, places: int, pooling: Pooling, weights_N: Tensor | None = None
) -> Tensor:
    """How much of each of so many vectors the lists hold: [R, places]."""
    rows = len(feature)
    row_N = _row_of_value(feature, place_N)
    counts_N = torch.ones(len(place_N), device=place_N.device) if weights_N is None else weights_N
    shares_RX = counts_N.new_zeros(rows * places).index_add_(0, row_N * places + place_N, counts_N).view(rows, places)
    shares_RX[:, PADDING] = 0
    return shares_RX if pooling == "sum" else shares_RX / _not_zero(shares_RX.sum(1, keepdim=True))


def _row_of_value(feature: Feature, place_N: Tensor) -> Tensor:
    """The row of each value of a batch's lists."""
    if isinstance(feature, Ragged):
        return feature.row_of_value()
    return torch.arange(feature.shape[0], device=place_N.device).repeat_interleave(feature.shape[1])


def _not_zero(totals: Tensor) -> Tensor:
    """What to divide by: 1 where nothing was added up."""
    return totals.masked_fill(totals == 0, 1.0)


def _ids(feature: Feature) -> Tensor:
    values = feature.values if isinstance(feature, Ragged) else feature.reshape(-1)
    return values.to(torch.int64)


def _feature(batch: Batch, name: str) -> Feature:
    if name not in batch.features:
        raise ColumnNotFoundError.of(name, batch.features, where="the batch")
    return batch.features[name]


def _check_range(name: str, ids_N: Tensor, cardinality: int) -> None:
    if ids_N.is_cuda or not len(ids_N):  # on a GPU the look would wait for the device
        return
    low, high = (int(x) for x in torch.aminmax(ids_N))
    if low < 0 or high >= cardinality:
        raise IndexError(
            f"column `{name}` holds the id {low if low < 0 else high}, its table has the rows 0 to {cardinality - 1} "
            f"(cardinality {cardinality}); the model was made for another fit of the features"
        )


def _check(column: Column, pooling: str) -> None:
    if pooling not in ("mean", "sum"):
        raise ConfigError(f'pooling of `{column.name}` must be "mean" or "sum", not {pooling!r}')


def _check_memory(sizes: Mapping[str, tuple[int, int]]) -> None:
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


def _cardinality(column: Column) -> int:
    if column.cardinality is None:
        raise SchemaError(f"`{column.name}` has no cardinality", hint="`Categorify` sets it")
    return column.cardinality


def _width(column: Column, dims: int | Mapping[str, int]) -> int:
    if not isinstance(dims, int):
        if column.name not in dims and column.table not in dims:
            raise ColumnNotFoundError.of(column.name, dims, where="`dims`")
        dims = dims[column.name] if column.name in dims else dims[column.table]
    if dims < 1:
        raise ConfigError(f"the table of `{column.name}` cannot be {dims} wide")
    return dims


def _key(table: str) -> str:
    """A name that torch takes for a parameter: no dots, and never the name of a method."""
    return "table_" + table.replace("%", "%25").replace(".", "%2E")
