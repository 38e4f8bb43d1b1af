"""The two tables of a bundle in memory: the catalogue and the people known to training.

Numbers become the tensors that the loader gives in training (columns.py).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

from falconet.batch import Batch, Ragged
from falconet.columns import read_columns
from falconet.errors import ArtifactError
from falconet.io.footer import data_files, read_schema
from falconet.schema import Schema, Tag
from falconet.serve.events import Id
from falconet.serve.filters import Filters

UNKNOWN = 2  # the first out-of-vocabulary code (docs/contracts.md)
SHOW = "show_"  # columns of items.parquet that people see start with this
_SHOWN = 1 << 16  # items whose attributes are kept as they are shown


def read_table(path: str | Path) -> tuple[pa.Table, Schema]:
    """All rows of a Parquet file or a folder of them, and the schema in their footers."""
    schema = read_schema(path)
    table = pa.concat_tables([pq.read_table(file, partitioning=None) for file in data_files(path)])
    return table.combine_chunks(), schema


class Ids:
    """Raw ids in row order, and the row of each. Ids are all whole numbers or all strings.

    Where one does not fit in 64 bits with a sign, as hashes may not, all are strings of their digits.
    """

    def __init__(self, array: pa.ChunkedArray) -> None:
        self._whole: bool = pa.types.is_integer(array.type)
        self.are_numbers: bool = self._whole and not _beyond(array)
        text = array if self.are_numbers or pa.types.is_string(array.type) else array.cast(pa.string())
        self.values: Sequence[Id] = text.to_pylist()
        self._rows = {value: row for row, value in enumerate(self.values)}

    def normal(self, value: Id) -> Id:
        """The id as the data has it: "7" is 7 where ids are numbers, 7 is "7" where they are strings."""
        if self.are_numbers and isinstance(value, str):
            digits = value.removeprefix("-")
            number = int(value) if digits.isascii() and digits.isdecimal() else None
            return number if number is not None and str(number) == value and -(2**63) <= number < 2**63 else value
        return value if self.are_numbers else str(value)

    def can_be(self, value: Id) -> bool:
        """Whether the data could hold such an id: no text where all are whole numbers."""
        value = self.normal(value)
        if isinstance(value, int) or not self._whole or self.are_numbers:
            return isinstance(value, int) == self.are_numbers
        return value.isascii() and value.isdecimal() and str(int(value)) == value and int(value) < 2**64

    def row(self, value: Id) -> int | None:
        """The row of an id; None where it is unknown."""
        return self._rows.get(self.normal(value))

    def __len__(self) -> int:
        return len(self.values)


def _beyond(array: pa.ChunkedArray) -> bool:
    """Whether a number does not fit in 64 bits with a sign."""
    largest = pc.max(array).as_py() if pa.types.is_uint64(array.type) else None
    return largest is not None and largest >= 2**63


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


class Catalogue:
    """items.parquet: one row per item, by ascending code."""

    def __init__(self, path: str | Path, item: str) -> None:
        self._fill(*read_table(path), item, f"`{path}`")
        self._row_of_code = torch.full((int(self.codes[-1]) + 2 if len(self.codes) else 1,), -1, dtype=torch.int64)
        self._row_of_code[self.codes] = torch.arange(len(self.codes))  # the last stays -1, for all codes from there on
        self._rows = self._row_of_code.tolist()

    def _fill(self, table: pa.Table, schema: Schema, item: str, where: str) -> None:
        self.table, self.schema = table, schema
        self.features_schema = Schema(tuple(c for c in self.schema if c.tags))
        self.features = Batch.of(read_columns(self.table, self.features_schema, where=where))
        codes = self.features.features[item]
        assert isinstance(codes, Tensor)
        self.codes = codes.to(torch.int64)
        if bool((self.codes[1:] <= self.codes[:-1]).any()):
            raise ArtifactError(
                f"{where} does not have one row per code of `{item}`, ascending",
                hint="items without a code of their own (out of vocabulary) have no place in the catalogue",
            )
        self.ids = Ids(self.table.column("item_id"))
        self.titles: Sequence[str] = self.table.column("title").cast(pa.string()).to_pylist()
        self.counts: Sequence[int] = self.table.column("count").to_pylist()
        self._folded = [title.casefold() for title in self.titles]
        self._codes: list[int] = self.codes.tolist()
        shown = [name for name in self.table.column_names if name.startswith(SHOW)]
        self._attributes = {name.removeprefix(SHOW): _whole(self.table.column(name)) for name in shown}

    def __len__(self) -> int:
        return len(self._codes)

    def rows(self, codes: Tensor) -> Tensor:
        """The row of every code, int64; codes must be of this catalogue."""
        return self._row_of_code.take(codes)

    def find(self, codes: Collection[int]) -> npt.NDArray[np.int64]:
        """The rows of codes from 0 on, in their order; -1 for reserved codes and for those of other items."""
        return self._row_of_code.numpy().take(np.fromiter(codes, np.int64, len(codes)), mode="clip")

    def row_of_code(self, code: int) -> int | None:
        """The row of a code; None for reserved codes and for those of other items."""
        row = self._rows[code] if 0 <= code < len(self._rows) else -1
        return None if row < 0 else row

    def code(self, item_id: Id) -> int | None:
        """The code of a raw id; None where the catalogue has no such item."""
        row = self.ids.row(item_id)
        return None if row is None else self._codes[row]

    @cached_property
    def filters(self) -> Filters:
        """Expressions over what people see of all items: ids, titles, and attributes without the prefix."""
        return Filters(
            {**self._attributes, "item_id": self.table.column("item_id"), "title": self.table.column("title")}
        )

    def attributes(self, row: int) -> dict[str, Any]:
        """What there is to show of an item beside its title: names without the prefix, plain values."""
        return {name: value[:] if isinstance(value, list) else value for name, value in self._read(row).items()}

    @cached_property
    def _read(self) -> Callable[[int], dict[str, Any]]:
        """The same, kept for the items that were shown last."""

        @lru_cache(_SHOWN)
        def read(row: int) -> dict[str, Any]:
            values = {name: column[row].as_py() for name, column in self._attributes.items()}
            return {name: None if value != value else value for name, value in values.items()}  # NaN is no JSON

        return read

    def search(self, text: str, limit: int) -> list[int]:
        """Rows whose title contains the text, those that start with it first, then the more popular."""
        wanted = text.casefold().strip()
        return [row for *_, row in heapq.nsmallest(limit, self._found(wanted))]

    def _found(self, wanted: str) -> Iterator[tuple[bool, int, int]]:
        """Whether a title that has the text begins otherwise, minus how popular it is, and its row."""
        for row, title in enumerate(self._folded):
            if wanted in title:
                yield not title.startswith(wanted), -self.counts[row], row


class People:
    """users.parquet: one row per person known to training, by ascending code."""

    def __init__(self, path: str | Path, wanted: Sequence[str]) -> None:
        table, schema = read_table(path)
        self.schema = Schema(tuple(c for c in schema if c.name in wanted))
        self.features = Batch.of(read_columns(table, self.schema, where=f"`{path}`"))
        self.ids = Ids(table.column("user_id"))
        seen = read_columns(table, schema.only(["seen"]), where=f"`{path}`")["seen"]
        assert isinstance(seen, Ragged)
        self._seen: npt.NDArray[np.integer[Any]] = seen.values.numpy()
        self._offsets: list[int] = seen.offsets.tolist()

    def __len__(self) -> int:
        return len(self.ids)

    def row(self, user_id: Id) -> int | None:
        return self.ids.row(user_id)

    def seen(self, row: int) -> npt.NDArray[np.integer[Any]]:
        """Codes of everything that person met in training, oldest first."""
        return self._seen[self._offsets[row] : self._offsets[row + 1]]

    def counts(self) -> npt.NDArray[np.int64]:
        """How many items each person met in training: [rows]."""
        return np.diff(np.asarray(self._offsets))


def user_side(schema: Schema) -> Schema:
    """A model's columns that a request must bring: of the user and of the moment."""
    return Schema(tuple(c for c in schema.without_tags(Tag.TARGET) if c.tags & {Tag.USER, Tag.CONTEXT, Tag.SEQUENCE}))
