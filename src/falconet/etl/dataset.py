"""A data set: rows in Parquet files, seen as parts of about one size. Only footers are read until a part is."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from falconet.compute.engine import collect
from falconet.compute.exchange import BUCKET, Source
from falconet.compute.executor import ROW, Part, reading
from falconet.errors import ColumnNotFoundError, ConfigError, DataError, SchemaError
from falconet.etl.hive import agrees, hive_types, hive_value
from falconet.etl.names import repeated
from falconet.etl.sources import File, open_source
from falconet.etl.text_files import TextFormat
from falconet.etl.types import polars_type
from falconet.etl.widen import say_type, widest
from falconet.io.footer import read_footer, schema_of
from falconet.memory import parse_size
from falconet.schema import Column, Schema

# Bytes of a value in memory, where a dictionary makes the file's own figure too small (of strings it stays so).
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 16}


class Dataset:
    """Rows from files (Parquet, CSV, JSON lines, Arrow IPC), or from a Polars, pandas or Arrow table.

    `source` is a file, a folder, a glob (`data/**/*.parquet`), a list of files, or a table; paths are of this machine
    or of an object store (`s3://bucket/folder`, gs://, az://), for which `storage_options` has what the environment
    has not: `access_key_id`, `secret_access_key`, `session_token`, `region`, `endpoint_url`, `anonymous` (s3),
    `account_name`, `account_key` (az). A folder stands for the files in it and in its hive folders (`year=2020/`),
    whose values are columns; other folders in it are not entered.

    `part_size` bounds the decoded bytes of the columns of one part ("256MB" or a number of bytes); it changes memory
    and parallelism, never a result. `columns` keeps the named columns. `dtypes` says what columns are, as Polars types
    or by name ("float64"), where text or two files that differ leave it open.

    Of text: `separator` of CSV files (default: a comma, in `.tsv` files a tab; several characters, like `::`, then
    without quotes), `encoding`, `null_values` beside nothing at all, `quote` (None: there are no quotes), and
    `has_header=False` where the first line is data and `columns` are the names. CSV and JSON lines may be packed (.gz,
    .zst, .bz2, .lz4). Types are those of all lines of all files (etl/text_types.py, etl/json_lines.py).

    All but Parquet is converted to it once, in bounded memory, in a private folder that goes when the process ends
    (TMPDIR says where; workers on other machines must see it). The index of a pandas frame is not part of the data.

    Raises DataError for files that are missing, empty or damaged (of text: with the line), SchemaError for columns that
    are missing or whose types differ between files in more than width, all before any work is done.
    """

    def __init__(
        self,
        source: Any,
        *,
        part_size: str | int = "256MB",
        columns: Sequence[str] | None = None,
        dtypes: Mapping[str, pl.DataType | type[pl.DataType] | str] | None = None,
        separator: str | None = None,
        encoding: str = "utf-8",
        has_header: bool = True,
        null_values: str | Sequence[str] = (),
        quote: str | None = '"',
        storage_options: Mapping[str, object] | None = None,
    ) -> None:
        self.part_size = parse_size(part_size)
        if isinstance(columns, str):
            raise ConfigError(f"columns={columns!r} is a string", hint=f'columns=["{columns}"]')
        if not has_header and not columns:
            raise ConfigError("has_header=False and no names", hint="columns=[…] names the columns of the file")
        self._dtypes = {name: _dtype(name, dtype) for name, dtype in (dtypes or {}).items()}
        text = TextFormat(
            separator=separator,
            encoding=encoding,
            names=None if has_header else tuple(columns or ()),
            null_values=(null_values,) if isinstance(null_values, str) else tuple(null_values),
            quote=quote,
        )
        files = open_source(source, self._dtypes, text, storage_options)
        types = hive_types((file.hive for file in files), self._dtypes)
        self._files = tuple(_map(lambda file: _open(file, types), files))
        self.schema: pl.Schema = _unify(self._files, columns, self._dtypes)

    def select(self, columns: Sequence[str]) -> Dataset:
        """The same rows with these columns alone."""
        if isinstance(columns, str):
            raise ConfigError(f"columns={columns!r} is a string", hint=f'columns=["{columns}"]')
        for name in columns:
            if name not in self.schema:
                raise ColumnNotFoundError.of(name, self.schema, where="the data set")
        chosen = object.__new__(Dataset)
        chosen.part_size, chosen._dtypes, chosen._files = self.part_size, self._dtypes, self._files
        chosen.schema = _unify(self._files, columns, self._dtypes)
        return chosen

    def head(self, n: int = 5) -> pl.DataFrame:
        """The first rows. Raises DataError for a damaged file."""
        return first_rows(self.parts(), n)

    def collect(self) -> pl.DataFrame:
        """All rows in memory. Raises DataError for a damaged file."""
        return first_rows(self.parts(), self.rows)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self._files)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for the very same data: names, numbers of rows and sizes of the files; of a table, its content."""
        facts = [[*file.file.identity, file.rows] for file in self._files]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    @cached_property
    def described(self) -> Schema:
        """What the footers say of the files' own columns: falconet's schema where it wrote them, else Arrow's types.

        A column is nullable if it is so in any file; the rest is what the first file says.
        """
        schemas = [schema_of(file.meta, file.file.where) for file in self._files]
        nullable = {column.name for schema in schemas for column in schema if column.nullable}
        return Schema(tuple(replace(column, nullable=column.name in nullable) for column in schemas[0]))

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
        ends = accumulate(file.rows for file in self._files)
        scans = [
            self._part(file, 0, file.rows, end - file.rows).scan(row_numbers=row_numbers)
            for file, end in zip(self._files, ends, strict=True)
        ]
        return scans[0] if len(scans) == 1 else pl.concat(scans)

    def _part(self, file: _Opened, offset: int, rows: int, first_row: int) -> Part:
        casts = tuple((name, dtype) for name, dtype in self.schema.items() if file.schema[name] != dtype)
        constants = tuple(constant for constant in file.constants if constant[0] in self.schema)
        options = () if file.file.store is None else file.file.store.polars
        return Part(file.file.location, offset, rows, first_row, tuple(self.schema), casts, constants, options)

    def __repr__(self) -> str:
        files = f"{len(self._files)} file{'s' * (len(self._files) != 1)}"
        return f"Dataset({self.rows:,} rows, {files}, columns {', '.join(self.schema)})"


def first_rows(parts: Sequence[Source], rows: int) -> pl.DataFrame:
    """The first rows of some parts, at most so many. Raises DataError with the file that cannot be read."""
    frames = []
    for part in parts:
        with reading(f"`{part.path}`"):
            frames.append(collect(part.scan().head(rows)))
        rows -= frames[-1].height
        if rows <= 0:
            break
    return pl.concat(frames)


@dataclass(frozen=True)
class _Opened:
    """A file whose footer has been read."""

    file: File
    schema: pl.Schema  # its own columns, then those that its folders give
    sizes: tuple[tuple[int, Mapping[str, int]], ...]  # rows, and decoded bytes per column, of each row group
    constants: tuple[tuple[str, object, pl.DataType], ...]  # the columns that its folders give
    meta: pq.FileMetaData = field(repr=False)

    @property
    def rows(self) -> int:
        return sum(rows for rows, _ in self.sizes)

    def groups(self, columns: set[str]) -> list[tuple[int, int]]:
        """Rows and bytes of each row group."""
        return [(rows, sum(size for name, size in sizes.items() if name in columns)) for rows, sizes in self.sizes]


def _map(fn: Callable[[File], _Opened], files: Sequence[File]) -> Iterable[_Opened]:
    """Many at once where each waits for a store to answer."""
    if files[0].store is None:
        return [fn(file) for file in files]
    with ThreadPoolExecutor(min(16, len(files))) as pool:
        return list(pool.map(fn, files))


def _open(file: File, types: Mapping[str, pl.DataType]) -> _Opened:
    meta, schema = _footer(file)
    if not schema:
        raise SchemaError(f"{file.where} has no columns")
    constants = []
    for name, text in file.hive:
        if name not in schema:
            value = hive_value(text, types[name])
            if value is None and text is not None:
                raise DataError(f"{file.where}: the folder `{name}={text}` is no {types[name]} (`dtypes`)")
            constants.append((name, value, types[name]))
        elif not agrees(meta, name, text, schema[name]):
            raise SchemaError(
                f"{file.where} has a column `{name}` of its own, which may differ from its folder `{name}={text}`",
                hint="leave it out of the file, or name the files in another folder",
            )
    for name in [*schema, *(name for name, _, _ in constants)]:
        if name in (ROW, BUCKET):
            raise SchemaError(f"{file.where} has a column `{name}`, a name falconet needs itself", hint="rename it")
        if not name or "\0" in name:
            what = "without a name" if not name else f"{name!r}, and no name may have a null byte"
            raise SchemaError(f"{file.where} has a column {what}", hint="rename it")
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
    whole = pl.Schema({**schema, **{name: dtype for name, _, dtype in constants}})
    return _Opened(file, whole, tuple(sizes), tuple(constants), meta)


def _footer(file: File) -> tuple[pq.FileMetaData, pl.Schema]:
    """What a file says of itself, and the types Polars will read."""
    try:
        if file.store is None:
            return read_footer(file.path, file.where), pl.Schema(pl.read_parquet_schema(file.path))
        with file.store.errors(file.where):
            with file.store.filesystem.open_input_file(f"{file.store.bucket}/{file.path}") as opened:
                meta = read_footer(opened, file.where)
            options = dict(file.store.polars)
            frame = pl.scan_parquet(file.location, glob=False, hive_partitioning=False, storage_options=options)
            return meta, frame.collect_schema()
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{file.where} cannot be read: {error}") from error


def _dtype(name: str, dtype: pl.DataType | type[pl.DataType] | str) -> pl.DataType:
    if isinstance(dtype, str):
        return polars_type(Column(name=name, dtype=dtype))
    return dtype if isinstance(dtype, pl.DataType) else dtype()


def _prefixes(path: str) -> Iterator[str]:
    """The column a leaf belongs to: `genres.list.element` is of `genres`, but a name may have dots of its own."""
    words = path.split(".")
    return (".".join(words[:n]) for n in range(len(words), 0, -1))


def _unify(files: Sequence[_Opened], columns: Sequence[str] | None, dtypes: Mapping[str, pl.DataType]) -> pl.Schema:
    first = files[0]
    names = tuple(first.schema if columns is None else columns)
    if columns is not None and not names:
        raise ConfigError("columns=[] leaves nothing", hint="name the columns to keep, or leave `columns` out")
    if twice := repeated(names):
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
                meets = "Float64" if before.is_numeric() and here.is_numeric() else "String"
                raise SchemaError(
                    f"column `{name}` is {here} in {file.file.where} and {before} in the files before it",
                    hint=f"convert one of them, or say what it is: {say_type(name, meets.lower())}",
                )
            if wide != here and name in dtypes and not _casts(here, wide):
                raise SchemaError(
                    f"column `{name}` is {here} in {file.file.where}: it cannot be read as {wide} (`dtypes`)",
                    hint="convert it with an operator",
                )
            unified[name] = wide
    return pl.Schema(unified)


def _casts(here: pl.DataType, wanted: pl.DataType) -> bool:
    """Whether Polars has a cast at all; whether it fits every value shows when they are read."""
    if isinstance(here, pl.Null):
        return True
    text = isinstance(here, (pl.String, pl.Categorical, pl.Enum))
    return here.is_nested() == wanted.is_nested() and not (text and (wanted.is_temporal() or wanted == pl.Boolean))


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
