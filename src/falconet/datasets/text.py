"""The rating and film files of MovieLens releases as text: parsed in blocks, with the line number of what is wrong.

csv      ratings.csv, movies.csv     header, commas, quotes, UTF-8                   20m 25m 32m latest latest-small
dat      ratings.dat, movies.dat     `::` between values, latin-1 (1m) or UTF-8 (10m)
u        u.data, u.item, u.genre     tabs and `|`, latin-1, one flag per genre       100k
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from falconet.datasets.container import Container
from falconet.datasets.layout import MOVIES, RATINGS, missing_column
from falconet.errors import DataError

NO_GENRES = {"(no genres listed)", "unknown", ""}
_YEAR = re.compile(r"\((\d{4})(?:\s*[-–]\s*(?:\d{4})?)?\)\s*$")
_INT = re.compile(r"\s*-?\d+\s*")


def read_ratings(files: Container, name: str, *, separator: str, header: bool) -> Iterator[pa.RecordBatch]:
    """Batches of RATINGS in file order; memory is bounded by one block of the file.

    Raises ColumnNotFoundError where the header lacks a column, DataError with the line where a value is wrong.
    """
    columns: Sequence[str] = RATINGS.names
    line = 1
    for block in files.lines_in_blocks(name):
        if line == 1 and header:
            first, _, block = block.partition(b"\n")
            columns = _header(first, files.path(name))
            line = 2
        lines = block.count(b"\n")
        if block.strip():
            yield from _parse(block, separator, columns, files.path(name), line)
        line += lines
    if line == 1 and header:
        raise DataError(f"`{files.path(name)}` is empty", hint=f"its first line should be {','.join(RATINGS.names)}")


def _header(line: bytes, where: str) -> list[str]:
    names = [name.strip().strip('"') for name in _decode(line, "utf-8-sig", where, 1).split(",")]
    for wanted in RATINGS.names:
        if wanted not in names:
            raise missing_column(wanted, names, where)
    if len(set(names)) < len(names):
        raise DataError(f"`{where}` has two columns of one name: {', '.join(names)}")
    return names


def _parse(block: bytes, separator: str, columns: Sequence[str], where: str, line: int) -> list[pa.RecordBatch]:
    delimiter = separator
    if separator == "::":  # parsers know separators of one character only
        block, delimiter = block.replace(b"::", b"\t"), "\t"

    def bad_line(why: str) -> DataError:
        """Go through the block that could not be parsed for the line that is wrong."""
        text = io.StringIO(block.decode("utf-8", errors="backslashreplace"), newline="")
        rows = csv.reader(text, delimiter=delimiter)
        try:
            for row in rows:
                if wrong := _wrong(row, columns):
                    given = separator.join(row)[:80]
                    return DataError(
                        f"`{where}`, line {line + rows.line_num - 1}: {wrong}", hint=f"the line is `{given}`"
                    )
        except csv.Error as error:
            return DataError(f"`{where}`, line {line + rows.line_num - 1}: {error}")
        return DataError(f"`{where}`, after line {line}: {why}")

    try:
        table = pa_csv.read_csv(
            pa.BufferReader(block),
            read_options=pa_csv.ReadOptions(column_names=list(columns)),
            parse_options=pa_csv.ParseOptions(delimiter=delimiter),
            convert_options=pa_csv.ConvertOptions(
                column_types=dict(zip(RATINGS.names, RATINGS.types, strict=True)),
                include_columns=RATINGS.names,
                null_values=[],
            ),
        )
    except pa.ArrowInvalid as error:
        raise bad_line(str(error)) from error
    if not pc.all(pc.is_finite(table["rating"]), min_count=0).as_py():
        raise bad_line("ratings that are not finite")
    batches: list[pa.RecordBatch] = table.to_batches()
    return batches


def _wrong(row: Sequence[str], columns: Sequence[str]) -> str | None:
    if not row:
        return None  # blank lines are passed over
    if len(row) != len(columns):
        return f"{len(row)} values where {len(columns)} are expected"
    for column, value in zip(columns, row, strict=True):
        if column == "rating":
            try:
                good = math.isfinite(float(value))
            except ValueError:
                good = False
            if not good:
                return f"rating is `{value}`, not a number"
        elif column in RATINGS.names:
            bits = 31 if RATINGS.field(column).type == pa.int32() else 63
            if not _INT.fullmatch(value) or not -(2**bits) <= int(value) < 2**bits:
                return f"{column} is `{value}`, not a whole number of {bits + 1} bits"
    return None


def read_movies_csv(files: Container, name: str) -> pa.Table:
    where = files.path(name)
    rows = csv.reader(io.StringIO(_text(files, name, "utf-8-sig"), newline=""), strict=True)
    films = _Films(where)
    columns: dict[str, int] = {}
    try:
        for row in rows:
            if not columns:
                columns = {column.strip(): i for i, column in enumerate(row)}
                for wanted in ("movieId", "title", "genres"):
                    if wanted not in columns:
                        raise missing_column(wanted, columns, where)
            elif row:
                films.need(row, len(columns), rows.line_num)
                genres = row[columns["genres"]].split("|")
                films.add(row[columns["movieId"]], row[columns["title"]], genres, rows.line_num)
    except csv.Error as error:
        raise DataError(f"`{where}`, line {rows.line_num}: {error}") from error
    return films.table()


def read_movies_dat(files: Container, name: str, encoding: str) -> pa.Table:
    films = _Films(files.path(name))
    for number, line in enumerate(_lines(files, name, encoding), start=1):
        if line.strip():
            row = line.split("::")
            if len(row) > 3:  # a title may hold `::` itself
                row = [row[0], "::".join(row[1:-1]), row[-1]]
            films.need(row, 3, number)
            films.add(row[0], row[1], row[2].split("|"), number)
    return films.table()


def read_movies_u(files: Container, name: str, genre_name: str) -> pa.Table:
    genres = _genre_flags(files, genre_name)
    films = _Films(files.path(name))
    for number, line in enumerate(_lines(files, name, "latin-1"), start=1):
        if line.strip():
            row = line.split("|")
            films.need(row, 5 + len(genres), number)
            flags = row[5:]
            if not set(flags) <= {"0", "1"}:
                raise films.error(number, f"genre flags are {'|'.join(flags)}, not 0 and 1")
            films.add(row[0], row[1], [g for g, flag in zip(genres, flags, strict=True) if flag == "1"], number)
    return films.table()


def _genre_flags(files: Container, name: str) -> list[str]:
    """The genres in the order of their flags: lines of `Name|number`, the numbers 0, 1, 2 …"""
    where = files.path(name)
    names: list[str] = []
    for number, line in enumerate(_lines(files, name, "latin-1"), start=1):
        if line.strip():
            genre, _, place = line.rpartition("|")
            if place.strip() != str(len(names)):
                raise DataError(f"`{where}`, line {number}: `{line}`", hint=f"expected a genre and `|{len(names)}`")
            names.append(genre)
    return names


class _Films:
    """The films of a file, gathered line by line."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.line_of: dict[int, int] = {}
        self.titles: list[str] = []
        self.genres: list[list[str]] = []

    def error(self, line: int, wrong: str, hint: str | None = None) -> DataError:
        return DataError(f"`{self.where}`, line {line}: {wrong}", hint=hint)

    def need(self, row: Sequence[str], values: int, line: int) -> None:
        if len(row) != values:
            given = "|".join(row)[:80]
            raise self.error(line, f"{len(row)} values where {values} are expected", f"the line is `{given}`")

    def add(self, number: str, title: str, genres: Sequence[str], line: int) -> None:
        if not _INT.fullmatch(number) or not -(2**31) <= int(number) < 2**31:
            raise self.error(line, f"movieId is `{number}`, not a whole number of 32 bits")
        key = int(number)
        if key in self.line_of:
            raise self.error(line, f"movieId {key} is there twice", f"first on line {self.line_of[key]}")
        self.line_of[key] = line
        self.titles.append(title.strip())
        self.genres.append([genre.strip() for genre in genres if genre.strip() not in NO_GENRES])

    def table(self) -> pa.Table:
        columns = [list(self.line_of), self.titles, self.genres, [title_year(title) for title in self.titles]]
        return pa.table([pa.array(x, type=t) for x, t in zip(columns, MOVIES.types, strict=True)], schema=MOVIES)


def title_year(title: str) -> int | None:
    """The year at the end of a title, the first of a range.

    >>> title_year("Toy Story (1995)"), title_year("Death Note (2006–2007)"), title_year("Moonlight")
    (1995, 2006, None)
    """
    found = _YEAR.search(title)
    return int(found[1]) if found else None


def _lines(files: Container, name: str, encoding: str) -> list[str]:
    """Split at line feeds alone: `splitlines` would also split at characters that titles may hold."""
    return [line.removesuffix("\r") for line in _text(files, name, encoding).split("\n")]


def _text(files: Container, name: str, encoding: str) -> str:
    with files.reading(name) as file:
        return _decode(file.read(), encoding, files.path(name), 1)


def _decode(data: bytes, encoding: str, where: str, line: int) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        at = line + data[: error.start].count(b"\n")
        raise DataError(
            f"`{where}`, line {at}: byte 0x{data[error.start]:02x} is not {encoding.removesuffix('-sig').upper()}",
            hint="save the file as UTF-8",
        ) from error
