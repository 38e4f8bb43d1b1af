"""What a data set can be made from, as Parquet files: text, Arrow files and tables are converted once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from falconet.compute.exchange import writing
from falconet.errors import ConfigError, DataError, SchemaError
from falconet.etl.arrow_files import ROW_GROUP, polars_schema, read_arrow, write_rows
from falconet.etl.json_lines import infer_json, read_json
from falconet.etl.names import check_bytes, repeated
from falconet.etl.object_store import ObjectStore
from falconet.etl.paths import Found, find, find_list
from falconet.etl.text_files import TextFormat, infer_csv, read_csv
from falconet.etl.types import element
from falconet.etl.widen import say_type, widest
from falconet.io.private import private_folder
from falconet.progress import progress

_TEXT = "how text is written (separator, encoding, has_header, null_values, quote) is said of CSV files only"


@dataclass(frozen=True)
class File:
    """A Parquet file, what errors call it, and what identifies its content together with the number of its rows.

    `hive` are the values its folders give; `store` is the object store it lies in, where it does.
    """

    path: str
    where: str
    identity: tuple[str, str]  # name and size; of a frame, its hash
    hive: tuple[tuple[str, str | None], ...] = ()
    store: ObjectStore | None = None

    @property
    def location(self) -> str:
        return self.path if self.store is None else self.store.url(self.path)


def open_source(
    source: Any,
    dtypes: Mapping[str, pl.DataType],
    text: TextFormat | None = None,
    options: Mapping[str, object] | None = None,
) -> tuple[File, ...]:
    """The Parquet files of a source, in order. Raises DataError for what is not there or cannot be read."""
    text = text or TextFormat()
    if isinstance(source, (str, os.PathLike)):
        return _open_files(find(source, options or {}), dtypes, text)
    if isinstance(source, Sequence):
        return _open_files(find_list(source, options or {}), dtypes, text)
    if options:
        raise ConfigError("storage_options are for object stores", hint="the data is a table in memory")
    if text != TextFormat():
        raise ConfigError("the data is a table in memory, no CSV file", hint=_TEXT)
    return (_store(source),)


def _open_files(files: Sequence[Found], dtypes: Mapping[str, pl.DataType], text: TextFormat) -> tuple[File, ...]:
    kinds = [file.kind(text=text.separator is not None) for file in files]
    if len(set(kinds)) > 1:
        other = files[kinds.index(next(k for k in kinds if k != kinds[0]))]
        raise DataError(
            f"{files[0].where} and {other.where} are not files of one kind", hint=f"{kinds[0]}, or {other.kind()}"
        )
    if kinds[0] != "CSV" and text != TextFormat():
        raise ConfigError(f"{files[0].where} is no CSV file", hint=_TEXT)
    if kinds[0] == "Parquet":
        return tuple(File(f.path, f.where, f.identity, f.hive, f.store) for f in files)
    folder = private_folder()
    targets = [folder / f"{i:05d}.parquet" for i in range(len(files))]
    passes = 1 if kinds[0] == "Arrow" else 2  # text is read once for its types, once for its rows
    with progress(f"reading {kinds[0]}", total=passes * sum(file.size for file in files), unit="bytes") as task:
        if kinds[0] == "Arrow":
            for file, target in zip(files, targets, strict=True):
                _convert_arrow(file, target)
                task.advance(file.size)
        else:
            infer = infer_json if kinds[0] == "JSON lines" else partial(infer_csv, text=text, dtypes=dtypes)
            read = read_json if kinds[0] == "JSON lines" else partial(read_csv, text=text)
            found = []
            for file in files:
                found.append(infer(file))
                task.advance(file.size)
            schema = _of_all(files, found)
            for file, names, target in zip(files, found, targets, strict=True):
                own = schema if kinds[0] == "JSON lines" else {name: schema[name] for name in names}
                write_rows(read(file, schema=own), own, target)
                task.advance(file.size)
    return tuple(File(str(t), f.where, f.identity, f.hive) for f, t in zip(files, targets, strict=True))


def _of_all(files: Sequence[Found], found: Sequence[Mapping[str, pl.DataType]]) -> dict[str, pl.DataType]:
    """The types that text has in all files. Where no line of any has a value, it is text."""
    schema: dict[str, pl.DataType] = {}
    for file, names in zip(files, found, strict=True):
        for name, dtype in names.items():
            before = schema.get(name, dtype)
            wide = widest(before, dtype, inferred=True)
            if wide is None:
                raise SchemaError(
                    f"column `{name}` is {dtype} in {file.where} and {before} in the files before it",
                    hint=f"say what it is: {say_type(name, 'string')}",
                )
            schema[name] = wide
    if not schema:
        raise DataError(f"{files[0].where} is empty", hint="a data set has columns")
    _check_columns(schema, files[0].where)
    return {name: _settled(dtype) for name, dtype in schema.items()}


def _settled(dtype: pl.DataType) -> pl.DataType:
    if isinstance(dtype, pl.Null):
        return pl.String()
    if isinstance(dtype, pl.List):
        return pl.List(_settled(dtype.inner if isinstance(dtype.inner, pl.DataType) else dtype.inner()))
    if isinstance(dtype, pl.Struct):
        fields = {f.name: f.dtype if isinstance(f.dtype, pl.DataType) else f.dtype() for f in dtype.fields}
        return pl.Struct({name: _settled(inner) for name, inner in fields.items()})
    return dtype


def _convert_arrow(file: Found, target: Path) -> None:
    schema, batches = read_arrow(file)
    _write_batches(schema, batches, target, file.where)


def _write_batches(schema: pa.Schema, batches: Iterable[pa.RecordBatch], target: Path, where: str) -> None:
    types = polars_schema(schema, where)
    _check_columns(types, where)
    write_rows((pl.DataFrame(pl.from_arrow(batch)).cast(types) for batch in batches), types, target)


def as_polars(source: Any) -> pl.DataFrame | pl.LazyFrame:
    """A Polars, pandas or Arrow table as a Polars frame. Raises DataError for anything else."""
    if isinstance(source, (pl.DataFrame, pl.LazyFrame)):
        return source
    where = f"the {type(source).__module__.partition('.')[0]} frame"
    try:
        if isinstance(source, (pa.Table, pa.RecordBatch)):
            polars_schema(source.schema, where)
            return pl.DataFrame(pl.from_arrow(source))
        if _is_pandas(source):
            names = [str(name) for name in source.columns]
            if twice := repeated(names):
                raise SchemaError(f"{where} has two columns `{twice}`", hint="rename one of them")
            return pl.from_pandas(source, include_index=False)
    except (pa.ArrowException, pl.exceptions.PolarsError, TypeError, ValueError) as error:
        raise DataError(f"{where} cannot be read: {_first_line(error)}") from error
    raise _no_table(source)


def _no_table(source: Any) -> DataError:
    return DataError(
        f"a {type(source).__name__} is not a data set",
        hint="a path (file, folder, glob), a list of paths, or a Polars, pandas or Arrow table",
    )


def _is_pandas(source: Any) -> bool:
    return type(source).__module__.split(".")[0] == "pandas" and type(source).__name__ == "DataFrame"


def _store(source: Any) -> File:
    path = private_folder() / "frame.parquet"
    known = isinstance(source, (pl.DataFrame, pl.LazyFrame, pa.Table, pa.RecordBatch)) or _is_pandas(source)
    try:
        if not known and hasattr(source, "__arrow_c_stream__"):
            try:
                reader = pa.RecordBatchReader.from_stream(source)
            except pa.ArrowInvalid as error:  # a single column, of no name
                raise _no_table(source) from error
            _write_batches(reader.schema, reader, path, "the frame")
        elif type(source).__module__ == "pyarrow._dataset":
            _write_batches(source.schema, source.to_batches(), path, "the frame")
        else:
            frame = as_polars(source)
            _check_columns(frame.collect_schema(), "the frame")
            if isinstance(frame, pl.DataFrame):
                with writing(path):
                    frame.write_parquet(path, row_group_size=ROW_GROUP, compression="lz4")
            else:
                frame.sink_parquet(path, row_group_size=ROW_GROUP, compression="lz4")
    except (pa.ArrowException, pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"the frame cannot be read: {_first_line(error)}") from error
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return File(str(path), "the frame", ("frame", digest))


def _check_columns(schema: Mapping[str, pl.DataType], where: str) -> None:
    if not schema:
        raise SchemaError(f"{where} has no columns")
    for name, dtype in schema.items():
        check_bytes((name, *_fields(dtype)), where)
        if "Struct({})" in str(dtype):
            raise SchemaError(f"column `{name}` of {where} holds objects without any key", hint="leave it out")
        if dtype in (pl.Int128, pl.UInt128, pl.Object) or isinstance(dtype, pl.BaseExtension):
            raise SchemaError(f"column `{name}` of {where} is {dtype}, which Parquet has not", hint="cast it")


def _fields(dtype: pl.DataType) -> Iterator[str]:
    """The names of the fields of structs in a type."""
    if isinstance(dtype, (pl.List, pl.Array)):
        yield from _fields(element(dtype))
    elif isinstance(dtype, pl.Struct):
        for field in dtype.fields:
            yield field.name
            yield from _fields(field.dtype if isinstance(field.dtype, pl.DataType) else field.dtype())


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
