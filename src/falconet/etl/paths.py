"""The files a data set's source names, on this machine or in an object store, and what their folders say.

A folder stands for the files in it and in its hive folders (`year=2020/month=1/x.parquet`), whose names are columns.
Other folders in it are not entered; `**` in a glob enters all: `data/**/*.parquet`. A list names files. Names that
begin with a dot are passed over. Files come in the order of their names, folder by folder; those of a list as listed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote
from urllib.request import url2pathname

import pyarrow as pa

from falconet.errors import ConfigError, DataError
from falconet.etl.names import repeated
from falconet.etl.object_store import ObjectStore, as_text, is_url, open_store

_ENDINGS = {
    "Parquet": (".parquet", ".pq", ".parq"),
    "CSV": (".csv", ".tsv"),
    "JSON lines": (".jsonl", ".ndjson"),
    "Arrow": (".arrow", ".feather", ".ipc"),
}
PACKED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
_FILE = "file://"
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Found:
    """A file: its path (within the bucket, in a store), its size, and what its folders say (None: a null)."""

    path: str
    size: int
    hive: tuple[tuple[str, str | None], ...] = ()
    store: ObjectStore | None = None

    @property
    def location(self) -> str:
        return self.path if self.store is None else self.store.url(self.path)

    @property
    def where(self) -> str:
        """What messages call it."""
        return f"`{self.location}`"

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name if self.store else Path(self.path).name

    @property
    def identity(self) -> tuple[str, str]:
        folders = "".join(f"{name}={value}/" for name, value in self.hive)
        return folders + self.name, str(self.size)

    def kind(self, *, text: bool = False) -> str:
        """Parquet, CSV, JSON lines or Arrow: by the name, or by the first bytes. `text`: anything else is CSV."""
        found = _kind(self.name)
        if found is None:
            with self.opened() as file:
                start = file.read(6)
            found = "Parquet" if start[:4] == b"PAR1" else "Arrow" if start == b"ARROW1" else "CSV" if text else None
        if found is None:
            endings = ", ".join(ending for kind in _ENDINGS.values() for ending in kind)
            raise DataError(
                f"{self.where} is neither Parquet nor CSV, JSON lines or Arrow",
                hint=f"known endings: {endings}, text also with {', '.join(PACKED)} after it; "
                "`separator=` reads a file of any other name as CSV",
            )
        return found

    @contextmanager
    def opened(self) -> Iterator[pa.NativeFile]:
        """The file for reading, as it is. What goes wrong meanwhile becomes a DataError."""
        if self.store is None:
            try:
                local = pa.OSFile(self.path)
            except OSError as error:
                raise DataError(f"{self.where} cannot be read: {error}") from error
            try:
                with local:
                    yield local
            except OSError as error:
                raise DataError(
                    f"{self.where} cannot be read to its end: {error}", hint="it may be cut short"
                ) from error
            return
        with (
            self.store.errors(self.where),
            self.store.filesystem.open_input_file(f"{self.store.bucket}/{self.path}") as file,
        ):
            yield file


def find(source: str | os.PathLike[str], options: Mapping[str, object]) -> list[Found]:
    """The files that a file, a folder or a glob stands for."""
    source = _as_source(source)
    if is_url(source):
        return _find_objects(source, options)
    if options:
        raise ConfigError("storage_options are for object stores", hint=f"`{source}` is a path on this machine")
    path = Path(source)
    if path.is_file():
        return [_local(path)]
    if path.is_dir():
        return _of_one_kind([_local(p, path) for p in sorted(_walk(path, path))], f"`{path}`")
    if _is_pattern(source):
        pattern = path.relative_to(path.anchor)
        base = Path(path.anchor, *_fixed(pattern.parts))
        try:
            matches = sorted(Path(path.anchor).glob(str(pattern)))
        except ValueError as error:
            raise ConfigError(
                f"`{source}` is no pattern: {error}", hint="`**` stands alone between two slashes"
            ) from error
        files = [_local(p, base) for p in matches if p.is_file() and not _hidden(p.relative_to(base).parts)]
        if not files:
            raise DataError(f"no file matches `{source}`")
        return files
    raise DataError(f"no file or folder `{source}`", hint=f"looked from `{Path.cwd()}`")


def find_list(source: Sequence[Any], options: Mapping[str, object]) -> list[Found]:
    """The files of a list, in its order. Below the folder that all share, hive folders are columns."""
    for path in source:
        if not isinstance(path, (str, os.PathLike)):
            raise DataError(f"a list of files has a {type(path).__name__} in it", hint="for rows: pl.DataFrame(rows)")
    names = [_as_source(path) for path in source]
    if not names:
        raise DataError("a data set of no files", hint="the list is empty")
    if twice := repeated(name if is_url(name) else str(Path(name).resolve()) for name in names):
        raise DataError(f"`{twice}` is in the list twice")
    here = [name for name in names if not is_url(name)]
    if here and options:
        raise ConfigError("storage_options are for object stores", hint=f"`{here[0]}` is a path on this machine")
    stores: dict[str, ObjectStore] = {}
    found = []
    for name in names:
        if is_url(name):
            store, path = open_store(name, options)
            found.append(_object(stores.setdefault(f"{store.scheme}://{store.bucket}", store), path))
        elif Path(name).is_file():
            found.append(_local(Path(name)))
        else:
            raise DataError(f"no file `{Path(name)}`", hint="a list names files; give a folder alone")
    folders = [_folders(file) for file in found]
    shared = sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, zip(*folders, strict=False)))
    return [replace(file, hive=_hive(folder[shared:])) for file, folder in zip(found, folders, strict=True)]


def _as_source(path: str | os.PathLike[str]) -> str:
    """A path of this machine, also of a `file://` address, or an address in a store."""
    text = as_text(path)
    return url2pathname(text.removeprefix(_FILE)) if text.startswith(_FILE) else text


def _folders(file: Found) -> tuple[str, ...]:
    if file.store is None:
        return Path(file.path).absolute().parts[:-1]
    return (file.store.bucket, *_split(file.path)[:-1])


def _find_objects(source: str, options: Mapping[str, object]) -> list[Found]:
    store, path = open_store(source, options)
    pattern = _split(path)
    if not _is_pattern(path):
        info = _info(store, "/".join(pattern), f"`{source}`")
        if info.is_file:
            return [Found(info.path.partition("/")[2], info.size, (), store)]
        files = [file for file in _listed(store, pattern) if all(_pair(name) for name in _below(file, pattern)[:-1])]
        return _of_one_kind([file for file in files if _kind(file.name) is not None], f"`{source}`")
    base = _fixed(pattern)
    files = [file for file in _listed(store, base) if _matches(_below(file, base), pattern[len(base) :])]
    if not files:
        _info(store, "", f"`{source}`")  # is there a bucket?
        raise DataError(f"no object matches `{source}`")
    return files


def _object(store: ObjectStore, path: str) -> Found:
    info = _info(store, path, f"`{store.url(path)}`")
    if not info.is_file:
        raise DataError(f"`{store.url(path)}` is no object", hint="a list names files; give a folder alone")
    return Found(path, info.size, (), store)


def _info(store: ObjectStore, path: str, where: str) -> Any:
    """What is at a path of a store. Raises DataError where there is nothing."""
    from pyarrow.fs import FileType

    with store.errors(where):
        info = store.filesystem.get_file_info(f"{store.bucket}/{path}".rstrip("/"))
        if info.type == FileType.NotFound:
            if store.filesystem.get_file_info(store.bucket).type == FileType.NotFound:
                raise DataError(f"no bucket `{store.bucket}` in {store.scheme}://", hint=f"for {where}")
            raise DataError(f"no object or folder {where}")
    return info


def _listed(store: ObjectStore, folder: Sequence[str]) -> list[Found]:
    """All objects below a folder, by name; hive folders below it are columns."""
    from pyarrow.fs import FileSelector

    top = "/".join((store.bucket, *folder))
    with store.errors(f"`{store.url('/'.join(folder))}`"):
        infos = store.filesystem.get_file_info(FileSelector(top, recursive=True, allow_not_found=True))
    files = []
    for info in infos:
        parts = _split(info.path)[1:]
        below = parts[len(folder) :]
        if info.is_file and not _hidden(below):
            files.append(Found("/".join(parts), info.size, _hive(below[:-1]), store))
    return sorted(files, key=lambda file: _split(file.path))


def _split(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part)


def _below(file: Found, folder: Sequence[str]) -> tuple[str, ...]:
    return _split(file.path)[len(folder) :]


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a path is one of a glob; `**` is any number of folders."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[i:], pattern[1:] or ("*",)) for i in range(len(parts)))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _of_one_kind(files: list[Found], where: str) -> list[Found]:
    """The Parquet files of a folder, or its files of the one other kind there is."""
    kinds = {file.kind() for file in files}
    chosen = "Parquet" if "Parquet" in kinds else min(kinds, default=None)
    if chosen is None:
        raise DataError(
            f"no Parquet files in {where}, nor CSV, JSON lines or Arrow",
            hint="folders in it are entered where they are called like `year=2020`; `**/*.parquet` enters all",
        )
    if chosen != "Parquet" and len(kinds) > 1:
        raise DataError(f"{where} has files of two kinds: {' and '.join(sorted(kinds))}", hint="name one: `*.csv`")
    return [file for file in files if file.kind() == chosen]


def _kind(name: str) -> str | None:
    name = name.lower()
    for ending in PACKED:
        if name.endswith(ending):
            inner = _kind(name.removesuffix(ending))
            return inner if inner in ("CSV", "JSON lines") else None
    return next((kind for kind, endings in _ENDINGS.items() if name.endswith(endings)), None)


def _local(path: Path, base: Path | None = None) -> Found:
    hive = () if base is None else _hive(path.relative_to(base).parts[:-1])
    return Found(str(path), path.stat().st_size, hive)


def _walk(folder: Path, base: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir():
            if _pair(path.name) is not None:
                yield from _walk(path, base)
        elif _kind(path.name) is not None and path.is_file():
            yield path


def _is_pattern(source: str) -> bool:
    return any(sign in source for sign in "*?[")


def _fixed(parts: Sequence[str]) -> tuple[str, ...]:
    """The folders of a pattern before the first that is one."""
    ends = next((i for i, part in enumerate(parts) if _is_pattern(part)), len(parts))
    return tuple(parts[: min(ends, len(parts) - 1)])


def _hidden(parts: Sequence[str]) -> bool:
    return any(part.startswith(".") for part in parts)


def _pair(folder: str) -> tuple[str, str | None] | None:
    """Name and value of a hive folder."""
    name, equals, value = folder.partition("=")
    if not equals or not name:
        return None
    return unquote(name), None if value == _HIVE_NULL else unquote(value)


def _hive(folders: Sequence[str]) -> tuple[tuple[str, str | None], ...]:
    return tuple(pair for folder in folders if (pair := _pair(folder)) is not None)
