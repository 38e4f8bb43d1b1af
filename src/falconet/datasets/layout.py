"""The Parquet layout of a MovieLens-shaped data set, which `convert` and `synthesize` write and `open_movielens` reads.

ratings/part-00000.parquet …   RATINGS, row groups of 131,072 rows
movies.parquet                 MOVIES
manifest.json                  kind "movielens", with `release` and `source`
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from falconet.errors import ColumnNotFoundError, DataError, SchemaError, suggest
from falconet.io.artifact import MANIFEST, read_artifact

KIND = "movielens"
ROW_GROUP = 131_072
PART_ROWS = 32 * ROW_GROUP

RATINGS = pa.schema(
    [("userId", pa.int32()), ("movieId", pa.int32()), ("rating", pa.float32()), ("timestamp", pa.int64())]
)
MOVIES = pa.schema(
    [("movieId", pa.int32()), ("title", pa.string()), ("genres", pa.list_(pa.string())), ("year", pa.int32())]
)


def write_ratings(batches: Iterable[pa.RecordBatch], folder: Path) -> int:
    """Write rating batches of any size as `part-*.parquet` with full row groups, in order; the number of rows.

    Memory is bounded by one row group and the largest batch. The bytes depend only on the rows and pyarrow.
    """
    folder.mkdir(parents=True)
    rows = 0
    writer: pq.ParquetWriter | None = None
    try:
        for table in _row_groups(batches):
            if rows % PART_ROWS == 0:
                if writer is not None:
                    writer.close()
                name = f"part-{rows // PART_ROWS:05d}.parquet"
                writer = pq.ParquetWriter(folder / name, table.schema, compression="zstd")
            assert writer is not None
            writer.write_table(table, row_group_size=ROW_GROUP)
            rows += table.num_rows
    finally:
        if writer is not None:
            writer.close()
    return rows


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The same rows as tables of exactly ROW_GROUP rows, the last one shorter."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows < ROW_GROUP:
            continue
        table = pa.Table.from_batches(waiting)
        whole = rows - rows % ROW_GROUP
        for start in range(0, whole, ROW_GROUP):
            yield table.slice(start, ROW_GROUP)
        waiting = table.slice(whole).to_batches()
        rows -= whole
    if rows:
        yield pa.Table.from_batches(waiting)


def remove_leftovers(target: Path) -> None:
    """Remove the hidden folders that killed writers of `target` left beside it; no other process may be writing it."""
    for left in target.parent.glob(f".tmp-{target.name}-*"):
        if re.fullmatch(rf"\.tmp-{re.escape(target.name)}-\d+-[0-9a-f]{{8}}", left.name):
            shutil.rmtree(left, ignore_errors=True)


def write_movies(movies: pa.Table, folder: Path) -> None:
    pq.write_table(movies, folder / "movies.parquet", compression="zstd")


class ParquetRelease:
    """A data set in the Parquet layout, ours (its manifest is checked) or made by hand."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = rating_parts(root)
        self.release = "parquet"
        if (root / MANIFEST).is_file():
            self.release = str(read_artifact(root, KIND).extra.get("release", "parquet"))
        if not (root / "movies.parquet").is_file():
            raise DataError(
                f"`{root}` has ratings but no `movies.parquet`", hint="one row per film: movieId, title, genres"
            )

    def ratings(self) -> Iterator[pa.RecordBatch]:
        for path in self.files:
            try:
                file = pq.ParquetFile(path)
                _need(RATINGS, file.schema_arrow, path)
                for batch in file.iter_batches(batch_size=ROW_GROUP, columns=RATINGS.names):
                    yield _conform(batch, path)
            except (pa.ArrowInvalid, OSError) as error:
                raise DataError(f"`{path}` is not a whole Parquet file: {error}") from error

    def movies(self) -> pa.Table:
        path = self.root / "movies.parquet"
        try:
            found = pq.read_table(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"`{path}` is not a whole Parquet file: {error}") from error
        _need(MOVIES, found.schema, path)
        return _cast(found.select(MOVIES.names), MOVIES, path)

    def fingerprint(self) -> str:
        total = hashlib.sha256()
        for path in (*self.files, self.root / "movies.parquet"):
            with path.open("rb") as file:
                total.update(path.name.encode() + b"\0" + hashlib.file_digest(file, "sha256").digest())
        return total.hexdigest()


def rating_parts(root: Path) -> tuple[Path, ...]:
    """The Parquet files of ratings, in their order; empty where the layout is not there."""
    return tuple(sorted((root / "ratings").glob("*.parquet")))


def missing_column(missing: str, available: Iterable[str], where: object) -> ColumnNotFoundError:
    """The error for a column a file lacks: which file, which column, what it has, and the close name."""
    names = sorted(available)
    hint = suggest(missing, names)
    if not hint.startswith("available"):
        hint += f" The file has {', '.join(names)}"
    return ColumnNotFoundError(f"`{where}` has no column `{missing}`", hint=hint)


def _need(wanted: pa.Schema, found: pa.Schema, path: Path) -> None:
    for name in wanted.names:
        if name not in found.names:
            raise missing_column(name, found.names, path)


def _conform(batch: pa.RecordBatch, path: Path) -> pa.RecordBatch:
    """Our column types; ids keep 64 bits where the file has them. Nulls are refused."""
    fields = [
        field.with_type(pa.int64()) if batch.schema.field(field.name).type == pa.int64() else field for field in RATINGS
    ]
    table = _cast(pa.Table.from_batches([batch]).select(RATINGS.names), pa.schema(fields), path)
    for name in RATINGS.names:
        if table[name].null_count:
            raise DataError(
                f"`{path}` has {table[name].null_count} nulls in `{name}`", hint="a rating has all four values"
            )
    if not pc.all(pc.is_finite(table["rating"]), min_count=0).as_py():
        raise DataError(f"`{path}` has ratings that are not finite numbers")
    return table.combine_chunks().to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], table.schema)


def _cast(table: pa.Table, schema: pa.Schema, path: Path) -> pa.Table:
    try:
        return table.cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        given = ", ".join(f"{f.name} {f.type}" for f in table.schema)
        raise SchemaError(f"`{path}` has columns of other types: {error}", hint=f"it has {given}") from error
