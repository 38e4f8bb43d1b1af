"""One output file: sorted chunks one after the other, in row groups of one size, with the schema in the footer."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from falconet.compute.engine import collect
from falconet.compute.exchange import Bucket
from falconet.compute.executor import ROW, reach
from falconet.errors import DataError
from falconet.schema import FOOTER_KEY, Schema


@dataclass(frozen=True)
class Chunk:
    """Rows `skip` to `skip + rows` of a bucket, once it is sorted."""

    bucket: Bucket
    skip: int
    rows: int


@dataclass(frozen=True)
class OutputFile:
    """File number `index` of a folder and what goes into it."""

    index: int
    chunks: tuple[Chunk, ...]
    rows: int


@dataclass(frozen=True)
class WriteFile:
    """Writes an OutputFile to `folder` (aside, in `room`, then renamed). One chunk is in memory at a time."""

    schema: Schema
    order: pl.Expr | None
    folder: str
    room: str
    row_group_size: int

    def __call__(self, file: OutputFile) -> None:
        aside = reach(self.room) / f"{file.index}-{uuid.uuid4().hex}.parquet"
        target = Path(self.folder) / f"part-{file.index:05d}.parquet"
        arrow = self._arrow_schema(file.chunks[0].bucket.scan().collect_schema())
        with pq.ParquetWriter(aside, arrow, compression="zstd") as writer:
            for table in _row_groups(
                (self._checked(self._read(c), arrow, target) for c in file.chunks), self.row_group_size
            ):
                writer.write_table(table, row_group_size=self.row_group_size)
        aside.replace(target)

    def _read(self, chunk: Chunk) -> pa.Table:
        frame = chunk.bucket.scan(row_numbers=True)
        if self.order is None:
            return collect(frame.drop(ROW).slice(chunk.skip, chunk.rows)).to_arrow()
        # Sliced only now: Polars sorts a lazy frame with a slice by another, slower way.
        made = collect(frame.sort(self.order, maintain_order=True).drop(ROW))
        return made.slice(chunk.skip, chunk.rows).to_arrow()

    def _arrow_schema(self, found: pl.Schema) -> pa.Schema:
        arrow = pl.DataFrame(schema=found).to_arrow().schema
        fields = [field.with_nullable(self.schema[field.name].nullable) for field in arrow]
        return pa.schema(fields, metadata={FOOTER_KEY: self.schema.to_json()})

    def _checked(self, table: pa.Table, arrow: pa.Schema, target: Path) -> pa.Table:
        for column in self.schema:
            if not column.nullable and (nulls := table[column.name].null_count):
                raise DataError(
                    f"column `{column.name}` has {nulls} nulls, and its schema says it has none (`{target.name}`)",
                    hint="`FillMissing` fills them",
                )
        return pa.Table.from_arrays(table.columns, schema=arrow)


def _row_groups(tables: Iterator[pa.Table], size: int) -> Iterator[pa.Table]:
    """The same rows as tables of exactly `size` rows, the last one shorter: the bytes do not depend on the chunks."""
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
