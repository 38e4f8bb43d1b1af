"""The users of a file, Parquet or CSV, in groups of a fixed size, without the file in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from falconet.errors import ColumnNotFoundError, DataError, SchemaError
from falconet.io.footer import data_files, read_footer
from falconet.serve.events import Id

_CSV = (".csv", ".txt")
_BATCH = 65_536
_KINDS = "users are read from Parquet, and from CSV (.csv, .txt) with names in its first line"


@dataclass(frozen=True)
class UsersFile:
    """Ids in a column of a Parquet file, a folder of them, or a CSV file with names in its first line.

    Ids of a CSV file are texts, as "007" is no number; where a bundle's ids are numbers, "7" is 7 to it.
    """

    path: Path
    column: str = "user_id"

    @property
    def where(self) -> str:
        return f"`{self.path}`"

    @property
    def is_csv(self) -> bool:
        return self.path.suffix.lower() in _CSV

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """Raises DataError where there are none."""
        return data_files(self.path)

    @cached_property
    def sha256(self) -> str:
        """The hash of all that is in the files."""
        digest = hashlib.sha256()
        for path in self.files:
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    @cached_property
    def rows(self) -> int | None:
        """How many there are, where that is known before they are read."""
        return None if self.is_csv else sum(read_footer(file, hint=_KINDS).num_rows for file in self.files)

    @cached_property
    def type(self) -> pa.DataType:
        """Whole numbers of 64 bits, or texts. Raises SchemaError for a column that is neither or not there.

        Where a number does not fit in 64 bits with a sign, as hashes may not, all are texts of their digits.
        """
        if self.is_csv:
            return pa.string()
        found = {self._type(file) for file in self.files}
        if pa.uint64() in found and found <= {pa.int64(), pa.uint64()}:
            return pa.string() if any(map(self._goes_beyond, self.files)) else pa.int64()
        if len(found) > 1:
            raise SchemaError(f"`{self.column}` is a number in some files of {self.where} and a text in others")
        return found.pop()

    def _type(self, file: Path) -> pa.DataType:
        read_footer(file, hint=_KINDS)  # says what is wrong with a file that is none
        schema = pq.read_schema(file)
        if self.column not in schema.names:
            raise ColumnNotFoundError.of(self.column, schema.names, where=f"`{file}`")
        kind = schema.field(self.column).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if pa.types.is_integer(kind):
            return kind if kind == pa.uint64() else pa.int64()
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return pa.string()
        raise SchemaError(f"`{self.column}` of `{file}` is {kind}", hint="ids are whole numbers or texts")

    def _goes_beyond(self, file: Path) -> bool:
        if self._type(file) != pa.uint64():
            return False
        largest = (pc.max(batch).as_py() for batch in self._columns(file))
        return any(value is not None and value >= 2**63 for value in largest)

    def _columns(self, file: Path) -> Iterator[pa.Array]:
        """The ids of a Parquet file as they are in it."""
        with pq.ParquetFile(file) as opened:
            for batch in opened.iter_batches(_BATCH, columns=[self.column]):
                column = batch.column(0)
                yield column.dictionary_decode() if pa.types.is_dictionary(column.type) else column

    def groups(self, size: int) -> Iterator[list[Id | None]]:
        """All users in order, `size` at once, fewer in the last group."""
        held: list[Id | None] = []
        for batch in self._batches():
            held += batch.to_pylist()
            while len(held) >= size:
                yield held[:size]
                held = held[size:]
        if held:
            yield held

    def _batches(self) -> Iterator[pa.Array]:
        try:
            if self.is_csv:
                yield from self._csv()
                return
            kind = self.type
            for path in self.files:
                for column in self._columns(path):
                    yield column.cast(kind)
        except pa.ArrowException as error:
            raise DataError(f"{self.where} cannot be read: {error}") from error

    def _csv(self) -> Iterator[pa.Array]:
        for path in self.files:
            try:
                reader = pa_csv.open_csv(
                    path,
                    convert_options=pa_csv.ConvertOptions(
                        include_columns=[self.column], column_types={self.column: pa.string()}
                    ),
                )
            except KeyError as error:
                with pa_csv.open_csv(path) as names:
                    raise ColumnNotFoundError.of(self.column, names.schema.names, where=f"`{path}`") from error
            with reader:
                for batch in reader:
                    yield batch.column(0)
