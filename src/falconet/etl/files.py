"""One output file: pieces one after the other, in row groups of one size, with the schema in the footer."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import quote

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from falconet.compute.engine import collect
from falconet.compute.exchange import Source, Transform, writing
from falconet.compute.executor import ROW, reach, reading
from falconet.errors import ConfigError, DataError, suggest
from falconet.etl.order import places
from falconet.etl.types import polars_type
from falconet.schema import FOOTER_KEY, Schema

Compression: TypeAlias = Literal["zstd", "lz4", "snappy", "none"]
ROW_GROUP = 131_072
DICTIONARY = 4096  # codes up to here are stored as numbers of a dictionary, which makes more of them larger
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How rows lie in files: row groups of `row_group_size` rows, compressed; `partition_on` names the columns that
    become folders `column=value`."""

    row_group_size: int = ROW_GROUP
    compression: Compression = "zstd"
    compression_level: int | None = None
    partition_on: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.row_group_size < 1:
            raise ConfigError(f"row_group_size={self.row_group_size}", hint="at least 1")
        if self.compression not in get_args(Compression):
            raise ConfigError(
                f"there is no compression `{self.compression}`",
                hint=suggest(str(self.compression), get_args(Compression)),
            )
        if self.compression_level is not None and self.compression != "zstd":
            raise ConfigError(
                f'compression="{self.compression}" has no levels', hint='`compression_level` is of "zstd"'
            )
        if self.compression_level is not None and not 1 <= self.compression_level <= 22:
            raise ConfigError(f"compression_level={self.compression_level}", hint="1 to 22")


@dataclass(frozen=True)
class Chunk:
    """Rows `skip` to `skip + rows` of a source, once it is in its order."""

    source: Source
    skip: int
    rows: int


@dataclass(frozen=True)
class ReadChunk:
    """The rows of a chunk, shuffled within its source if there is a seed, through `apply` if that is still to come."""

    seed: int | None
    apply: Transform | None
    where: str | None = None  # what the source was made from, for messages

    def __call__(self, chunk: Chunk) -> pl.DataFrame:
        with reading(self.where or f"`{chunk.source.path}`"):
            frame = chunk.source.scan(row_numbers=True)
            if self.seed is None:
                frame = frame.slice(chunk.skip, chunk.rows)
            else:
                rows = collect(frame).rechunk()
                frame = rows[places(rows[ROW], self.seed).slice(chunk.skip, chunk.rows)].lazy()
            return collect(frame.drop(ROW) if self.apply is None else self.apply(frame).drop(ROW, strict=False))


@dataclass(frozen=True)
class ReadRows:
    """Rows of a frame in memory by their numbers, a slice of an order, through `apply`."""

    frame: pl.DataFrame
    order: pl.Series
    apply: Transform
    where: str

    def __call__(self, piece: tuple[int, int]) -> pl.DataFrame:
        numbers = self.order.slice(*piece)
        rows = self.frame[numbers].with_columns(numbers.cast(pl.UInt64).alias(ROW))
        with reading(self.where):
            return collect(self.apply(rows.lazy()).drop(ROW, strict=False))


@dataclass(frozen=True)
class OutputFile:
    """File number `index` of a folder and the pieces that go into it, one after the other."""

    index: int
    pieces: tuple[Any, ...]
    rows: int


@dataclass(frozen=True)
class WriteFile:
    """Writes an OutputFile to `folder` (aside, in `room`, then renamed). The next piece is read while one is written.

    With `partition_on` its rows are in memory together and go to one file for each of their values.
    """

    schema: Schema
    read: Callable[[Any], pl.DataFrame]
    layout: Layout
    folder: str
    room: str

    def __call__(self, file: OutputFile) -> None:
        room, name = reach(self.room), f"part-{file.index:05d}.parquet"
        frames = (self._checked(frame, name) for frame in _ahead(self.read, file.pieces))
        if self.layout.partition_on:
            self._write_partitions(pl.concat(frames), name, room)
        else:
            self._write(frames, Path(self.folder) / name, room)

    def _write_partitions(self, frame: pl.DataFrame, name: str, room: Path) -> None:
        on, base = self.layout.partition_on, Path(self.folder)
        parted: dict[Path, pl.DataFrame] = {}
        for values, rows in frame.partition_by(on, maintain_order=True, as_dict=True).items():
            folder = base.joinpath(*(folder_name(*pair) for pair in zip(on, values, strict=True)))
            folder.mkdir(parents=True, exist_ok=True)
            parted[folder] = rows.drop(on)
        _check_told_apart(parted, base)
        for folder, rows in parted.items():
            self._write([rows], folder / name, room)

    def _write(self, frames: Iterable[pl.DataFrame], target: Path, room: Path) -> None:
        aside = room / f"{uuid.uuid4().hex}.parquet"
        layout = self.layout
        with writing(target):
            with pq.ParquetWriter(
                aside,
                self._arrow_schema,
                compression=layout.compression,
                compression_level=layout.compression_level,
                use_dictionary=self._dictionaries,
            ) as writer:
                tables = (pa.Table.from_arrays(f.to_arrow().columns, schema=self._arrow_schema) for f in frames)
                for table in _row_groups(tables, layout.row_group_size):
                    writer.write_table(table, row_group_size=layout.row_group_size)
            aside.replace(target)

    @property
    def _arrow_schema(self) -> pa.Schema:
        kept = [column for column in self.schema if column.name not in self.layout.partition_on]
        arrow = pl.DataFrame(schema={column.name: polars_type(column) for column in kept}).to_arrow().schema
        fields = [field.with_nullable(self.schema[field.name].nullable) for field in arrow]
        return pa.schema(fields, metadata={FOOTER_KEY: self.schema.to_json()})

    @property
    def _dictionaries(self) -> list[str]:
        """The columns that a dictionary makes smaller, as Parquet names them; of unknown ones it tries."""
        small = [column for column in self.schema if (column.cardinality or 0) <= DICTIONARY]
        return [f"{column.name}.list.element" if column.is_list else column.name for column in small]

    def _checked(self, frame: pl.DataFrame, name: str) -> pl.DataFrame:
        for column in self.schema:
            if not column.nullable and (nulls := frame[column.name].null_count()):
                raise DataError(
                    f"column `{column.name}` has {nulls} nulls, and its schema says it has none (`{name}`)",
                    hint="`FillMissing` fills them",
                )
        return frame


def folder_name(name: str, value: Any) -> str:
    """`column=value` as a folder, as Hive, Arrow and Polars read it: all but letters, digits and `_.-~` escaped."""
    if value is None:
        return f"{quote(name, safe='')}={NULL_FOLDER}"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if text in ("", NULL_FOLDER):
        raise DataError(
            f"`{name}` has the value {text!r}, which no folder can be named after", hint="replace it, or leave it null"
        )
    return f"{quote(name, safe='')}={quote(text, safe='')}"


def _check_told_apart(folders: Iterable[Path], base: Path) -> None:
    """Raise DataError for a folder that this disk takes for another: where upper and lower case are one, or a point at
    the end of a name is none.
    """
    names: dict[Path, set[str]] = {}
    for folder in folders:
        for path in (folder, *folder.parents):
            if path == base:
                break
            if path.parent not in names:
                names[path.parent] = {found.name for found in path.parent.iterdir()}
            if path.name not in names[path.parent]:
                raise DataError(
                    f"`{path.name}` is no folder of its own on this disk, which takes another name for the same",
                    hint="partition_on: values must differ in more than upper and lower case, or a point at the end",
                )


def _ahead(read: Callable[[Any], pl.DataFrame], pieces: Iterable[Any]) -> Iterator[pl.DataFrame]:
    """What `read` gives for each piece, in order; the next is made while one is used."""
    with ThreadPoolExecutor(1) as pool:
        waiting = None
        for piece in pieces:
            coming = pool.submit(copy_context().run, read, piece)
            if waiting is not None:
                yield waiting.result()
            waiting = coming
        if waiting is not None:
            yield waiting.result()


def _row_groups(tables: Iterator[pa.Table], size: int) -> Iterator[pa.Table]:
    """The same rows as tables of exactly `size` rows, the last one shorter: the bytes do not depend on the pieces."""
    waiting: list[pa.Table] = []
    rows = 0
    for table in tables:
        waiting.append(table)
        rows += table.num_rows
        if rows < size:
            continue
        held = pa.concat_tables(waiting)
        whole = rows - rows % size
        for start in range(0, whole, size):
            yield held.slice(start, size).combine_chunks()
        waiting, rows = [held.slice(whole)], rows - whole
    if rows:
        yield pa.concat_tables(waiting).combine_chunks()
