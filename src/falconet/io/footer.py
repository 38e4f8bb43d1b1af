"""What the footers of Parquet files say: schema and row groups. Reads no data; pyarrow only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from falconet.errors import DataError, SchemaError
from falconet.schema import FOOTER_KEY, Column, Schema, Tag

_DATASET = "fl.Dataset reads CSV, JSON and Arrow; `fitted.transform(dataset).to_parquet(folder)` writes Parquet"


@dataclass(frozen=True)
class RowGroup:
    """One row group of one file; `first_row` counts over all files in name order."""

    path: str
    index: int
    first_row: int
    rows: int
    bytes: int


def data_files(path: str | Path) -> tuple[Path, ...]:
    """The Parquet files of a folder in name order, where it has none those of its folders; or the file itself."""
    path = Path(path)
    if path.is_file():
        return (path,)
    if not path.exists():
        raise DataError(f"no file or folder `{path}`")
    files = tuple(sorted(p for p in path.glob("*.parquet") if not p.name.startswith(".")))
    if not files:
        below = (p for p in path.rglob("*.parquet") if p.is_file())
        files = tuple(sorted(p for p in below if not any(x[0] in "._" for x in p.relative_to(path).parts)))
    if not files:
        raise DataError(
            f"no Parquet files in `{path}`", hint="a folder of *.parquet files, or one such file, is needed"
        )
    return files


def read_footer(source: str | Path | pa.NativeFile, where: str | None = None, hint: str = _DATASET) -> pq.FileMetaData:
    """The footer of a file, or of an opened one, which messages call `where`.

    Raises DataError for what is no whole Parquet file, with `hint` where its name does not say that it is one.
    """
    try:
        return pq.read_metadata(source)
    except (pa.ArrowException, OSError) as error:
        other = isinstance(source, str | Path) and Path(source).suffix.lower() not in (".parquet", ".parq", ".pq")
        raise DataError(
            f"{where or f'`{source}`'} is not a whole Parquet file: {error}",
            hint=hint if other else None,
        ) from error


def read_footers(path: str | Path) -> dict[Path, pq.FileMetaData]:
    """The footer of every file of the data set, in name order."""
    return {file: read_footer(file) for file in data_files(path)}


def row_groups(path: str | Path) -> tuple[RowGroup, ...]:
    """Every row group of the data set, in order."""
    return groups_of(read_footers(path))


def groups_of(footers: Mapping[Path, pq.FileMetaData]) -> tuple[RowGroup, ...]:
    """Every row group of the files, in order."""
    groups, first = [], 0
    for file, meta in footers.items():
        for i in range(meta.num_row_groups):
            group = meta.row_group(i)
            groups.append(RowGroup(str(file), i, first, group.num_rows, group.total_byte_size))
            first += group.num_rows
    return tuple(groups)


def read_schema(path: str | Path) -> Schema:
    """The falconet schema in the footers; all files must agree. Without one, a schema from the Arrow types."""
    return common_schema(read_footers(path))


def common_schema(footers: Mapping[Path, pq.FileMetaData]) -> Schema:
    """The schema of the files, which must agree."""
    found: Schema | None = None
    for file, meta in footers.items():
        schema = schema_of(meta, f"`{file}`")
        if found is not None and schema != found:
            raise SchemaError(f"`{file}` has another schema than the files before it", hint=_difference(found, schema))
        found = schema
    assert found is not None
    return found


def schema_of(meta: pq.FileMetaData, where: str) -> Schema:
    """The falconet schema in a footer; without one, a schema from the Arrow types."""
    entry = (meta.metadata or {}).get(FOOTER_KEY)
    return Schema.from_json(entry, where=where) if entry else from_arrow(meta.schema.to_arrow_schema())


def from_arrow(schema: pa.Schema) -> Schema:
    """A schema from Arrow types alone: floats are continuous, nothing else is guessed."""
    columns = []
    for field in schema:
        kind, shape = field.type, None
        if pa.types.is_fixed_size_list(kind):
            kind, shape = kind.value_type, kind.list_size
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            kind, shape = kind.value_type, "ragged"
        tags = frozenset({Tag.CONTINUOUS}) if pa.types.is_floating(kind) else frozenset()
        columns.append(Column(name=field.name, dtype=_dtype(kind), list=shape, nullable=field.nullable, tags=tags))
    return Schema(tuple(columns))


def _dtype(kind: pa.DataType) -> str:
    names = {
        "float": "float32",
        "double": "float64",
        "halffloat": "float16",
        "large_string": "string",
        "string_view": "string",
    }
    return names.get(str(kind), str(kind))


def _difference(a: Schema, b: Schema) -> str:
    if a.names != b.names:
        return f"columns {', '.join(a.names)} against {', '.join(b.names)}"
    name = next(x.name for x, y in zip(a, b, strict=True) if x != y)
    return f"column `{name}`: {a[name].to_dict()} against {b[name].to_dict()}"
