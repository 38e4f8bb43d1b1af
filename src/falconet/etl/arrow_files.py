"""Arrow IPC files (random access and stream format), and any rows that come in batches, as one Parquet file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from falconet.compute.exchange import writing
from falconet.errors import DataError, SchemaError
from falconet.etl.names import repeated
from falconet.etl.paths import Found

ROW_GROUP = 131_072
GROUP_BYTES = 32 << 20


def read_arrow(file: Found) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The schema and the batches of an Arrow IPC file of either format. Raises DataError for a damaged one."""
    with _opened(file) as (schema, _):
        return schema, _batches(file)


def _batches(file: Found) -> Iterator[pa.RecordBatch]:
    with _opened(file) as (_, batches):
        for batch in batches:
            batch.validate(full=True)  # Polars believes offsets and texts, and would read outside of memory
            yield batch


@contextmanager
def _opened(file: Found) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    with file.opened() as raw:
        try:
            if raw.read(6) == b"ARROW1":
                reader = pa.ipc.open_file(raw)
                yield reader.schema, (reader.get_batch(i) for i in range(reader.num_record_batches))
            else:
                raw.seek(0)
                stream = pa.ipc.open_stream(raw)
                yield stream.schema, iter(stream)
        except pa.ArrowException as error:
            raise DataError(f"{file.where} is not a whole Arrow file: {error}") from error


def polars_schema(schema: pa.Schema, where: str) -> pl.Schema:
    """What Polars makes of Arrow types. Raises SchemaError for what it has no type for."""
    if twice := repeated(schema.names):
        raise SchemaError(f"{where} has two columns `{twice}`", hint="rename one of them")
    try:
        return pl.DataFrame(pl.from_arrow(schema.empty_table())).schema
    except (pa.ArrowException, pl.exceptions.PolarsError, NotImplementedError) as error:
        raise SchemaError(f"{where} has a type that Polars has not: {str(error).splitlines()[0]}") from error


def write_rows(frames: Iterable[pl.DataFrame], schema: Mapping[str, pl.DataType], target: Path) -> None:
    """Write rows that come in blocks to a Parquet file, in row groups of ROW_GROUP rows, or of GROUP_BYTES."""
    arrow = pl.DataFrame(schema=dict(schema)).to_arrow().schema
    with writing(target), pq.ParquetWriter(target, arrow, compression="lz4") as writer:
        waiting: list[pl.DataFrame] = []
        rows, size = 0, 0.0
        for frame in frames:
            waiting.append(frame)
            rows += frame.height
            size += frame.estimated_size()
            while rows >= ROW_GROUP or (rows and size >= GROUP_BYTES):
                held = pl.concat(waiting)
                writer.write_table(held[:ROW_GROUP].to_arrow().cast(arrow), row_group_size=ROW_GROUP)
                waiting = [held[ROW_GROUP:]] if rows > ROW_GROUP else []
                rows = sum(frame.height for frame in waiting)
                size = sum(frame.estimated_size() for frame in waiting)
        if rows:
            writer.write_table(pl.concat(waiting).to_arrow().cast(arrow), row_group_size=ROW_GROUP)
