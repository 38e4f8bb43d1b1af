"""Columns that the names of folders give (`year=2020/month=1/part.parquet`), as Arrow values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa

from falconet.errors import DataError
from falconet.schema import Column, Schema

NULL = "__HIVE_DEFAULT_PARTITION__"


def folder_values(file: Path, root: Path) -> dict[str, str | None]:
    """The texts of the folders between a data set's folder and one of its files; None for null."""
    folders = file.relative_to(root).parts[:-1] if file != root else ()
    pairs = [folder.split("=", 1) for folder in folders if "=" in folder]
    return {unquote(name): None if value == NULL else unquote(value) for name, value in pairs}


def with_folders(schema: Schema, values: Iterable[Mapping[str, str | None]]) -> Schema:
    """A schema with the columns of folders that it lacks: whole numbers where all are, else strings."""
    found: dict[str, list[str]] = {}
    for pairs in values:
        for name, value in pairs.items():
            found.setdefault(name, []).extend([] if value is None else [value])
    added = [
        Column(name=name, dtype="int64" if texts and all(map(_is_whole, texts)) else "string")
        for name, texts in found.items()
        if name not in schema
    ]
    return schema + Schema(tuple(added))


def as_array(text: str | None, column: Column, rows: int, file: str) -> pa.Array:
    """So many times the value that a folder's text has as a column. Raises DataError where it has none."""
    kind = pa.type_for_alias(column.dtype.removesuffix("[day]"))
    try:
        value = pa.array([text], pa.string()).cast(kind)[0]
    except pa.ArrowInvalid as error:
        raise DataError(f"the folder of `{file}` says {column.name}={text}, which is no {column.dtype}") from error
    return pa.repeat(value, rows)


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and len(text) < 19
