"""What happened while falconet served, for the next training: events as Parquet that `falconet prepare` reads, and what
was said of items and users.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from falconet.errors import DataError
from falconet.io.artifact import write_artifact
from falconet.progress import progress
from falconet.serve.events import HIDE, Id
from falconet.serve.store import Store

KIND = "events"
FORMAT = 1  # of the files
_ROWS = 1_000_000  # of one file, about

Said = Sequence[tuple[Id, dict[str, Any]]]
"""Ids, each with values by column."""


def export_events(
    store: Store,
    out: str | Path,
    *,
    since: int = 0,
    types: Collection[str] | None = None,
    sessions: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write the events after number `since` to the folder `out`, in order of arrival, in bounded memory.

    Beside them is all that is said of items and users by now (`said_in`).

    `types`: only these; None: all but `hide`, which is no interaction. Visitors known only by a session are left out
    unless `sessions`: training knows people by `user_id`. The manifest's `last` is the `since` of the next call. Raises
    ArtifactError where `out` exists, DataError where there is nothing to write.
    """
    out = Path(out).absolute()
    with (
        write_artifact(out, KIND, overwrite=overwrite) as draft,
        progress("exporting", unit="events") as task,
    ):
        last, kept, writer = since, 0, _Writer(draft.path)
        try:
            for batch in store.export(since):
                if not batch.num_rows:
                    continue
                last = batch.column("number")[-1].as_py()
                chosen = _chosen(batch, types, sessions)
                writer.write(chosen)
                kept += chosen.num_rows
                task.advance(batch.num_rows)
        finally:
            writer.close()
        if not kept:
            raise DataError(
                f"no events after number {since} to export",
                hint=None if sessions else "those of visitors without a `user_id` are left out: --sessions",
            )
        write_said(draft.path, *said_in(store))
        draft.extra |= {"events_format": FORMAT, "since": since, "last": last, "rows": kept}
    return out


def said_in(store: Store) -> tuple[Said, Said]:
    """What is said of items, and of users."""
    items = [(c.item_id, dict(c.features)) for c in store.items_changed_since(0) if c.features]
    return items, list(store.profiles())


def write_said(folder: Path, items: Said, users: Said) -> None:
    """Write items.json and users.json."""
    for name, said in (("items", items), ("users", users)):
        (folder / f"{name}.json").write_text(json.dumps(said), encoding="utf-8")


def read_said(folder: Path) -> tuple[Said, Said]:
    """What `write_said` wrote; nothing where there are no such files."""
    files = (folder / f"{name}.json" for name in ("items", "users"))
    items, users = (json.loads(file.read_bytes()) if file.is_file() else [] for file in files)
    return [(one, values) for one, values in items], [(one, values) for one, values in users]


def _chosen(batch: pa.RecordBatch, types: Collection[str] | None, sessions: bool) -> pa.RecordBatch:
    """The rows that are wanted."""
    kind = batch.column("type")
    wanted = pc.not_equal(kind, HIDE) if types is None else pc.is_in(kind, pa.array(sorted(types), pa.string()))
    if not sessions:
        wanted = pc.and_(wanted, pc.is_valid(batch.column("user_id")))
    return batch.filter(wanted)


class _Writer:
    """Files of about as many rows each."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number, self._rows = folder, 0, 0
        self._file: pq.ParquetWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if self._file is None:
            path = self._folder / f"part-{self._number:05d}.parquet"
            self._file = pq.ParquetWriter(path, batch.schema, compression="zstd")
            self._number += 1
        self._file.write_batch(batch)
        self._rows += batch.num_rows
        if self._rows >= _ROWS:
            self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._rows = None, 0
