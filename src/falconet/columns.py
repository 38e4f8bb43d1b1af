"""Whole columns as tensors: read from Arrow into tensors allocated beforehand, gathered by row number. Never rows.

Integers become int32 where the stored type fits (int8 … int32, uint8, uint16) and int64 elsewhere, floats float32,
booleans bool, dates int32 days, timestamps int64 microseconds since 1970 (UTC). A missing list is an empty one, a
missing value of a target, which is float32 whatever is stored, is NaN: not known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from falconet.batch import Feature, Ragged
from falconet.errors import DataError, SchemaError
from falconet.io.footer import from_arrow
from falconet.schema import Column, Schema, Tag

_TENSOR_TYPES = {
    torch.int32: {"int8", "int16", "int32", "uint8", "uint16", "date32[day]"},
    torch.int64: {"int64", "uint32", "uint64"},
    torch.float32: {"float16", "float32", "float64"},
    torch.bool: {"bool"},
}


def tensor_type(column: Column) -> torch.dtype | None:
    """The type of the column's tensor; None where it cannot be one (strings, structs)."""
    if column.dtype.startswith("timestamp"):
        return torch.int64
    return next((dtype for dtype, names in _TENSOR_TYPES.items() if column.dtype in names), None)


@dataclass(frozen=True)
class Field:
    """A column to be loaded, and the type of its tensor."""

    column: Column
    dtype: torch.dtype

    def bytes(self, rows: int, values: int) -> int:
        """Bytes of the tensors for so many rows and, in lists of any length, values."""
        if self.column.list == "ragged":
            return values * self.dtype.itemsize + (rows + 1) * 8
        return rows * int(self.column.list or 1) * self.dtype.itemsize


class Table:
    """Columns with room for `rows` rows, filled from Arrow tables. `values`: room for each ragged column.

    Raises DataError or SchemaError, with file and column, for missing values, lists of another length than the schema
    says, types other than it says, and integers beyond int64.
    """

    def __init__(
        self, fields: Sequence[Field], rows: int, values: Mapping[str, int], device: torch.device | str = "cpu"
    ) -> None:
        self._fields = tuple(fields)
        self._columns: dict[str, Tensor] = {}
        self._offsets: dict[str, Tensor] = {}
        for field in self._fields:
            name, shape = field.column.name, field.column.list
            size = (values[name],) if shape == "ragged" else (rows, int(shape)) if shape else (rows,)
            self._columns[name] = torch.empty(size, dtype=field.dtype, device=device)
            if shape == "ragged":
                narrow = torch.int32 if values[name] < 2**31 else torch.int64  # half the memory to go through
                self._offsets[name] = torch.empty(rows + 1, dtype=narrow, device=device)
        self.seek(0, {})

    def seek(self, row: int, values: Mapping[str, int]) -> None:
        """Put the next rows from `row` on, and the values of their ragged columns from `values` (or 0) on.

        The offsets of n rows take n + 1 places: rows put elsewhere may begin after a gap of one.
        """
        self._row = row
        for name, offsets in self._offsets.items():
            offsets[row] = values.get(name, 0)

    def append(self, table: pa.Table, *, where: str) -> None:
        """Copy the next rows in. `where` names their file in errors."""
        start, stop = self._row, self._row + table.num_rows
        found = from_arrow(table.schema)
        for field in self._fields:
            column, name = field.column, field.column.name
            place = f"column `{name}` of {where}"
            if tensor_type(found[name]) != tensor_type(column) or found[name].is_list != column.is_list:
                raise SchemaError(f"{place} holds {table.schema.field(name).type}, its schema says {_say(column)}")
            array = _one_array(table.column(name))
            if column.list == "ragged":
                values, lengths = _open_lists(array)
                offsets = self._offsets[name].numpy()
                np.cumsum(lengths, out=offsets[start + 1 : stop + 1])
                offsets[start + 1 : stop + 1] += offsets[start]
                _copy(self._columns[name][int(offsets[start]) : int(offsets[stop])], values, place)
            elif column.list is not None:
                values, lengths = _open_lists(array)
                if wrong := int((lengths != column.list).sum()):
                    raise SchemaError(
                        f"{place} has {wrong:,} lists that are not of the length {column.list} its schema says",
                        hint="`ListSlice` with padding makes lists of one length",
                    )
                _copy(self._columns[name][start:stop].view(-1), values, place)
            else:
                if array.null_count and Tag.TARGET in column.tags and field.dtype == torch.float32:
                    array = array.cast(pa.float64()).fill_null(math.nan)
                _copy(self._columns[name][start:stop], array, place)
        self._row = stop

    def paste(self, table: Table) -> None:
        """Copy all rows of a table of the same columns in, perhaps to another device."""
        start, stop = self._row, self._row + table._row
        for name, column in table._columns.items():
            if name in self._offsets:
                offsets, first = table._offsets[name][: table._row + 1], int(self._offsets[name][start])
                self._offsets[name][start : stop + 1] = offsets + first
                count = int(offsets[-1])
                self._columns[name][first : first + count] = column[:count]
            else:
                self._columns[name][start:stop] = column[: table._row]
        self._row = stop

    def take(self, rows: Tensor) -> dict[str, Feature]:
        """The given rows (int64) of every column, in the given order."""
        return {
            name: Ragged(values, self._offsets[name]).take(rows)
            if name in self._offsets
            else values.index_select(0, rows)
            for name, values in self._columns.items()
        }


def read_columns(table: pa.Table, schema: Schema, *, where: str) -> dict[str, Feature]:
    """The columns of `schema` in a table that is already in memory. `where` names its file in errors."""
    fields = []
    for column in schema:
        dtype = tensor_type(column)
        if dtype is None:
            raise SchemaError(
                f"column `{column.name}` of {where} holds {column.dtype}, which no model can read",
                hint="columns for show carry no tag",
            )
        fields.append(Field(column, dtype))
    lists = [column.name for column in schema if column.list == "ragged"]
    room = {name: int(pc.sum(pc.list_value_length(table.column(name))).as_py() or 0) for name in lists}
    made = Table(fields, table.num_rows, room)
    made.append(table, where=where)
    return made.take(torch.arange(table.num_rows))


def join(pieces: Sequence[dict[str, Feature]]) -> dict[str, Feature]:
    """The rows of all pieces one after the other."""
    if len(pieces) == 1:
        return pieces[0]
    return {name: _join([piece[name] for piece in pieces]) for name in pieces[0]}


def _join(pieces: Sequence[Feature]) -> Feature:
    dense = [piece for piece in pieces if isinstance(piece, Tensor)]
    if dense:
        return torch.cat(dense)
    ragged = [piece for piece in pieces if isinstance(piece, Ragged)]
    lengths = torch.cat([piece.lengths for piece in ragged])
    offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64)
    torch.cumsum(lengths, 0, out=offsets[1:])
    return Ragged(torch.cat([piece.values for piece in ragged]), offsets)


def _say(column: Column) -> str:
    return f"lists of {column.dtype}" if column.is_list else column.dtype


def _one_array(chunked: pa.ChunkedArray) -> pa.Array:
    if chunked.num_chunks == 1:
        return chunked.chunk(0)
    return pa.concat_arrays(chunked.chunks) if chunked.num_chunks else pa.array([], chunked.type)


def _open_lists(array: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """The values of all lists one after the other, and the length of each."""
    lengths = pc.list_value_length(array)
    if lengths.null_count:
        lengths = lengths.fill_null(0)
    return array.flatten(), _numbers(lengths).astype(np.int64)


def _copy(target: Tensor, array: pa.Array, place: str) -> None:
    """Fill `target` with an Arrow array, which must have a number everywhere."""
    if array.null_count:
        raise DataError(
            f"{place} has {array.null_count:,} missing values among {len(array):,}",
            hint="`FillMissing` fills them, `Dropna` leaves their rows out",
        )
    kind = array.type
    try:
        if pa.types.is_timestamp(kind):
            array = array.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64())
        elif pa.types.is_date32(kind):
            array = array.cast(pa.int32())
        elif pa.types.is_boolean(kind):
            array = array.cast(pa.uint8())
        elif pa.types.is_uint64(kind):
            array = array.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise DataError(f"{place} has a value that does not fit into int64: {error}") from error
    with np.errstate(over="ignore"):  # beyond float32 is infinity
        np.copyto(target.numpy(), _numbers(array), casting="unsafe")


def _numbers(array: pa.Array) -> npt.NDArray[Any]:
    """An array of integers or floats without nulls, not copied. (Arrow's own `to_numpy` would load pandas.)"""
    kind = array.type
    letter = "f" if pa.types.is_floating(kind) else "u" if pa.types.is_unsigned_integer(kind) else "i"
    return np.frombuffer(
        array.buffers()[1] or b"", f"{letter}{kind.byte_width}", len(array), array.offset * kind.byte_width
    )
