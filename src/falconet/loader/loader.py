"""The loader: batches of whole columns from Parquet files, in the order of the epoch plan."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from falconet.batch import Batch, Feature
from falconet.columns import Field, Table, join, tensor_type
from falconet.errors import ColumnNotFoundError, ConfigError, DataError, SchemaError
from falconet.io.footer import RowGroup, data_files, read_footer, read_schema, row_groups
from falconet.loader.fetch import Piece, Source, ahead, from_files, from_memory, memory_limit
from falconet.loader.plan import WINDOW, EpochPlan
from falconet.schema import FOOTER_KEY, Column, Schema, Tag
from falconet.train.runtime import Runtime

FORMAT = 1

Memory = Literal["auto", "memory", "stream"]


class Loader:
    """Batches from a folder of Parquet files, or from one such file.

    `batch_size` is the number of rows of all processes together. Every row comes exactly once per epoch (`drop_last`
    leaves out the rest that fills no batch), in an order that depends on `seed` and the epoch alone; `shuffle=False`
    keeps the order of the files. Every process takes the same number of steps.

    `columns`: the features to load; by default those that carry a tag, or all where the files have no falconet schema.
    Columns tagged `target` and the one tagged `weight` always come along, as float32.
    `memory`: keep all columns in memory, or read the files window by window; `auto` keeps what takes up to a quarter of
    the machine's memory, at most 4 GiB. The batches are the same. `prefetch`: batches kept ready by a thread.
    `runtime`: whose share `for batch in loader` gives; by default that of this process.

    Only footers are read here. Raises ConfigError, DataError or SchemaError.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        window: int = WINDOW,
        columns: Sequence[str] | None = None,
        memory: Memory = "auto",
        prefetch: int = 2,
        runtime: Runtime | None = None,
    ) -> None:
        if memory not in ("auto", "memory", "stream"):
            raise ConfigError(f"`memory` must be auto, memory or stream, not {memory!r}")
        if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 1:
            raise ConfigError(f"`prefetch` must be a whole number of at least 1, not {prefetch!r}")
        self.path = Path(path)
        self._groups = row_groups(self.path)
        self._plan = EpochPlan(
            group_rows=tuple(group.rows for group in self._groups),
            batch_size=batch_size,
            seed=seed,
            window=window,
            shuffle=shuffle,
            drop_last=drop_last,
        )
        fields = _fields(self.path, columns)
        self._schema = Schema(tuple(field.column for field in fields))
        self._source = Source.of(fields, self._groups)
        self._in_memory = memory == "memory" or (memory == "auto" and self._source.bytes <= memory_limit())
        self._table: Table | None = None
        self._prefetch = prefetch
        self._runtime = runtime
        self._epoch = self._step = 0
        self._resumed = False

    @property
    def schema(self) -> Schema:
        """The columns that are loaded, targets and weight among them."""
        return self._schema

    @property
    def rows(self) -> int:
        """Rows of the data set."""
        return self._plan.rows

    @property
    def batch_size(self) -> int:
        """Rows of a global batch."""
        return self._plan.batch_size

    @property
    def seed(self) -> int:
        return self._plan.seed

    @property
    def in_memory(self) -> bool:
        """Whether all columns are kept in memory."""
        return self._in_memory

    @property
    def epoch(self) -> int:
        """The epoch of the next batch that iteration gives."""
        return self._epoch

    @property
    def step(self) -> int:
        """The step, within the epoch, of the next batch that iteration gives."""
        return self._step

    def __len__(self) -> int:
        """Steps per epoch, the same on every process."""
        return self._plan.steps

    def batches(self, epoch: int = 0, start: int = 0, rank: int = 0, world: int = 1) -> Generator[Batch]:
        """What `rank` of `world` processes gets in the steps of an epoch from step `start` on; changes nothing here.

        A batch may have no rows on a process. The thread that prepares batches ends with the generator.
        """
        if not 0 <= rank < world:
            raise ConfigError(f"`rank` must be from 0 to {world - 1} where there are {world} processes, not {rank}")
        if start < 0:
            raise ConfigError(f"`start` must be a step, not {start}")
        plan = replace(self._plan, epoch=epoch)
        return ahead(self._make(plan, start, rank, world), self._prefetch)

    def origin(self, epoch: int, step: int, row: int) -> str:
        """Where a row of the global batch of a step comes from, in words."""
        plan = replace(self._plan, epoch=epoch)
        position = plan.share(step, 0, 1)[0] + row
        window = plan.windows[plan.window_at(position)]
        rest = int(plan.order(window)[position - window.first])
        for number in window.groups:
            group = self._groups[number]
            if rest < group.rows:
                return f"row {rest} of row group {group.index} of `{group.path}`"
            rest -= group.rows
        raise IndexError(f"step {step} has no row {row}")

    def __iter__(self) -> Generator[Batch]:
        """This process's share of the current epoch; the next call, after the last batch, gives the next epoch.

        An epoch that was broken off starts again, unless `load_state_dict` or `set_epoch` put the position inside it.
        """
        rank, world = (self._runtime.rank, self._runtime.world) if self._runtime else Runtime.peek()
        if not self._resumed:
            self._step = 0
        self._resumed = False
        for batch in self.batches(self._epoch, self._step, rank, world):
            self._step += 1
            yield batch
        self._epoch, self._step = self._epoch + 1, 0

    def set_epoch(self, epoch: int, step: int = 0) -> None:
        """Put the position at a step of an epoch."""
        self._epoch, self._step, self._resumed = epoch, step, True

    def state_dict(self) -> dict[str, Any]:
        """The position, and what it is a position in: plain values for JSON."""
        plan = self._plan
        return {
            "format": FORMAT,
            "epoch": self._epoch,
            "step": self._step,
            "seed": plan.seed,
            "batch_size": plan.batch_size,
            "window": plan.window,
            "shuffle": plan.shuffle,
            "drop_last": plan.drop_last,
            "lanes": 1,
            "data": _fingerprint(self._groups),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at a saved position, on any number of processes.

        Raises ConfigError where a setting would change the order, DataError for other data.
        """
        ours = self.state_dict()
        for name in sorted(ours.keys() | state.keys()):
            if name not in state or name not in ours:
                raise ConfigError(
                    f"the saved position {'has an unknown' if name in state else 'lacks the'} key `{name}`"
                )
            if name in ("epoch", "step") or state[name] == ours[name]:
                continue
            if name == "data":
                raise DataError(
                    f"the saved position (data) belongs to other files than those of `{self.path}`",
                    hint="names, row counts or sizes differ; start anew, or load the files it was saved with",
                )
            raise ConfigError(
                f"the saved position has {name} = {state[name]!r}, this loader has {ours[name]!r}",
                hint=f"use {name} = {state[name]!r}, or start anew",
            )
        self.set_epoch(state["epoch"], state["step"])

    def _make(self, plan: EpochPlan, start: int, rank: int, world: int) -> Generator[Batch]:
        if start >= plan.steps:
            return
        first = plan.window_at(plan.share(start, rank, world)[0])
        with closing(ahead(self._pieces(plan, first), 1)) as pieces:
            window, table, order = next(pieces)
            for step in range(start, plan.steps):
                low, high = plan.share(step, rank, world)
                taken = [table.take(order[low - window.first : high - window.first])]
                while high > window.first + window.rows:
                    window, table, order = next(pieces)
                    taken.append(table.take(order[max(low - window.first, 0) : high - window.first]))
                yield self._batch(join(taken), high - low, plan.batch_rows(step))

    def _pieces(self, plan: EpochPlan, first: int) -> Generator[Piece]:
        if not self._in_memory:
            return from_files(self._source, plan, first)
        if self._table is None:
            self._table = self._source.read(range(len(self._groups)))
        return from_memory(self._table, plan, first)

    def _batch(self, columns: dict[str, Feature], rows: int, global_rows: int) -> Batch:
        targets = {name: _dense(columns.pop(name)) for name in _targets(self._schema).names}
        weights = [_dense(columns.pop(name)) for name in _weights(self._schema).names]
        return Batch(columns, targets, rows, global_rows, weights[0] if weights else None)


def _targets(schema: Schema) -> Schema:
    return schema.select(Tag.TARGET)


def _weights(schema: Schema) -> Schema:
    return schema.select(Tag.WEIGHT).without_tags(Tag.TARGET)


def _dense(column: Feature) -> Tensor:
    assert isinstance(column, Tensor)  # `_fields` let no ragged target through
    return column


def _fields(path: Path, names: Sequence[str] | None) -> tuple[Field, ...]:
    """The columns to load, features first. Raises SchemaError for one that cannot be a tensor."""
    schema = read_schema(path)
    by_tag = any(FOOTER_KEY in (read_footer(file).metadata or {}) for file in data_files(path)[:1])
    targets, weights = _targets(schema), _weights(schema)
    if len(weights) > 1:
        raise SchemaError(f"`{path}` has several columns tagged `weight`: {', '.join(weights.names)}")
    if names is not None:
        for name in names:
            if name not in schema:
                raise ColumnNotFoundError.of(name, schema.names, where=f"`{path}`")
        features = schema.only(dict.fromkeys(names))
    elif by_tag:
        features = Schema(tuple(column for column in schema if column.tags))
    else:
        features = Schema(tuple(column for column in schema if tensor_type(column)))
    special = targets + weights
    fields = [_field(path, column) for column in features.without(special.names)]
    for column in special:
        if column.list == "ragged" or (column.list is not None and column in weights):
            raise SchemaError(
                f"column `{column.name}` of `{path}` holds lists, which no {Tag.TARGET} or {Tag.WEIGHT} may"
            )
        _field(path, column)
        fields.append(Field(column, torch.float32))
    return tuple(fields)


def _field(path: Path, column: Column) -> Field:
    dtype = tensor_type(column)
    if dtype is None:
        raise SchemaError(
            f"column `{column.name}` of `{path}` holds {column.dtype}, which cannot become a tensor",
            hint="`Categorify` turns values into codes; or name the columns to load with `columns`",
        )
    return Field(column, dtype)


def _fingerprint(groups: Sequence[RowGroup]) -> str:
    """SHA-256 of the name, rows and bytes of every row group; the folder may move."""
    lines = [f"{Path(group.path).name} {group.rows} {group.bytes}" for group in groups]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
