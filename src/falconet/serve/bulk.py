"""Recommendations for all users of a file: in parts, so that memory is bounded and a killed run carries on."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from falconet.errors import ArtifactError, DataError
from falconet.io.artifact import is_complete, write_artifact, write_file
from falconet.io.lock import take
from falconet.progress import note, progress
from falconet.serve.events import Id
from falconet.serve.request import Request
from falconet.serve.users_file import UsersFile

KIND = "recommendations"
FORMAT = 1  # of the files
_USERS, _ROWS = 2_000, 1_000_000  # of one part, at most
_CANDIDATES = 32_768  # of the users who are answered at once: the more, the more memory that takes


@dataclass(frozen=True)
class Listed:
    """The answer to one user: of each place the item, its score, the retriever's, and its place there."""

    items: list[tuple[Id, float, float, int]]
    source: str
    cold_start: bool


class Asker(Protocol):
    """Who answers: first each user is looked up, then several are answered at once."""

    candidates: int

    def look_up(self, user: Id) -> Any:
        """What is known of a user. Raises DataError for one who cannot be asked for."""

    def answer(self, known: Sequence[Any]) -> list[Listed]:
        """The answers to users who were looked up."""


@dataclass(frozen=True)
class Bulk:
    """One run: who is asked for, what, of which bundle (the hash of its manifest), and where it is written."""

    users: UsersFile
    request: Request
    bundle: str
    item_type: pa.DataType
    out: Path
    overwrite: bool = False

    @property
    def key(self) -> str:
        """What decides the answers, hashed: parts of another key are of no use here."""
        said = [FORMAT, self.bundle, self.users.column, self.users.sha256, self.request.to_plain()]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    @property
    def work(self) -> Path:
        """Where the parts lie until all are there."""
        return self.out.parent / f".bulk-{self.out.name}"

    @property
    def schema(self) -> pa.Schema:
        """One row per place of an answer, users in the order of their file."""
        return pa.schema(
            [
                ("user_id", self.users.type),
                ("rank", pa.int32()),
                ("item_id", self.item_type),
                ("score", pa.float64()),
                ("retriever_score", pa.float64()),
                ("retriever_rank", pa.int32()),
                ("source", pa.string()),
                ("cold_start", pa.bool_()),
            ]
        )

    def run(self, asker: Asker) -> Path:
        """Have every user answered who is not yet; the folder with all answers, whole or not there.

        Raises ArtifactError where the folder exists (unless it is this very run's, or `overwrite`), or another process
        writes it; DataError, naming the row, for a user who cannot be asked for.
        """
        key = self.key
        if self.out.exists() and not self.overwrite:
            if is_complete(self.out, KIND, key=key):
                note(f"`{self.out}` has these recommendations already")
                if self.work.exists():  # one was killed between the last two steps
                    with self._locked() as mine:
                        if mine:
                            self._clear()
                return self.out
            raise ArtifactError(f"`{self.out}` exists already", hint="choose another folder, or --overwrite")
        with self._begun(key) as parts:
            try:
                total = self._parts(parts, asker)
            except DataError:  # what is wrong with the file will be wrong again: there is nothing to carry on with
                self._clear()
                raise
            with write_artifact(self.out, KIND, overwrite=self.overwrite) as draft:
                for part in sorted(parts.glob("part-*.parquet")):
                    _link(part, draft.path / part.name)
                draft.parents["bundle"] = self.bundle
                draft.extra |= {"key": key, "users": total, "request": self.request.to_plain()}
            self._clear()
        return self.out

    @contextmanager
    def _begun(self, key: str) -> Iterator[Path]:
        """The folder of this run's parts, which no other process may write to meanwhile."""
        parts = self.work / key
        with self._locked() as mine:
            if not mine:
                raise ArtifactError(f"another process is writing `{self.out}`", hint="wait for it, or end it")
            for other in self.work.iterdir():
                if other.is_dir() and other != parts:
                    note(f"`{self.out}` was begun for other users, another bundle or other settings: it begins anew")
                    shutil.rmtree(other)
            parts.mkdir(exist_ok=True)
            yield parts

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Whether the folder of parts is this process's alone, until the end of the block; it is there."""
        while True:
            self.work.mkdir(parents=True, exist_ok=True)
            try:
                lock = self._lock.open("a")
            except FileNotFoundError:  # another process was just done, and has removed it
                continue
            with lock:
                mine = take(lock.fileno(), without_locks=True)
                if mine and not self._is_there(lock.fileno()):
                    continue
                yield mine
            break
        if os.name == "nt" and mine and not any(self.work.glob("*/")):
            with suppress(OSError):  # `_clear` could not remove an open file; nor can this, of another process
                self._lock.unlink(missing_ok=True)
                self.work.rmdir()

    def _is_there(self, handle: int) -> bool:
        """Whether the open file is still the one that others find."""
        try:
            return os.path.samestat(os.fstat(handle), self._lock.stat())
        except FileNotFoundError:
            return False

    @property
    def _lock(self) -> Path:
        return self.work / "lock"

    def _clear(self) -> None:
        """Remove the folder while it is locked: whoever comes next makes another."""
        with suppress(OSError):  # Windows removes no open file
            shutil.rmtree(self.work)

    def _parts(self, parts: Path, asker: Asker) -> int:
        """Write the parts that are missing; the number of users."""
        done, size = 0, max(1, min(_USERS, _ROWS // self.request.k))
        with progress("recommending", total=self.users.rows, unit="users") as task:
            for number, users in zip(count(), self.users.groups(size), strict=False):
                file = parts / f"part-{number:06d}.parquet"
                if file.exists():
                    task.advance(len(users))
                else:
                    self._write(file, users, done, asker, task.advance)
                done += len(users)
        if not done:
            raise DataError(f"{self.users.where} has no rows")
        return done

    def _write(
        self,
        file: Path,
        users: Sequence[Id | None],
        before: int,
        asker: Asker,
        advance: Callable[[int], None],
    ) -> None:
        """Ask for the users and write their answers aside, then under their name."""
        rows: list[tuple[object, ...]] = []
        at_once = max(1, _CANDIDATES // max(asker.candidates, self.request.k))
        for i in range(0, len(users), at_once):
            some = users[i : i + at_once]
            known = [self._look_up(asker, user, row) for row, user in enumerate(some, start=before + i + 1)]
            for user, listed in zip(some, asker.answer(known), strict=True):
                rows += [
                    (user, rank, *item, listed.source, listed.cold_start) for rank, item in enumerate(listed.items, 1)
                ]
            advance(len(some))
        columns = zip(*rows, strict=True) if rows else ((),) * len(self.schema)
        arrays = [pa.array(column, type=f.type) for f, column in zip(self.schema, columns, strict=True)]
        sink = io.BytesIO()
        pq.write_table(pa.table(arrays, schema=self.schema), sink, compression="zstd")
        write_file(file, sink.getvalue())

    def _look_up(self, asker: Asker, user: Id | None, row: int) -> Any:
        if user is None or user == "":
            raise DataError(f"{self.users.where}, row {row}: `{self.users.column}` is empty")
        try:
            return asker.look_up(user)
        except DataError as error:
            raise DataError(f"{self.users.where}, row {row}: {error.args[0]}", hint=error.hint) from error


def _link(file: Path, to: Path) -> None:
    """The file under a second name, copied where the file system has no links."""
    try:
        os.link(file, to)
    except OSError:
        shutil.copy2(file, to)
