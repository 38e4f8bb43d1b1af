"""CSV and its kin as typed rows: read block by block in any encoding, packed or not, and strict about every line.

Types are those that all lines of a file agree with, in this order: Int64, UInt64, Float64, Boolean (true and false), or
text; whole numbers of 19 digits and more are never taken for floats, which would lose digits. Nothing at all is a null,
`""` is an empty string. A column without a name is called by its place, `column_1`. A line with too few or too many
values, or with one that is not of its column's type, is refused by its number: it is looked for in a second, slow
reading that only errors pay for.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv

from falconet.errors import ConfigError, DataError, SchemaError
from falconet.etl.names import check_bytes, repeated
from falconet.etl.paths import PACKED, Found
from falconet.etl.text_types import Guess, parse
from falconet.etl.widen import say_type

BLOCK = 4 << 20  # bytes parsed at a time; no record is longer
_SPLIT = "\x1f"  # stands for a separator of several bytes, which parsers do not know


@dataclass(frozen=True, kw_only=True)
class TextFormat:
    """How a CSV file is written. `separator` None: a comma, in `.tsv` files a tab.

    A separator may have several characters (`::`); quotes are then characters like others. Without a header `names`
    are the columns. `null_values` are what stands for a null beside nothing at all, where it is not in quotes.
    """

    separator: str | None = None
    encoding: str = "utf-8"
    names: tuple[str, ...] | None = None
    null_values: tuple[str, ...] = ()
    quote: str | None = '"'

    def __post_init__(self) -> None:
        try:
            codecs.lookup(self.encoding)
        except LookupError as error:
            raise ConfigError(f"encoding={self.encoding!r} is not known", hint="like utf-8, latin-1, utf-16") from error
        if self.separator is not None and (not self.separator or set(self.separator) & set('\r\n"')):
            raise ConfigError(f"separator={self.separator!r}", hint="one or more characters of a line, no quotes")
        if self.quote is not None and (
            len(self.quote) != 1 or not self.quote.isascii() or self.quote == self.separator
        ):
            raise ConfigError(f"quote={self.quote!r}", hint="one character, or None where there are no quotes")
        if self.names is not None and (twice := repeated(self.names)):
            raise ConfigError(f"`{twice}` is in `columns` twice")

    @property
    def utf8(self) -> bool:
        return codecs.lookup(self.encoding).name in ("utf-8", "utf-8-sig", "ascii")

    def split(self, file: Found) -> str:
        return self.separator or ("\t" if ".tsv" in file.name.lower() else ",")


def infer_csv(file: Found, text: TextFormat, dtypes: Mapping[str, pl.DataType]) -> dict[str, pl.DataType]:
    """The type of each column of a file; Null where no line has a value."""
    names, skip = _names(file, text)
    guesses = {name: Guess() for name in names if name not in dtypes}
    if guesses:
        for frame in _strings(file, text, names, skip):
            for name, guess in guesses.items():
                guess.see(frame[name])
    return {name: dtypes[name] if name in dtypes else guesses[name].dtype for name in names}


def read_csv(file: Found, text: TextFormat, schema: Mapping[str, pl.DataType]) -> Iterator[pl.DataFrame]:
    """The rows of a file in the types of `schema`, in blocks."""
    names, skip = _names(file, text)
    row = 0
    for frame in _strings(file, text, names, skip):
        typed = frame.select(parse(pl.col(name), schema[name]).alias(name) for name in names)
        for name in names:
            lost = typed[name].is_null() & frame[name].is_not_null()
            if lost.any():
                at = lost.arg_max() or 0
                _refuse_value(file, text, name, row + at, frame[name][at], schema[name])
        row += frame.height
        yield typed


def _names(file: Found, text: TextFormat) -> tuple[tuple[str, ...], int]:
    """The names of the columns, and how many rows of the parser they take: those given, or the first line."""
    if text.names is not None:
        return text.names, 0
    first = None
    try:
        with _fields_of_any_length():
            first = next(_records(file, text), None)
    except (csv.Error, UnicodeError):
        _explain(file, text, (), None)
    if first is None:
        hint = "a CSV file starts with a line of column names; without one: `has_header=False, columns=[…]`"
        raise DataError(f"{file.where} is empty", hint=hint)
    names = tuple(name or f"column_{place}" for place, name in enumerate(first[1], start=1))
    if any(_broken(name) for name in names):
        _refuse_bytes(file, text, *first)
    if twice := repeated(names):
        raise SchemaError(
            f"{file.where} has two columns `{twice}`",
            hint="the first line is taken for names; where it is data: `has_header=False, columns=[…]`",
        )
    check_bytes(names, file.where)
    return names, 1 if len(names) > 1 else first[0]  # of one column, blank lines before it are rows


def _strings(file: Found, text: TextFormat, names: Sequence[str], skip: int) -> Iterator[pl.DataFrame]:
    """All lines but the first `skip` in blocks, every column as text."""
    separator = text.split(file)
    split = len(separator.encode()) > 1
    last = None
    try:
        with unpacked(file) as raw:
            stream: object = raw
            if split or not text.utf8:
                recoded = _Recoded(raw, text.encoding, separator if split else None, file.where)
                stream = pa.PythonFile(io.BufferedReader(recoded, BLOCK), mode="r")
            reader = pa_csv.open_csv(
                stream,
                read_options=pa_csv.ReadOptions(column_names=list(names), block_size=BLOCK),
                parse_options=pa_csv.ParseOptions(
                    delimiter=_SPLIT if split else separator,
                    quote_char=False if split or text.quote is None else text.quote,
                    newlines_in_values=not split and text.quote is not None,
                    ignore_empty_lines=len(names) > 1,
                ),
                convert_options=pa_csv.ConvertOptions(
                    column_types={name: pa.large_string() for name in names},
                    strings_can_be_null=True,
                    null_values=["", *text.null_values],
                    quoted_strings_can_be_null=False,
                ),
            )
            for batch in reader:
                frame = pl.DataFrame(pl.from_arrow(batch))
                frame, skip = frame[skip:], max(0, skip - frame.height)
                if frame.height:
                    last = frame[-1, -1]
                    yield frame
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        if "Empty CSV file" in str(error):
            return
        _explain(file, text, names, error)
    if last is not None and ("\n" in last or "\r" in last):  # it ended in quotes: were they closed?
        _explain(file, text, names, None)


def _explain(file: Found, text: TextFormat, names: Sequence[str], error: Exception | None) -> None:
    """Raise what is wrong with the first line that is; if none is, what the parser said."""
    line = 0
    try:
        with _fields_of_any_length():
            for line, row in _records(file, text):
                if any(_broken(value) for value in row):
                    _refuse_bytes(file, text, line, row)
                if len(row) != len(names):
                    raise DataError(
                        f"{file.where}, line {line}: {len(row)} values where {len(names)} are expected",
                        hint=f"the line is `{text.split(file).join(row)[:80]}`",
                    )
    except csv.Error as wrong:
        raise DataError(f"{file.where}, after line {line}: {wrong}", hint="are all quotes closed?") from wrong
    except UnicodeError as wrong:
        raise DataError(
            f"{file.where}, after line {line}: {wrong}", hint="`encoding=` says how it is written"
        ) from wrong
    if error is not None:
        raise DataError(f"{file.where} cannot be read as CSV: {str(error).splitlines()[0]}") from error


def _records(file: Found, text: TextFormat, *, strict: bool = True) -> Iterator[tuple[int, list[str]]]:
    """Each record with the number of the line it begins on. Slow, and exact about lines; `strict` about quotes."""
    separator = text.split(file)
    encoding = "utf-8-sig" if text.utf8 else text.encoding
    alone = text.names is not None and len(text.names) == 1
    with unpacked(file) as raw, io.TextIOWrapper(raw, encoding, errors="surrogateescape", newline="") as lines:
        if len(separator.encode()) > 1:
            for number, line in enumerate(lines, start=1):
                content = line.rstrip("\r\n")
                if content or alone:
                    yield number, content.split(separator)
            return
        if text.quote is None:
            rows = csv.reader(lines, delimiter=separator, quoting=csv.QUOTE_NONE, strict=strict)
        else:
            rows = csv.reader(lines, delimiter=separator, quotechar=text.quote, strict=strict)
        number = 1
        for row in rows:
            if row or alone:
                alone = alone or len(row) == 1
                yield number, row or [""]
            number = rows.line_num + 1


def _refuse_value(file: Found, text: TextFormat, name: str, row: int, value: str, dtype: pl.DataType) -> NoReturn:
    skip = row + (text.names is None)
    with _fields_of_any_length():
        line = next(line for i, (line, _) in enumerate(_records(file, text, strict=False)) if i == skip)
    raise DataError(
        f"{file.where}, line {line}: column `{name}` is `{value[:80]}`, which is no {dtype}",
        hint=f'`null_values=["{value[:20]}"]` if it stands for nothing, or {say_type(name, "string")}',
    )


def _refuse_bytes(file: Found, text: TextFormat, line: int, row: Sequence[str]) -> NoReturn:
    byte = next(ord(sign) - 0xDC00 for value in row for sign in value if "\udc80" <= sign <= "\udcff")
    raise DataError(
        f"{file.where}, line {line}: byte 0x{byte:02x} is not {text.encoding.upper()}",
        hint='`encoding="latin-1"` (or what it is) reads files that are not UTF-8',
    )


def _broken(value: str) -> bool:
    return any("\udc80" <= sign <= "\udcff" for sign in value) if not value.isascii() else False


@contextmanager
def _fields_of_any_length() -> Iterator[None]:
    """Python's parser has a limit of its own, of the whole process."""
    before = csv.field_size_limit(1 << 30)
    try:
        yield
    finally:
        csv.field_size_limit(before)


@contextmanager
def unpacked(file: Found) -> Iterator[pa.NativeFile]:
    """The bytes of a file, unpacked where its name says that it is packed."""
    codec = next((codec for ending, codec in PACKED.items() if file.name.lower().endswith(ending)), None)
    with file.opened() as raw:
        yield raw if codec is None else pa.CompressedInputStream(raw, codec)


class _Recoded(io.RawIOBase):
    """A text as UTF-8, with one character where a separator of several stands."""

    def __init__(self, raw: pa.NativeFile, encoding: str, separator: str | None, where: str) -> None:
        self._raw, self._separator, self._where = raw, separator, where
        utf8 = codecs.lookup(encoding).name == "utf-8"
        self._decoder = codecs.getincrementaldecoder("utf-8-sig" if utf8 else encoding)()
        self._held = ""  # may be the beginning of a separator
        self._ready = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, target: object) -> int:
        into = memoryview(target).cast("B")  # type: ignore[arg-type]
        while not self._ready and not self._ended:
            block = self._raw.read(BLOCK)
            self._ended = not block
            self._ready = memoryview(self._split(self._decoder.decode(block, final=self._ended)).encode())
        size = min(len(into), len(self._ready))
        into[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _split(self, text: str) -> str:
        if self._separator is None:
            return text
        if _SPLIT in text:
            raise DataError(
                f"{self._where} has the character U+001F in it", hint="a separator of one character is needed"
            )
        *values, rest = (self._held + text).split(self._separator)
        held = 0
        if not self._ended:
            held = next((n for n in range(len(self._separator) - 1, 0, -1) if rest.endswith(self._separator[:n])), 0)
        self._held = rest[len(rest) - held :]
        return _SPLIT.join([*values, rest[: len(rest) - held]])
