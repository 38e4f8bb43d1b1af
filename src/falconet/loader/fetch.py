"""Two ways to fetch an epoch's rows: from memory, or window by window from the files. Both give the same rows."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from falconet.columns import Field, Table
from falconet.errors import ColumnNotFoundError, DataError
from falconet.io.footer import RowGroup, read_footer
from falconet.loader.plan import EpochPlan, Window

T = TypeVar("T")


@dataclass(frozen=True)
class Source:
    """The columns to read, the row groups in order, and per row group the room its ragged columns need."""

    fields: tuple[Field, ...]
    groups: tuple[RowGroup, ...]
    values: tuple[Mapping[str, int], ...]

    @classmethod
    def of(cls, fields: Sequence[Field], groups: Sequence[RowGroup]) -> Source:
        """From the footers alone."""
        counts: dict[str, list[dict[str, int]]] = {}
        for path in dict.fromkeys(group.path for group in groups):
            counts[path] = _value_counts(path, fields)
        return cls(tuple(fields), tuple(groups), tuple(counts[group.path][group.index] for group in groups))

    @property
    def bytes(self) -> int:
        """Bytes of all columns as tensors."""
        rows, values = sum(group.rows for group in self.groups), _sum(self.values)
        return sum(field.bytes(rows, values[field.column.name]) for field in self.fields)

    def read(self, indexes: Sequence[int]) -> Table:
        """The columns of the given row groups, one after the other."""
        values = _sum([self.values[i] for i in indexes])
        table = Table(self.fields, sum(self.groups[i].rows for i in indexes), values)
        names = [field.column.name for field in self.fields]
        for i in indexes:
            group = self.groups[i]
            try:
                with pq.ParquetFile(group.path) as file:
                    part = file.read_row_group(group.index, columns=names)
            except (pa.ArrowException, OSError) as error:
                raise DataError(f"row group {group.index} of `{group.path}` cannot be read: {error}") from error
            table.append(part, where=f"`{group.path}` (row group {group.index})")
        return table


Piece = tuple[Window, Table, Tensor]
"""A window, the table that has its rows, and the table's row (int64) at each position of the window."""


def from_memory(table: Table, plan: EpochPlan, first: int) -> Generator[Piece]:
    """The plan's windows from window `first` on, out of a table of the whole data set."""
    for window in plan.windows[first:]:
        yield window, table, torch.from_numpy(plan.dataset_rows(window)[plan.order(window)])


def from_files(source: Source, plan: EpochPlan, first: int) -> Generator[Piece]:
    """The plan's windows from window `first` on, each read when it is asked for."""
    for window in plan.windows[first:]:
        yield window, source.read(window.groups), torch.from_numpy(plan.order(window))


_END = object()


def ahead(items: Generator[T], count: int) -> Generator[T]:
    """The items of a generator, made by one thread that keeps the next `count` of them ready.

    What the generator raises is raised here. The thread is joined and the generator closed when the items end, when one
    raises, and when this generator is closed or dropped.
    """
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="falconet-loader") as thread:
            waiting: deque[Future[T | object]] = deque(thread.submit(next, items, _END) for _ in range(count))
            try:
                while (item := waiting.popleft().result()) is not _END:
                    waiting.append(thread.submit(next, items, _END))
                    yield item  # type: ignore[misc]
            finally:
                for future in waiting:
                    future.cancel()
    finally:
        items.close()


def memory_limit() -> int:
    """Bytes of data that `memory="auto"` keeps in memory: a quarter of the machine's, at most 4 GiB."""
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:  # Windows
        return 2**31
    return min(2**32, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)


def _sum(counts: Sequence[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return total


def _value_counts(path: str, fields: Sequence[Field]) -> list[dict[str, int]]:
    """Per row group of a file, an upper bound of the number of values of each ragged column."""
    meta = read_footer(Path(path))
    leaves: list[str] = []
    for field in meta.schema.to_arrow_schema():
        leaves += [field.name] * _leaves(field.type)
    names = [field.column.name for field in fields]
    for name in names:
        if name not in leaves:
            raise ColumnNotFoundError.of(name, leaves, where=f"`{path}`")
    ragged = {field.column.name: leaves.index(field.column.name) for field in fields if field.column.list == "ragged"}
    return [
        {name: meta.row_group(i).column(leaf).num_values for name, leaf in ragged.items()}
        for i in range(meta.num_row_groups)
    ]


def _leaves(kind: pa.DataType) -> int:
    """How many columns of a Parquet file a value of this type takes."""
    return sum(_leaves(kind.field(i).type) for i in range(kind.num_fields)) if kind.num_fields else 1
