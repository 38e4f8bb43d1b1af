"""The ranker's rows on disk: what the retrievers really return, and whether it was taken.

For training, a scout sees one part of a user's items as history, and the items of the other part are what is taken
(cut.py). For the test the history is whole, and what is taken are the test items. A row weighs 1 / its place: what
matters is the order at the top of the list, and a ranker without weights spends itself on the long rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from falconet.batch import Batch, Feature, Ragged
from falconet.errors import DataError
from falconet.evaluation.cut import CandidateConfig, cut_users
from falconet.evaluation.recommend import sources_of
from falconet.evaluation.tables import Items, Users
from falconet.io.artifact import write_artifact
from falconet.models.base import Retriever
from falconet.progress import progress
from falconet.retrieval.candidates import RETRIEVER, CandidateRows
from falconet.retrieval.sources import Sources
from falconet.schema import FOOTER_KEY, Column, Schema, Tag

KIND = "candidates"
GROUP = "group"
TAKEN = "taken"
WEIGHT = "weight"
USER_ROWS = 256  # users whose candidates are made at once, and one row group of the file


def build_candidates(
    retriever: Retriever | Sources,
    items: Items,
    users: Users,
    out: str | Path,
    config: CandidateConfig,
    *,
    scout: Retriever | Sources | None = None,
    strangers: Users | None = None,
    ids: bool = False,
    history: bool = False,
    rows: str | Path | None = None,
    parents: Mapping[str, str] | None = None,
    step: str = "",
) -> None:
    """Write `out/train` from the scout and `out/test` from the retriever under one manifest.

    Both may be several in one (`Sources`). The scout was trained on what `write_scout_rows` left with the same
    `config`; without one the retriever stands in, and the ranker will trust it too much. `group` is the row of the user
    in the table of users; `strangers`, if whole users are held out, are the ones in the test, and their rows count on
    from there. `ids` and `history`: the rows have those of user and item too, and the history. `rows`: the folder of
    training rows, needed where models read context. Raises DataError where there is nothing to learn: no held-out item
    is among the candidates.
    """
    extra = {"step": step, "candidates": config.candidates}
    with write_artifact(out, KIND, parents=parents, extra=extra, overwrite=True) as draft:
        chosen, known = cut_users(users, items.schema, config, rows)
        if not len(chosen):
            raise DataError(
                f"no training user (of {len(users):,}) has two items of which one could be held out",
                hint="a ranker learns from people with several items: a split that leaves them more for training",
            )
        then = items if scout is None else items.with_counts(_counts(scout))
        maker = _Maker(config.candidates, ids, history)
        taken = maker.write(draft.path / "train", scout or retriever, then, chosen, known)
        if not taken:
            raise DataError(
                f"no training user (of {len(chosen):,}) took any of the {config.candidates} candidates",
                hint="more `candidates`, or a retriever that was trained longer",
            )
        asked, first = (users, 0) if strangers is None else (strangers, len(users))
        whole = torch.nonzero(asked.relevant.lengths + asked.unknown).flatten()
        maker.write(draft.path / "test", retriever, items, first + whole, asked.take(whole))


def candidate_rows(
    users: Users, items: Items, sources: Sequence[str] = (RETRIEVER,), *, ids: bool = False, history: bool = False
) -> CandidateRows:
    """The maker of the ranker's rows for these tables."""
    return CandidateRows(
        Schema((*users.schema, *items.schema)), items.features, sources=sources, ids=ids, history=history
    )


def _counts(scout: Retriever | Sources) -> Tensor:
    """How often every item occurs in what the scouts were trained on."""
    model = scout.first.retriever if isinstance(scout, Sources) else scout
    assert isinstance(model, Retriever)
    return model.counts


@dataclass(frozen=True)
class _Maker:
    """Writes files of ranker rows."""

    candidates: int
    ids: bool
    history: bool

    def write(self, folder: Path, retriever: Retriever | Sources, items: Items, groups: Tensor, users: Users) -> int:
        """One file; the number of rows that were taken."""
        first = retriever if isinstance(retriever, Sources) else sources_of({RETRIEVER: retriever}, items)
        rows = candidate_rows(users, items, first.names, ids=self.ids, history=self.history)
        schema = _schema(rows)
        arrow = pa.schema([pa.field(c.name, _arrow_type(c), nullable=False) for c in schema])
        arrow = arrow.with_metadata({FOOTER_KEY: schema.to_json().encode()})
        folder.mkdir()
        taken = 0
        with (
            pq.ParquetWriter(folder / "part-00000.parquet", arrow, compression="lz4") as writer,
            progress(f"candidates for {folder.name}", len(users), "users") as task,
        ):
            for batch, targets in self._batches(first, rows, groups, users):
                features = {**batch.features, **targets}
                writer.write_table(pa.table([_arrow(features[c.name], c) for c in schema], schema=arrow))
                taken += int(targets[TAKEN].sum())
                task.advance(min(USER_ROWS, len(users) - task.done))
        return taken

    @torch.inference_mode()
    def _batches(
        self, first: Sources, rows: CandidateRows, groups: Tensor, users: Users
    ) -> Iterator[tuple[Batch, dict[str, Tensor]]]:
        """The rows of some users at a time, those that stand for nothing left out."""
        for start in range(0, len(users), USER_ROWS):
            some = users[start : start + USER_ROWS]
            found = first.search(some.features, self.candidates, some.seen)
            batch = rows.rows(some.features, found)
            there = torch.nonzero(found.codes.flatten() >= 0).flatten()
            features = {n: x.take(there) if isinstance(x, Ragged) else x[there] for n, x in batch.features.items()}
            place_K = torch.arange(1, found.codes.shape[1] + 1, dtype=torch.float32)
            group = groups[start : start + USER_ROWS].repeat_interleave(found.codes.shape[1])
            targets = {
                GROUP: group[there].int(),
                rows.item_id.name: found.codes.flatten()[there],
                TAKEN: is_relevant(found.codes, some.relevant).flatten()[there].float(),
                WEIGHT: place_K.reciprocal().repeat(len(some))[there],
            }
            yield Batch(features, {}, len(there), len(there)), targets


def _schema(rows: CandidateRows) -> Schema:
    """The rows' columns, and what is known of each row beside them."""
    item = rows.item_id
    plain = [] if item.name in rows.schema else [Column(name=item.name, dtype=item.dtype, nullable=False)]
    return Schema(
        (
            *rows.schema,
            Column(name=GROUP, dtype="int32", nullable=False),
            *plain,
            Column(name=TAKEN, dtype="float32", nullable=False, tags=frozenset({Tag.TARGET, Tag.BINARY})),
            Column(name=WEIGHT, dtype="float32", nullable=False, tags=frozenset({Tag.WEIGHT})),
        )
    )


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
