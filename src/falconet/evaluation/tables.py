"""The tables `features/items` and `features/users` in memory, as evaluation reads them (docs/contracts.md)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from falconet.batch import Batch, Feature, Ragged
from falconet.columns import read_columns
from falconet.errors import ColumnNotFoundError, DataError, SchemaError
from falconet.io.footer import data_files, read_schema
from falconet.models.closed_form import SEEN
from falconet.retrieval.candidates import POPULARITY
from falconet.schema import Schema, Tag

COUNT = "count"
RELEVANT = "relevant"
UNKNOWN = "relevant_unknown"
HELD_OUT = "held_out"  # the table of users whom training does not know, where whole users are held out


@dataclass(frozen=True)
class Items:
    """The catalogue, one row per item by ascending code. `schema` has the columns of `features`."""

    schema: Schema
    features: Batch
    codes: Tensor  # int64
    counts: Tensor  # int64, interactions in training

    def counts_by_code(self, cardinality: int) -> Tensor:
        """Interactions in training of every code, 0 for those of no item: int64 of [cardinality]."""
        counts = torch.zeros(cardinality, dtype=torch.int64)
        counts[self.codes] = self.counts
        return counts

    def untrained(self) -> Items:
        """Those without an interaction in training."""
        rows = torch.nonzero(self.counts == 0).flatten()
        features = {n: x.take(rows) if isinstance(x, Ragged) else x[rows] for n, x in self.features.features.items()}
        return Items(self.schema, Batch(features, {}, len(rows), len(rows)), self.codes[rows], self.counts[rows])

    def with_counts(self, counts: Tensor) -> Items:
        """The catalogue as it was when every code had occurred `counts` [cardinality] times."""
        of_items = counts[self.codes].long()
        features = {**self.features.features, POPULARITY: of_items.float().log1p()}
        return replace(self, features=replace(self.features, features=features), counts=of_items)


@dataclass(frozen=True)
class Users:
    """Everybody known to training, by ascending code. `schema` has the columns of `features`, which have `seen` too."""

    schema: Schema
    features: Batch
    seen: Ragged  # codes of all training items
    relevant: Ragged  # codes of the test items
    unknown: Tensor  # test items that training does not know, int64 of [rows]

    def __len__(self) -> int:
        return self.features.rows

    def __getitem__(self, rows: slice) -> Users:
        return Users(self.schema, self.features[rows], self.seen[rows], self.relevant[rows], self.unknown[rows])

    def take(self, rows: Tensor) -> Users:
        """The given rows (int64), in the given order."""
        features = {
            name: x.take(rows) if isinstance(x, Ragged) else x[rows] for name, x in self.features.features.items()
        }
        return Users(
            self.schema,
            Batch(features, {}, len(rows), len(rows)),
            self.seen.take(rows),
            self.relevant.take(rows),
            self.unknown[rows],
        )


def read_items(path: str | Path) -> Items:
    """The catalogue in `features/items`.

    Raises DataError or SchemaError where it is not there, or not one row per code in ascending order.
    """
    schema, columns = _read(path, (COUNT,))
    name = schema.one(Tag.ITEM, Tag.ID).name
    codes, counts = _scalar(columns, name, path).long(), _scalar(columns, COUNT, path).long()
    if bool((codes[1:] <= codes[:-1]).any()):
        raise DataError(f"`{path}` is not sorted by `{name}`, or holds a code twice")
    return Items(schema, Batch.of({c: columns[c] for c in schema.names}), codes, counts)


def read_users(path: str | Path) -> Users:
    """The people in `features/users`.

    Raises DataError or SchemaError where it is not there, or a column is missing or not what it should be.
    """
    schema, columns = _read(path, (SEEN, RELEVANT, UNKNOWN))
    return Users(
        schema,
        Batch.of({name: columns[name] for name in (*schema.names, SEEN)}),
        _ragged(columns, SEEN, path),
        _ragged(columns, RELEVANT, path),
        _scalar(columns, UNKNOWN, path).long(),
    )


def tested_table(features: str | Path) -> Path:
    """Where those are whom the test is about: `users`, or `held_out` where there is one."""
    held_out = Path(features) / HELD_OUT
    return held_out if held_out.is_dir() else Path(features) / "users"


def _read(path: str | Path, plain: tuple[str, ...]) -> tuple[Schema, dict[str, Feature]]:
    """The tagged columns' schema, and those columns together with the `plain` ones."""
    whole = read_schema(path)
    for name in plain:
        if name not in whole:
            raise ColumnNotFoundError.of(name, whole.names, where=f"`{path}`")
    schema = Schema(tuple(c for c in whole if c.tags and c.name not in plain))
    names = [*schema.names, *plain]
    table = pa.concat_tables([pq.read_table(file, columns=names, partitioning=None) for file in data_files(path)])
    return schema, read_columns(table, whole.only(names), where=f"`{path}`")


def _scalar(columns: dict[str, Feature], name: str, path: str | Path) -> Tensor:
    found = columns[name]
    if isinstance(found, Ragged) or found.ndim != 1:
        raise SchemaError(f"column `{name}` of `{path}` holds lists where one value per row is needed")
    return found


def _ragged(columns: dict[str, Feature], name: str, path: str | Path) -> Ragged:
    found = columns[name]
    if not isinstance(found, Ragged):
        raise SchemaError(f"column `{name}` of `{path}` must hold lists of any length")
    return found
