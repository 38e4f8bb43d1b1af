"""The ranker's rows on disk: what the retriever really returns, and whether it was taken.

For training, a scout sees one part of a user's items as history, and the items of the other part are what is taken
(cut.py). For the test the history is whole, and what is taken are the test items. A row weighs 1 / its place: what
matters is the order at the top of the list, and a ranker without weights spends itself on the long rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from falconet.batch import Batch, Feature, Ragged
from falconet.errors import DataError
from falconet.evaluation.cut import CandidateConfig, cut_users
from falconet.evaluation.recommend import Retrieval
from falconet.evaluation.tables import Items, Users
from falconet.io.artifact import write_artifact
from falconet.models.base import Retriever
from falconet.progress import progress
from falconet.retrieval.candidates import CandidateRows
from falconet.schema import FOOTER_KEY, Column, Schema, Tag

KIND = "candidates"
GROUP = "group"
TAKEN = "taken"
WEIGHT = "weight"
USER_ROWS = 256  # users whose candidates are made at once, and one row group of the file


def build_candidates(
    retriever: Retriever,
    items: Items,
    users: Users,
    out: str | Path,
    config: CandidateConfig,
    *,
    scout: Retriever | None = None,
    strangers: Users | None = None,
    parents: Mapping[str, str] | None = None,
    step: str = "",
) -> None:
    """Write `out/train` from the scout and `out/test` from the retriever under one manifest.

    The scout was trained on what `write_scout_rows` left with the same `config`; without one the retriever stands in,
    and the ranker will trust it too much. `group` is the row of the user in the table of users; `strangers`, if whole
    users are held out, are the ones in the test, and their rows count on from there. Raises DataError where there is
    nothing to learn: no held-out item is among the candidates.
    """
    extra = {"step": step, "candidates": config.candidates}
    with write_artifact(out, KIND, parents=parents, extra=extra, overwrite=True) as draft:
        chosen, known = cut_users(users, items.schema, config)
        if not len(chosen):
            raise DataError(
                f"none of the {len(users):,} training users has two items of which one could be held out",
                hint="a ranker learns from people with several items: a split that leaves them more for training",
            )
        then = items if scout is None else items.with_counts(scout.counts)
        taken = _write(draft.path / "train", scout or retriever, then, chosen, known, config.candidates)
        if not taken:
            raise DataError(
                f"none of the {len(chosen):,} training users took any of the {config.candidates} candidates",
                hint="more `candidates`, or a retriever that was trained longer",
            )
        asked, first = (users, 0) if strangers is None else (strangers, len(users))
        whole = torch.nonzero(asked.relevant.lengths + asked.unknown).flatten()
        _write(draft.path / "test", retriever, items, first + whole, asked.take(whole), config.candidates)


def candidate_rows(users: Users, items: Items) -> CandidateRows:
    """The maker of the ranker's rows for these tables."""
    return CandidateRows(Schema((*users.schema, *items.schema)), items.features)


def _write(folder: Path, retriever: Retriever, items: Items, groups: Tensor, users: Users, candidates: int) -> int:
    """One file of ranker rows; the number of rows that were taken."""
    first, rows = Retrieval(retriever, items), candidate_rows(users, items)
    item = rows.item_id
    schema = Schema(
        (
            *rows.schema,
            Column(name=GROUP, dtype="int32", nullable=False),
            Column(name=item.name, dtype=item.dtype, nullable=False),
            Column(name=TAKEN, dtype="float32", nullable=False, tags=frozenset({Tag.TARGET, Tag.BINARY})),
            Column(name=WEIGHT, dtype="float32", nullable=False, tags=frozenset({Tag.WEIGHT})),
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
        for batch, targets in _batches(first, rows, groups, users, candidates):
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
        place_K = torch.arange(1, codes_RK.shape[1] + 1, dtype=torch.float32)
        group = groups[start : start + USER_ROWS].repeat_interleave(codes_RK.shape[1])
        targets = {
            GROUP: group[there].int(),
            rows.item_id.name: codes_RK.flatten()[there],
            TAKEN: is_relevant(codes_RK, some.relevant).flatten()[there].float(),
            WEIGHT: place_K.reciprocal().repeat(len(some))[there],
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
