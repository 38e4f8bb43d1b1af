"""What a ranker learns from: every training user's items cut in two, what was known and what was then taken.

Rows on which a retriever was trained look better to it than anything it will be asked for. So the candidates a ranker
learns from should come from a scout: a retriever of the same settings that never saw the held-out part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
from torch import Tensor

from falconet.batch import Feature, Ragged
from falconet.columns import read_columns
from falconet.errors import ConfigError, DataError
from falconet.evaluation.tables import Users
from falconet.hashing import hash_uint64
from falconet.io.artifact import write_artifact
from falconet.io.footer import data_files, read_schema
from falconet.models.closed_form import SEEN, Interactions
from falconet.schema import SECONDS, Column, Schema, Tag

KIND = "rows"


@dataclass(frozen=True, kw_only=True)
class CandidateConfig:
    """How many candidates a user gets, and what is held out: items whose hash of (seed, user, item) is low enough."""

    candidates: int = 200  # per user
    held_out: float = 0.2  # share of the items
    max_users: int | None = 20_000  # whose candidates are made, chosen by hash; None: all
    seed: int = 0

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise ConfigError(f"candidates={self.candidates}", hint="at least 1 per user")
        if not 0 < self.held_out < 1:
            raise ConfigError(f"held_out={self.held_out}", hint="a share between 0 and 1, like 0.2")
        if self.max_users is not None and self.max_users < 1:
            raise ConfigError(f"max_users={self.max_users}", hint="at least 1, or none for all users")

    def holds_out(self, users: npt.NDArray[np.integer], items: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        """Whether each (user code, item code) is held out."""
        pairs = (users.astype(np.int64) << 32) | items.astype(np.int64)
        return hash_uint64(pairs.view(np.uint64), self.seed) < np.uint64(int(self.held_out * 2**64))

    def choose(self, users: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """The places of the users whose candidates are made, ascending."""
        if self.max_users is None or len(users) <= self.max_users:
            return np.arange(len(users))
        order = hash_uint64(users.astype(np.int64).view(np.uint64), self.seed).argsort(kind="stable")
        return np.sort(order[: self.max_users])


def cut_users(
    users: Users, items: Schema, config: CandidateConfig, rows: str | Path | None = None
) -> tuple[Tensor, Users]:
    """The chosen users with something on both sides: their rows, and they themselves as if they knew only one side.

    `seen` and the histories are what is left, `relevant` what was held out. Where users have context columns, these are
    then those of one held-out row of each in `rows`, the folder of training rows. Raises ConfigError without it.
    """
    codes = users.features.features[users.schema.one(Tag.USER, Tag.ID).name]
    assert isinstance(codes, Tensor)

    def held_out(lists: Ragged) -> Tensor:
        return torch.from_numpy(config.holds_out(codes[lists.row_of_value()].numpy(), lists.values.numpy()))

    out = held_out(users.seen)
    features: dict[str, Feature] = dict(users.features.features)
    for column in histories(users.schema, items):
        history = features[column.name]
        assert isinstance(history, Ragged)
        features[column.name] = _keep(history, ~held_out(history))
    features[SEEN] = seen = _keep(users.seen, ~out)
    reduced = Users(
        users.schema,
        replace(users.features, features=features),
        seen,
        _keep(users.seen, out),
        torch.zeros_like(users.unknown),
    )
    both = torch.nonzero((reduced.relevant.lengths > 0) & (reduced.seen.lengths > 0)).flatten()
    chosen = both[torch.from_numpy(config.choose(codes[both].numpy()))]
    cut = reduced.take(chosen)
    if not cut.schema.select(Tag.CONTEXT).columns:
        return chosen, cut
    if rows is None:
        raise ConfigError("users have context columns, and no `rows` say what the moment of an item was")
    moments = _moments(rows, cut.schema, codes[chosen].numpy(), config)
    return chosen, replace(cut, features=replace(cut.features, features={**cut.features.features, **moments}))


def _moments(
    rows: str | Path, users: Schema, codes: npt.NDArray[np.integer], config: CandidateConfig
) -> dict[str, Feature]:
    """The context columns of the first row of each user (ascending codes) that is held out."""
    schema, context = read_schema(rows), users.select(Tag.CONTEXT)
    user, item = (schema.one(side, Tag.ID).name for side in (Tag.USER, Tag.ITEM))
    found: list[pa.Table] = []
    for path in data_files(rows):
        table = pq.read_table(path, columns=[user, item, *context.names], partitioning=None)
        held_out = config.holds_out(table.column(user).to_numpy(), table.column(item).to_numpy())
        found.append(table.filter(pa.array(held_out)))
    table = pa.concat_tables(found)
    there, first = np.unique(table.column(user).to_numpy(), return_index=True)
    places = first[np.searchsorted(there, codes)]
    return read_columns(table.select(context.names).take(pa.array(places)), context, where=f"`{rows}`")


def write_scout_rows(
    train: str | Path,
    out: str | Path,
    config: CandidateConfig,
    *,
    parents: Mapping[str, str] | None = None,
    step: str = "",
) -> None:
    """Write the rows of `features/train` that are not held out, with histories that do not know the held-out items."""
    schema = read_schema(train)
    with write_artifact(out, KIND, parents=parents, extra={"step": step}, overwrite=True) as draft:
        rows = 0
        for path in data_files(train):
            with pq.ParquetFile(path) as file, pq.ParquetWriter(draft.path / path.name, file.schema_arrow) as writer:
                for i in range(file.num_row_groups):
                    kept = _cut_rows(file.read_row_group(i), schema, config)
                    writer.write_table(kept)
                    rows += len(kept)
                writer.add_key_value_metadata(file.metadata.metadata or {})
        if not rows:
            raise DataError(f"every row of `{train}` is held out", hint="a smaller `held_out`")


def _cut_rows(table: pa.Table, schema: Schema, config: CandidateConfig) -> pa.Table:
    user, item = schema.one(Tag.USER, Tag.ID).name, schema.one(Tag.ITEM, Tag.ID).name
    held_out = config.holds_out(table.column(user).to_numpy(), table.column(item).to_numpy())
    table = table.filter(pa.array(~held_out)).combine_chunks()
    users = table.column(user).to_numpy()
    for column in histories(schema, schema):
        at = table.schema.get_field_index(column.name)
        lists = table.column(at).combine_chunks()
        lists = lists.chunk(0) if isinstance(lists, pa.ChunkedArray) else lists
        values = lists.flatten().to_numpy()
        ends = np.cumsum(lists.value_lengths().fill_null(0).to_numpy())
        starts = np.concatenate([[0], ends]).astype(np.int64)
        kept = ~config.holds_out(np.repeat(users, np.diff(starts)), values)
        offsets = np.concatenate([[0], np.cumsum(kept)])[starts].astype(np.int32)
        shorter = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values[kept])).cast(table.schema.field(at).type)
        table = table.set_column(at, table.schema.field(at), shorter)
    return table


def count_items(rows: str | Path, cardinality: int) -> Tensor:
    """How often each item code occurs in a folder of rows: int64 of [cardinality]."""
    item = read_schema(rows).one(Tag.ITEM, Tag.ID).name
    counts = torch.zeros(cardinality, dtype=torch.int64)
    for path in data_files(rows):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=[item]):
                codes = torch.from_numpy(batch.column(0).to_numpy().astype(np.int64))
                counts += torch.bincount(codes, minlength=cardinality)
    return counts


def read_interactions(rows: str | Path) -> Interactions:
    """Who took what in a folder of rows, and when, where they say it: what models in closed form are fitted on."""
    schema = read_schema(rows)
    user, item = (schema.one(side, Tag.ID).name for side in (Tag.USER, Tag.ITEM))
    names = [user, item, *([SECONDS] if SECONDS in schema else [])]
    table = pa.concat_tables(pq.read_table(path, columns=names, partitioning=None) for path in data_files(rows))
    found = {name: table.column(name).to_numpy() for name in names}
    days = torch.from_numpy(found[SECONDS].astype(np.float64)) / 86_400 if SECONDS in found else None
    users, items = (torch.from_numpy(found[name].astype(np.int64)) for name in (user, item))
    return Interactions(users, items, days)


def histories(schema: Schema, items: Schema) -> tuple[Column, ...]:
    """The columns that list items a user has met."""
    item = items.one(Tag.ITEM, Tag.ID)
    return tuple(c for c in schema.select(Tag.SEQUENCE, Tag.CATEGORICAL) if c.table == item.table)


def _keep(lists: Ragged, kept: Tensor) -> Ragged:
    return Ragged(lists.values[kept], F.pad(kept.long().cumsum(0), (1, 0))[lists.offsets])
