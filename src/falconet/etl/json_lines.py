"""JSON lines: one object a line, as typed rows. A key that a line lacks is a null; an object within is a struct.

Types are those of all lines: whole numbers and others are Float64 together; numbers, text and lists do not mix. Read in
blocks of lines by two parsers: Arrow's, which refuses what is of two kinds, and Polars', which loses no digit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import NoReturn

import polars as pl
import pyarrow as pa
import pyarrow.json as pa_json

from falconet.errors import DataError, SchemaError
from falconet.etl.names import repeated
from falconet.etl.paths import Found
from falconet.etl.text_files import unpacked
from falconet.etl.widen import widest

BLOCK = 8 << 20
_NO_OBJECT = re.compile(rb"^[ \t\r]*[^{ \t\r\n]", re.MULTILINE)


def infer_json(file: Found) -> dict[str, pl.DataType]:
    """The type of each key of a file, in the order in which they appear; Null where no line has a value."""
    found: dict[str, pl.DataType] = {}
    for line, block in _blocks(file):
        whole = pa_json.ReadOptions(block_size=len(block) + 1, use_threads=False)
        if _NO_OBJECT.search(block):  # Arrow's parser reads null as a row, and crashes where there is nothing else
            _explain(file, "a line is no object")
        try:
            types = pl.read_ndjson(block, infer_schema_length=None).schema
            seen = pa_json.read_json(pa.BufferReader(block), read_options=whole).schema
        except (pa.ArrowInvalid, pl.exceptions.PolarsError) as error:
            _explain(file, str(error))
        for field in seen:
            name, dtype = field.name, _in_order(types[field.name], field.type)
            if "Int128" in str(dtype):
                raise SchemaError(
                    f"{file.where}, after line {line}: `{name}` holds whole numbers beyond 64 bits with a sign",
                    hint="write them as strings",
                )
            before = found.get(name, dtype)
            wide = widest(before, dtype, inferred=True)
            if wide is None:
                _explain(file, f"`{name}` is {dtype} after line {line}, and {before} in the lines before")
            found[name] = wide
    return found


def _in_order(dtype: pl.DataType, seen: pa.DataType) -> pl.DataType:
    """The type with the fields of its structs in the order in which they appear (Polars has an order of its own)."""
    if isinstance(dtype, pl.List):
        inner = dtype.inner if isinstance(dtype.inner, pl.DataType) else dtype.inner()
        return pl.List(_in_order(inner, seen.value_type))
    if isinstance(dtype, pl.Struct):
        types = {f.name: f.dtype if isinstance(f.dtype, pl.DataType) else f.dtype() for f in dtype.fields}
        return pl.Struct({field.name: _in_order(types[field.name], field.type) for field in seen})
    return dtype


def read_json(file: Found, schema: Mapping[str, pl.DataType]) -> Iterator[pl.DataFrame]:
    """The rows of a file with the columns of `schema`, in blocks."""
    for _, block in _blocks(file):
        try:
            yield pl.read_ndjson(block, schema=dict(schema))
        except pl.exceptions.PolarsError as error:
            _explain(file, str(error))


def _blocks(file: Found) -> Iterator[tuple[int, bytes]]:
    """Whole lines, about BLOCK bytes of them, with the number of the first."""
    line = 1
    rest = b""
    with unpacked(file) as raw:
        while read := raw.read(BLOCK):
            cut = read.rfind(b"\n") + 1
            block, rest = (rest + read[:cut], read[cut:]) if cut else (b"", rest + read)
            if line == 1:
                block = block.removeprefix(b"\xef\xbb\xbf")
            if block.strip():
                yield line, block
            line += block.count(b"\n")
    if rest.strip():
        yield line, rest.removeprefix(b"\xef\xbb\xbf")


def _explain(file: Found, said: str) -> NoReturn:
    """Raise what is wrong with the first line that is; if none is, what was `said`."""
    kinds: dict[str, str] = {}
    for first, block in _blocks(file):
        for number, line in enumerate(block.split(b"\n"), start=first):
            if line.strip():
                _check(line, f"{file.where}, line {number}", kinds)
    raise DataError(f"{file.where} cannot be read as JSON lines: {said.splitlines()[0]}")


def _check(line: bytes, where: str, kinds: dict[str, str]) -> None:
    try:
        value = json.loads(line.decode(), parse_constant=_refuse_constant, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        shown = line[:80].decode(errors="replace")
        raise DataError(f"{where}: no JSON: {error}", hint=f"the line is `{shown}`") from error
    if not isinstance(value, dict):
        raise DataError(f"{where}: no object but {_kind(value)}", hint='a line is like {"user": 1, "item": 7}')
    for name, inner in value.items():
        if inner is not None and (kind := kinds.setdefault(name, _kind(inner))) != _kind(inner):
            raise SchemaError(
                f"{where}: `{name}` is {_kind(inner)}, and {kind} in the lines before",
                hint="all values of a key are of one kind",
            )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON; null is")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if twice := repeated(name for name, _ in pairs):
        raise ValueError(f"the key `{twice}` is there twice")
    return dict(pairs)


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "a number"
    return "text" if isinstance(value, str) else "a list" if isinstance(value, list) else "an object"
