"""What a data set can be made from, as Parquet files: paths are found, CSV files and frames are converted once."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from falconet.errors import DataError, SchemaError
from falconet.etl.widen import widest
from falconet.io.footer import data_files
from falconet.progress import progress

ROW_GROUP = 131_072
_PARQUET = (".parquet", ".pq", ".parq")
_CSV = (".csv", ".tsv", ".csv.gz", ".tsv.gz")


@dataclass(frozen=True)
class File:
    """A Parquet file, what errors call it, and what identifies its content together with the number of its rows."""

    path: Path
    where: str
    identity: tuple[str, str]  # name and size; of a frame, its hash


def open_source(source: Any, dtypes: Mapping[str, pl.DataType], separator: str | None) -> tuple[File, ...]:
    """The Parquet files of a source, in order. Raises DataError for what is not there or cannot be read."""
    if isinstance(source, (str, os.PathLike)):
        return _open_files(find_files(os.fspath(source)), dtypes, separator)
    if isinstance(source, Sequence):
        for path in source:
            if not isinstance(path, (str, os.PathLike)):
                raise DataError(
                    f"a list of files has a {type(path).__name__} in it", hint="for rows: pl.DataFrame(rows)"
                )
        paths = [Path(os.fspath(path)) for path in source]
        if not paths:
            raise DataError("a data set of no files", hint="the list is empty")
        for path in paths:
            if not path.is_file():
                raise DataError(f"no file `{path}`", hint="a list names files; give a folder alone")
        if len(set(paths)) < len(paths):
            twice = next(path for path in paths if paths.count(path) > 1)
            raise DataError(f"`{twice}` is in the list twice")
        return _open_files(paths, dtypes, separator)
    return (_store(as_polars(source)),)


def find_files(source: str) -> list[Path]:
    """The files of a data set that a path stands for: a file, a folder, or a glob."""
    path = Path(source)
    if path.is_file():
        return [path]
    if path.is_dir():
        found = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
        csv = [p for p in found if p.name.endswith(_CSV)]
        if csv and not any(p.name.endswith(_PARQUET) for p in found):
            return csv
        return list(data_files(path))
    if any(sign in source for sign in "*?["):
        pattern = path.relative_to(path.anchor)
        files = sorted(p for p in Path(path.anchor).glob(str(pattern)) if p.is_file() and p.name[0] != ".")
        if not files:
            raise DataError(f"no file matches `{source}`")
        return files
    raise DataError(f"no file or folder `{source}`", hint=f"looked from `{Path.cwd()}`")


def _open_files(paths: Sequence[Path], dtypes: Mapping[str, pl.DataType], separator: str | None) -> tuple[File, ...]:
    kinds = [_kind(path) for path in paths]
    if len(set(kinds)) > 1:
        other = paths[kinds.index(next(k for k in kinds if k != kinds[0]))]
        raise DataError(f"`{paths[0]}` and `{other}` are not files of one kind", hint="all Parquet, or all CSV")
    if kinds[0] == "csv":
        return _convert_csv(paths, dtypes, separator)
    return tuple(File(p, f"`{p}`", (p.name, str(p.stat().st_size))) for p in paths)


def _kind(path: Path) -> str:
    if path.name.endswith(_PARQUET):
        return "parquet"
    if path.name.endswith(_CSV):
        return "csv"
    with path.open("rb") as file:
        if file.read(4) == b"PAR1":
            return "parquet"
    raise DataError(f"`{path}` is neither Parquet nor CSV", hint=f"known endings: {', '.join(_PARQUET + _CSV)}")


def _convert_csv(paths: Sequence[Path], dtypes: Mapping[str, pl.DataType], separator: str | None) -> tuple[File, ...]:
    schema: dict[str, pl.DataType] = {}
    for path in paths:
        found = _infer_csv(path, dtypes, separator)
        schema = schema or dict(found)
        if missing := schema.keys() ^ found.keys():
            lacks = path if min(missing) not in found else paths[0]
            raise SchemaError(f"`{lacks}` has no column `{min(missing)}`, which other files of the data set have")
        for name, dtype in found.items():
            wide = widest(schema[name], dtype, inferred=True)
            if wide is None:
                raise SchemaError(
                    f"column `{name}` is {dtype} in `{path}` and {schema[name]} in the files before it",
                    hint=f'say what it is: dtypes={{"{name}": pl.String}}',
                )
            schema[name] = wide
    folder = private_folder()
    files = []
    with progress("reading CSV", total=sum(p.stat().st_size for p in paths), unit="bytes") as task:
        for i, path in enumerate(paths):
            target = folder / f"{i:05d}.parquet"
            try:
                frame = _scan_csv(path, separator, schema_overrides=schema, infer_schema_length=0)
                frame.sink_parquet(target, row_group_size=ROW_GROUP, compression="lz4")
            except pl.exceptions.PolarsError as error:
                raise DataError(f"`{path}` cannot be read as CSV: {_first_line(error)}") from error
            size = path.stat().st_size
            task.advance(size)
            files.append(File(target, f"`{path}`", (path.name, str(size))))
    return tuple(files)


def _infer_csv(path: Path, dtypes: Mapping[str, pl.DataType], separator: str | None) -> pl.Schema:
    """The types that all lines of a file agree with."""
    try:
        frame = _scan_csv(path, separator, schema_overrides={}, infer_schema_length=None)
        found = frame.collect_schema()
    except pl.exceptions.NoDataError as error:
        raise DataError(f"`{path}` is empty", hint="a CSV file starts with a line of column names") from error
    except pl.exceptions.PolarsError as error:
        raise DataError(f"`{path}` cannot be read as CSV: {_first_line(error)}") from error
    return pl.Schema({name: dtypes.get(name, dtype) for name, dtype in found.items()})


def _scan_csv(
    path: Path, separator: str | None, *, schema_overrides: Mapping[str, pl.DataType], infer_schema_length: int | None
) -> pl.LazyFrame:
    default = "\t" if ".tsv" in path.name else ","
    return pl.scan_csv(
        path,
        separator=separator or default,
        schema_overrides=dict(schema_overrides),
        infer_schema_length=infer_schema_length,
        glob=False,
    )


def as_polars(source: Any) -> pl.DataFrame | pl.LazyFrame:
    """A Polars, pandas or Arrow table as a Polars frame. Raises DataError for anything else."""
    if isinstance(source, (pl.DataFrame, pl.LazyFrame)):
        return source
    try:
        if isinstance(source, pa.Table):
            return pl.DataFrame(pl.from_arrow(source))
        if type(source).__module__.split(".")[0] == "pandas" and type(source).__name__ == "DataFrame":
            return pl.from_pandas(source, include_index=False)
    except (pa.ArrowException, pl.exceptions.PolarsError, TypeError, ValueError) as error:
        raise DataError(f"the {type(source).__module__} frame cannot be read: {_first_line(error)}") from error
    raise DataError(
        f"a {type(source).__name__} is not a data set",
        hint="a path (file, folder, glob), a list of paths, or a Polars, pandas or Arrow table",
    )


def _store(frame: pl.DataFrame | pl.LazyFrame) -> File:
    path = private_folder() / "frame.parquet"
    try:
        for name, dtype in frame.collect_schema().items():
            if dtype in (pl.Int128, pl.UInt128, pl.Object):
                raise SchemaError(f"column `{name}` of the frame is {dtype}, which Parquet has not", hint="cast it")
        if isinstance(frame, pl.DataFrame):
            frame.write_parquet(path, row_group_size=ROW_GROUP, compression="lz4")
        else:
            frame.sink_parquet(path, row_group_size=ROW_GROUP, compression="lz4")
    except (pl.exceptions.PolarsError, OSError) as error:
        raise DataError(f"the frame cannot be read: {_first_line(error)}") from error
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return File(path, "the frame", ("frame", digest))


_root: tuple[int, Path] | None = None


def private_folder() -> Path:
    """A new folder of this process outside the working directory (TMPDIR says where), removed when the process ends.

    Not sooner: a lazy frame or a part may outlive the data set it came from.
    """
    global _root
    pid = os.getpid()
    if _root is None or _root[0] != pid:
        _root = pid, Path(tempfile.mkdtemp(prefix="falconet-"))
        atexit.register(_remove, *_root)
    folder = _root[1] / uuid.uuid4().hex
    folder.mkdir()
    return folder


def _remove(pid: int, folder: Path) -> None:
    if pid == os.getpid():  # not in a fork
        shutil.rmtree(folder, ignore_errors=True)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
