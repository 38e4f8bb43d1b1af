"""A data set: rows in Parquet files, seen as parts of about one size. Only footers are read until a part is."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import polars as pl

from falconet.compute.exchange import BUCKET
from falconet.compute.executor import ROW, Part
from falconet.compute.memory import parse_size
from falconet.errors import ColumnNotFoundError, ConfigError, DataError, SchemaError
from falconet.etl.sources import File, open_source
from falconet.etl.widen import widest
from falconet.io.footer import read_footer

# Bytes of a value in memory, where a dictionary makes the file's own figure too small (of strings it stays so).
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 16}


class Dataset:
    """Rows from a Parquet or CSV file, a folder or glob of them, a list of files, or a Polars, pandas or Arrow table.

    `part_size` bounds the decoded bytes of the columns of one part ("256MB" or a number of bytes); it changes memory
    and parallelism, never a result. `columns` keeps the named columns. `dtypes` says what columns are, where a CSV file
    or two files that differ leave it open. `separator` is for CSV (default: a comma, in `.tsv` files a tab).

    CSV files and tables are converted once to Parquet in a private folder that goes when the process ends (TMPDIR says
    where; workers on other machines must see it). The index of a pandas frame is not part of the data.

    Raises DataError for files that are missing, empty or damaged, SchemaError for columns that are missing or whose
    types differ between files in more than width, all before any data is read.
    """

    def __init__(
        self,
        source: Any,
        *,
        part_size: str | int = "256MB",
        columns: Sequence[str] | None = None,
        dtypes: Mapping[str, pl.DataType | type[pl.DataType]] | None = None,
        separator: str | None = None,
    ) -> None:
        self.part_size = parse_size(part_size)
        given = {name: dtype if isinstance(dtype, pl.DataType) else dtype() for name, dtype in (dtypes or {}).items()}
        if isinstance(columns, str):
            raise ConfigError(f"columns={columns!r} is a string", hint=f'columns=["{columns}"]')
        self._files = tuple(_open(file) for file in open_source(source, given, separator))
        self.schema: pl.Schema = _unify(self._files, columns, given)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self._files)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for the very same data: names, numbers of rows and sizes of the files; of a table, its content."""
        facts = [[*file.file.identity, file.rows] for file in self._files]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def parts(self) -> tuple[Part, ...]:
        """The rows in order, cut at row groups, or within them where one is larger than `part_size`.

        A data set without rows has one part without rows, so that types are known everywhere.
        """
        return self._parts

    @cached_property
    def _parts(self) -> tuple[Part, ...]:
        parts: list[Part] = []
        first = 0
        for file in self._files:
            for offset, rows in _cut(file.groups(set(self.schema)), self.part_size):
                parts.append(self._part(file, offset, rows, first + offset))
            first += file.rows
        return tuple(parts) or (self._part(self._files[0], 0, 0, 0),)

    def scan(self, *, row_numbers: bool = False) -> pl.LazyFrame:
        """All rows, lazily, file after file; with `row_numbers` also their UInt64 numbers as `__row__`."""
        firsts = [sum(file.rows for file in self._files[:i]) for i in range(len(self._files))]
        scans = [
            self._part(file, 0, file.rows, first).scan(row_numbers=row_numbers)
            for file, first in zip(self._files, firsts, strict=True)
        ]
        return scans[0] if len(scans) == 1 else pl.concat(scans)

    def _part(self, file: _Opened, offset: int, rows: int, first_row: int) -> Part:
        casts = tuple((name, dtype) for name, dtype in self.schema.items() if file.schema[name] != dtype)
        return Part(str(file.file.path), offset, rows, first_row, tuple(self.schema), casts)

    def __repr__(self) -> str:
        files = f"{len(self._files)} file{'s' * (len(self._files) != 1)}"
        return f"Dataset({self.rows:,} rows, {files}, columns {', '.join(self.schema)})"


@dataclass(frozen=True)
class _Opened:
    """A file whose footer has been read."""

    file: File
    schema: pl.Schema
    sizes: tuple[tuple[int, Mapping[str, int]], ...]  # rows, and decoded bytes per column, of each row group

    @property
    def rows(self) -> int:
        return sum(rows for rows, _ in self.sizes)

    def groups(self, columns: set[str]) -> list[tuple[int, int]]:
        """Rows and bytes of each row group."""
        return [(rows, sum(size for name, size in sizes.items() if name in columns)) for rows, sizes in self.sizes]


def _open(file: File) -> _Opened:
    meta = read_footer(file.path)
    try:
        schema = pl.Schema(pl.read_parquet_schema(file.path))
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{file.where} cannot be read: {error}") from error
    if not schema:
        raise SchemaError(f"{file.where} has no columns")
    for name in schema:
        if name in (ROW, BUCKET):
            raise SchemaError(f"{file.where} has a column `{name}`, a name falconet needs itself", hint="rename it")
        if name == "*" or (name.startswith("^") and name.endswith("$")):
            raise SchemaError(f"{file.where} has a column `{name}`, which Polars takes for a pattern", hint="rename it")
    sizes = []
    for i in range(meta.num_row_groups):
        group = meta.row_group(i)
        columns: dict[str, int] = {}
        for j in range(group.num_columns):
            chunk = group.column(j)
            name = next((n for n in _prefixes(chunk.path_in_schema) if n in schema), chunk.path_in_schema)
            size = max(chunk.total_uncompressed_size, chunk.num_values * _WIDTHS.get(chunk.physical_type, 0))
            columns[name] = columns.get(name, 0) + size
        sizes.append((group.num_rows, columns))
    return _Opened(file, schema, tuple(sizes))


def _prefixes(path: str) -> Iterator[str]:
    """The column a leaf belongs to: `genres.list.element` is of `genres`, but a name may have dots of its own."""
    words = path.split(".")
    return (".".join(words[:n]) for n in range(len(words), 0, -1))


def _unify(files: Sequence[_Opened], columns: Sequence[str] | None, dtypes: Mapping[str, pl.DataType]) -> pl.Schema:
    first = files[0]
    names = tuple(first.schema if columns is None else columns)
    if columns is not None and not names:
        raise ConfigError("columns=[] leaves nothing", hint="name the columns to keep, or leave `columns` out")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"`{twice}` is in `columns` twice")
    for name in dtypes:
        if name not in first.schema:
            raise ColumnNotFoundError.of(name, first.schema, where=f"{first.file.where} (`dtypes`)")
    unified: dict[str, pl.DataType] = {}
    for file in files:
        for name in names:
            if name not in file.schema:
                raise ColumnNotFoundError.of(name, file.schema, where=file.file.where)
        if columns is None and (extra := [name for name in file.schema if name not in first.schema]):
            raise SchemaError(
                f"{file.file.where} has a column `{extra[0]}`, which {first.file.where} lacks",
                hint="`columns=[...]` keeps the columns that all files have",
            )
        for name in names:
            here, before = file.schema[name], unified.get(name, file.schema[name])
            wide = dtypes.get(name) or widest(before, here)
            if wide is None:
                raise SchemaError(
                    f"column `{name}` is {here} in {file.file.where} and {before} in the files before it",
                    hint=f'convert one of them, or say what it is: dtypes={{"{name}": pl.{before.base_type()}}}',
                )
            unified[name] = wide
    return pl.Schema(unified)


def _cut(groups: Sequence[tuple[int, int]], limit: int) -> Iterator[tuple[int, int]]:
    """Offsets and numbers of rows of parts: row groups together up to `limit` bytes, larger ones in equal pieces."""
    offset = start = held = 0
    for rows, size in groups:
        if offset > start and held + size > limit:
            yield start, offset - start
            start, held = offset, 0
        if size > limit and rows:
            pieces = min(rows, math.ceil(size / limit))
            edges = [offset + rows * i // pieces for i in range(pieces + 1)]
            yield from ((a, b - a) for a, b in pairwise(edges))
            start = offset = offset + rows
            continue
        offset += rows
        held += size
    if offset > start:
        yield start, offset - start
