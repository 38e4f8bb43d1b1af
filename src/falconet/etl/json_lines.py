"""JSON lines: one object a line, as typed rows. A key that a line lacks is a null; an object within is a struct.

Types are those of all lines: whole numbers and others are Float64 together; numbers, text and lists do not mix. Read in
blocks of lines by two parsers: Arrow's, which refuses what is of two kinds, and Polars', which loses no digit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NoReturn

import polars as pl
import pyarrow as pa
import pyarrow.json as pa_json

from falconet.errors import DataError, SchemaError
from falconet.etl.paths import Found
from falconet.etl.text_files import unpacked
from falconet.etl.widen import widest

BLOCK = 8 << 20


def infer_json(file: Found) -> dict[str, pl.DataType]:
    """The type of each key of a file, in the order in which they appear; Null where no line has a value."""
    found: dict[str, pl.DataType] = {}
    for line, block in _blocks(file):
        try:
            pa_json.read_json(
                pa.BufferReader(block), read_options=pa_json.ReadOptions(block_size=len(block) + 1, use_threads=False)
            )
            here = pl.read_ndjson(block, infer_schema_length=None).schema
        except (pa.ArrowInvalid, pl.exceptions.PolarsError) as error:
            _explain(file, line, block, error)
        for name, dtype in here.items():
            before = found.get(name, dtype)
            wide = widest(before, dtype, inferred=True)
            if wide is None:
                raise SchemaError(
                    f"{file.where}, after line {line}: `{name}` is {dtype}, and {before} in the lines before",
                    hint="all values of a key are of one kind",
                )
            found[name] = wide
    for name, dtype in found.items():
        if "Int128" in str(dtype):
            raise SchemaError(
                f"{file.where}: `{name}` holds whole numbers of more than 64 bits", hint="write them as strings"
            )
    return found


def read_json(file: Found, schema: Mapping[str, pl.DataType]) -> Iterator[pl.DataFrame]:
    """The rows of a file with the columns of `schema`, in blocks."""
    for line, block in _blocks(file):
        try:
            yield pl.read_ndjson(block, schema=dict(schema))
        except pl.exceptions.PolarsError as error:
            _explain(file, line, block, error)


def _blocks(file: Found) -> Iterator[tuple[int, bytes]]:
    """Whole lines, about BLOCK bytes of them, with the number of the first."""
    line = 1
    rest = b""
    with unpacked(file) as raw:
        try:
            while read := raw.read(BLOCK):
                cut = read.rfind(b"\n") + 1
                block, rest = (rest + read[:cut], read[cut:]) if cut else (b"", rest + read)
                if line == 1:
                    block = block.removeprefix(b"\xef\xbb\xbf")
                if block.strip():
                    yield line, block
                line += block.count(b"\n")
        except OSError as error:
            raise DataError(f"{file.where} cannot be read to its end: {error}", hint="it may be cut short") from error
    if rest.strip():
        yield line, rest.removeprefix(b"\xef\xbb\xbf")


def _explain(file: Found, first: int, block: bytes, error: Exception) -> NoReturn:
    """Raise what is wrong with the first line of a block that is; if none is, what the parser said."""
    kinds: dict[str, str] = {}
    for number, line in enumerate(block.split(b"\n"), start=first):
        if not line.strip():
            continue
        where = f"{file.where}, line {number}"
        try:
            value = json.loads(line.decode(), parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as wrong:
            raise DataError(
                f"{where}: no JSON: {wrong}", hint=f"the line is `{line[:80].decode(errors='replace')}`"
            ) from wrong
        if not isinstance(value, dict):
            raise DataError(f"{where}: no object but {_kind(value)}", hint='a line is like {"user": 1, "item": 7}')
        for name, inner in value.items():
            if inner is not None and (kind := kinds.setdefault(name, _kind(inner))) != _kind(inner):
                raise SchemaError(
                    f"{where}: `{name}` is {_kind(inner)}, and {kind} in the lines before",
                    hint="all values of a key are of one kind",
                )
    raise DataError(f"{file.where}, after line {first}: {str(error).splitlines()[0]}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON; null is")


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "a number"
    return "text" if isinstance(value, str) else "a list" if isinstance(value, list) else "an object"
