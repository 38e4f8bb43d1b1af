"""The ranker's rows on disk: what the retriever really returns, and whether it was taken.

For training, every user's known items are cut in two: the retriever sees the one part as history, and the items of the
other part are what is taken. For the test the history is whole, and what is taken are the test items.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from falconet.batch import Batch, Feature, Ragged
from falconet.errors import ConfigError, DataError
from falconet.evaluate.recommend import Retrieval
from falconet.evaluate.tables import Items, Users
from falconet.hashing import hash_uint64
from falconet.io.artifact import write_artifact
from falconet.models.base import Retriever
from falconet.progress import progress
from falconet.retrieval.candidates import CandidateRows
from falconet.schema import FOOTER_KEY, Column, Schema, Tag

KIND = "candidates"
GROUP = "group"
TAKEN = "taken"
USER_ROWS = 256  # users whose candidates are made at once, and one row group of the file


@dataclass(frozen=True, kw_only=True)
class CandidateConfig:
    """How many candidates a user gets, and how the training users' items are cut."""

    candidates: int = 200
    held_out: float = 0.2  # share of a training user's items that are not history but there to be taken
    max_users: int | None = 20_000  # training users, chosen by hash; None: all
    seed: int = 0

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise ConfigError(f"candidates={self.candidates}", hint="at least 1 per user")
        if not 0 < self.held_out < 1:
            raise ConfigError(f"held_out={self.held_out}", hint="a share between 0 and 1, like 0.2")


def build_candidates(
    retriever: Retriever,
    items: Items,
    users: Users,
    out: str | Path,
    config: CandidateConfig | None = None,
    *,
    parents: Mapping[str, str] | None = None,
    step: str = "",
) -> None:
    """Write `out/train` and `out/test` under one manifest, with the schema in the files' footers.

    `group` is the row of the user in the table of users. Raises DataError where the retriever finds nothing to learn
    from: no training user's held-out item is among the candidates.
    """
    config = config or CandidateConfig()
    first = Retrieval(retriever, items)
    rows = candidate_rows(users, items)
    extra = {"step": step, "candidates": config.candidates}
    with write_artifact(out, KIND, parents=parents, extra=extra, overwrite=True) as draft:
        chosen, cut = cut_users(users, items.schema, config)
        taken = _write(draft.path / "train", first, rows, chosen, cut, config)
        if not taken:
            raise DataError(
                f"none of the {len(chosen):,} training users took any of the {config.candidates} candidates",
                hint="more `candidates`, or a retriever that was trained longer",
            )
        whole = torch.nonzero(users.relevant.lengths + users.unknown).flatten()
        _write(draft.path / "test", first, rows, whole, users.take(whole), config)


def candidate_rows(users: Users, items: Items) -> CandidateRows:
    """The maker of the ranker's rows for these tables."""
    return CandidateRows(Schema((*users.schema, *items.schema)), items.features)


def cut_users(users: Users, items: Schema, config: CandidateConfig) -> tuple[Tensor, Users]:
    """The training users with something held out: their rows, and they themselves as if they did not know it yet.

    `seen` is what is left, `relevant` what was held out. An item is held out by the hash of (seed, user, item).
    """
    item = items.one(Tag.ITEM, Tag.ID)
    codes = users.features.features[users.schema.one(Tag.USER, Tag.ID).name]
    assert isinstance(codes, Tensor)

    def held_out(lists: Ragged) -> Tensor:
        pair = (codes.long()[lists.row_of_value()] << 32) | lists.values.long()
        hashed = hash_uint64(pair.numpy().view("uint64"), config.seed)
        return torch.from_numpy(hashed < int(config.held_out * 2**64))

    out = held_out(users.seen)
    histories = [c.name for c in users.schema.select(Tag.SEQUENCE) if c.table == item.table]
    features: dict[str, Feature] = dict(users.features.features)
    for name in histories:
        history = features[name]
        assert isinstance(history, Ragged)
        features[name] = _keep(history, ~held_out(history))
    cut = Users(
        users.schema,
        replace(users.features, features=features),
        _keep(users.seen, ~out),
        _keep(users.seen, out),
        torch.zeros_like(users.unknown),
    )
    chosen = torch.nonzero((cut.relevant.lengths > 0) & (cut.seen.lengths > 0)).flatten()
    if config.max_users is not None and len(chosen) > config.max_users:
        order = hash_uint64(codes.long()[chosen].numpy().view("uint64"), config.seed).argsort(kind="stable")
        chosen = chosen[torch.from_numpy(order[: config.max_users].copy())].sort().values
    return chosen, cut.take(chosen)


def _keep(lists: Ragged, kept: Tensor) -> Ragged:
    before = torch.nn.functional.pad(kept.long().cumsum(0), (1, 0))
    return Ragged(lists.values[kept], before[lists.offsets])


def _write(
    folder: Path, first: Retrieval, rows: CandidateRows, groups: Tensor, users: Users, config: CandidateConfig
) -> int:
    """One file of ranker rows; the number of rows that were taken."""
    item = rows.item_id
    schema = Schema(
        (
            *rows.schema,
            Column(name=GROUP, dtype="int32", nullable=False),
            Column(name=item.name, dtype=item.dtype, nullable=False),
            Column(name=TAKEN, dtype="float32", nullable=False, tags=frozenset({Tag.TARGET, Tag.BINARY})),
        )
    )
    arrow = pa.schema([pa.field(c.name, _arrow_type(c), nullable=False) for c in schema])
    arrow = arrow.with_metadata({FOOTER_KEY: schema.to_json().encode()})
    folder.mkdir()
    taken = 0
    with (
        pq.ParquetWriter(folder / "part-00000.parquet", arrow, compression="lz4") as writer,
        progress(f"candidates for {folder.name}", len(users), "users") as task,
    ):
        for batch, targets in _batches(first, rows, groups, users, config.candidates):
            features = {**batch.features, **targets}
            writer.write_table(pa.table([_arrow(features[c.name], c) for c in schema], schema=arrow))
            taken += int(targets[TAKEN].sum())
            task.advance(min(USER_ROWS, len(users) - task.done))
    return taken


def _batches(
    first: Retrieval, rows: CandidateRows, groups: Tensor, users: Users, candidates: int
) -> Iterator[tuple[Batch, dict[str, Tensor]]]:
    """The rows of some users at a time, those that stand for nothing left out."""
    for start in range(0, len(users), USER_ROWS):
        some = users[start : start + USER_ROWS]
        scores_RK, codes_RK = first.search(some.features, candidates, some.seen)
        batch = rows.rows(some.features, codes_RK, scores_RK)
        there = torch.nonzero(codes_RK.flatten() >= 0).flatten()
        features = {n: x.take(there) if isinstance(x, Ragged) else x[there] for n, x in batch.features.items()}
        group = groups[start : start + USER_ROWS].repeat_interleave(codes_RK.shape[1])
        targets = {
            GROUP: group[there].int(),
            rows.item_id.name: codes_RK.flatten()[there],
            TAKEN: is_relevant(codes_RK, some.relevant).flatten()[there].float(),
        }
        yield Batch(features, {}, len(there), len(there)), targets


def is_relevant(codes_RK: Tensor, relevant: Ragged) -> Tensor:
    """Whether each code is among its user's relevant ones: bool of [R, K]."""
    row_R = torch.arange(len(codes_RK))[:, None]
    found = (row_R << 32) | codes_RK.clamp(min=0)
    wanted = (relevant.row_of_value() << 32) | relevant.values.long()
    return torch.isin(found, wanted) & (codes_RK >= 0)


def _arrow_type(column: Column) -> pa.DataType:
    kind = pa.type_for_alias(column.dtype)
    if column.list is None:
        return kind
    return pa.list_(kind) if column.list == "ragged" else pa.list_(kind, int(column.list))


def _arrow(feature: Feature, column: Column) -> pa.Array:
    kind = pa.type_for_alias(column.dtype)
    if isinstance(feature, Ragged):
        values = pa.array(feature.values.numpy()).cast(kind)
        return pa.ListArray.from_arrays(pa.array(feature.offsets.int().numpy()), values).cast(_arrow_type(column))
    values = pa.array(feature.reshape(-1).numpy()).cast(kind)
    return values if feature.ndim == 1 else pa.FixedSizeListArray.from_arrays(values, feature.shape[1])
