"""Row groups as tables: which there are, what room they need, and reading them. Only `read` and `fill` read data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from falconet.columns import Field, Table
from falconet.errors import ColumnNotFoundError, DataError
from falconet.io.folders import as_array
from falconet.io.footer import RowGroup


@dataclass(frozen=True)
class Source:
    """The columns to read, the row groups in order, and per row group the room its ragged columns need.

    `folders`: by file, the columns that its folders give, as text.
    """

    fields: tuple[Field, ...]
    groups: tuple[RowGroup, ...]
    values: tuple[Mapping[str, int], ...]
    folders: Mapping[str, Mapping[str, str | None]]

    @classmethod
    def of(
        cls,
        fields: Sequence[Field],
        groups: Sequence[RowGroup],
        footers: Mapping[Path, pq.FileMetaData],
        folders: Mapping[Path, Mapping[str, str | None]],
    ) -> Source:
        """From the footers of the files. Raises ColumnNotFoundError for a column that a file lacks."""
        counts, given = {}, {}
        for path, meta in footers.items():
            names = set(meta.schema.to_arrow_schema().names)
            given[str(path)] = {name: text for name, text in folders[path].items() if name not in names}
            stored = [field for field in fields if field.column.name not in given[str(path)]]
            counts[str(path)] = _value_counts(path, meta, stored)
        values = tuple(counts[group.path][group.index] for group in groups)
        return cls(tuple(fields), tuple(groups), values, given)

    def bytes(self, indexes: Sequence[int]) -> int:
        """Bytes of the given row groups as tensors."""
        rows, values = sum(self.groups[i].rows for i in indexes), self.room(indexes)
        return sum(field.bytes(rows, values[field.column.name]) for field in self.fields)

    def room(self, indexes: Sequence[int]) -> Counter[str]:
        """Values of each ragged column in the given row groups, at most."""
        total: Counter[str] = Counter()
        for i in indexes:
            total.update(self.values[i])
        return total

    def read(self, indexes: Sequence[int]) -> Table:
        """The given row groups, one after the other."""
        table = Table(self.fields, sum(self.groups[i].rows for i in indexes), self.room(indexes))
        for i in indexes:
            self.fill(table, i)
        return table

    def fill(self, table: Table, index: int) -> None:
        """Append a row group to a table. Raises DataError where it cannot be read."""
        group = self.groups[index]
        given = self.folders[group.path]
        names = [field.column.name for field in self.fields if field.column.name not in given]
        try:
            with pq.ParquetFile(group.path) as file:
                part = file.read_row_group(group.index, columns=names)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"row group {group.index} of `{group.path}` cannot be read: {error}") from error
        for field in self.fields:
            if (name := field.column.name) in given:
                part = part.append_column(name, as_array(given[name], field.column, group.rows, group.path))
        table.append(part, where=f"`{group.path}` (row group {group.index})")


def _value_counts(path: Path, meta: pq.FileMetaData, fields: Sequence[Field]) -> list[dict[str, int]]:
    """Per row group of a file, an upper bound of the number of values of each ragged column."""
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
