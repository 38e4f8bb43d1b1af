"""The store in one SQLite file: nothing to install, nothing to start."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from falconet.errors import ArtifactError
from falconet.serve.events import Id
from falconet.serve.store import FORMAT
from falconet.serve.stores.sql import Connection, SqlStore

# Ids have no declared type, so that SQLite keeps 7 and "7" apart.
_PERSON = "kind TEXT CHECK (kind IN ('user', 'session')), who"
_FIRST = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('format', 1);
CREATE TABLE events (
    number INTEGER PRIMARY KEY AUTOINCREMENT, event_id TEXT NOT NULL UNIQUE, {_PERSON} NOT NULL,
    item_id NOT NULL, type TEXT NOT NULL, value REAL, time INTEGER NOT NULL
);
CREATE INDEX events_of ON events (kind, who, time, number, item_id, type);
"""
_SECOND = f"""
INSERT INTO meta VALUES ('changes', 0);
ALTER TABLE events ADD COLUMN recommendation_id TEXT;
CREATE TABLE items (
    item_id PRIMARY KEY, number INTEGER NOT NULL UNIQUE, features TEXT, hidden INTEGER NOT NULL, expires INTEGER
) WITHOUT ROWID;
CREATE TABLE users (user_id PRIMARY KEY, profile TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE pages (
    recommendation_id TEXT PRIMARY KEY, {_PERSON}, request TEXT NOT NULL, shown TEXT NOT NULL, time INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX pages_of ON pages (kind, who);
CREATE TABLE impressions (
    number INTEGER PRIMARY KEY AUTOINCREMENT, recommendation_id TEXT NOT NULL UNIQUE, {_PERSON}, time INTEGER NOT NULL,
    bundle TEXT NOT NULL, items TEXT NOT NULL, scenario TEXT, variant TEXT
);
CREATE INDEX impressions_of ON impressions (kind, who);
"""
_STEPS = (_FIRST, _SECOND)
"""What makes format 1 of nothing, format 2 of format 1, and so on."""


class SqliteStore(SqlStore):
    """A `Store` in one SQLite file that any number of threads and processes may use at once.

    An accepted event survives the death of the process. With `durable=True` it also survives the death of the
    machine, and writing waits for the disk. Raises ArtifactError for a file that is not such a store.
    """

    text_id = "typeof({}) = 'text'"

    def __init__(self, path: str | Path, *, durable: bool = False, timeout: float = 10.0) -> None:
        self.path = Path(path)
        self._durable, self._timeout = durable, timeout
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        if not self.path.parent.is_dir():
            raise ArtifactError(
                f"no folder `{self.path.parent}` for the events", hint="make it, or choose another --db"
            )
        try:
            self._move_up()
        except sqlite3.DatabaseError as error:
            raise ArtifactError(
                f"`{self.path}` cannot be used as a store of events: {error}",
                hint="choose another file; this one is left as it is",
            ) from error

    def __str__(self) -> str:
        return str(self.path)

    def _move_up(self) -> None:
        """Make the tables, or bring those of an older format to this one, in one transaction."""
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            found = 0
            if "meta" in tables:
                (found,) = connection.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
            elif tables:
                raise sqlite3.DatabaseError("it holds other tables")
            if found > FORMAT:
                raise ArtifactError(f"`{self.path}` has store format {found}, this version reads up to {FORMAT}")
            for step in _STEPS[found:]:
                for statement in step.split(";"):
                    connection.execute(statement)
            connection.execute("UPDATE meta SET value = ? WHERE key = 'format'", (FORMAT,))
            connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode = WAL")  # the file remembers it

    def close(self) -> None:
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._connection() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

    @property
    def outages(self) -> tuple[type[Exception], ...]:
        return (sqlite3.OperationalError,)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection for one call, given back afterwards: as many are open as calls ever ran at once.

        Readers never wait for writers, writers wait for each other. A connection whose call failed is closed, which
        undoes what it had not committed.
        """
        with self._lock:
            found = self._idle.pop() if self._idle else None
        if found is None:
            found = self._open()
        try:
            yield found
        except BaseException:
            found.close()
            raise
        with self._lock:
            self._idle.append(found)

    def _open(self) -> sqlite3.Connection:
        opened = sqlite3.connect(self.path, timeout=self._timeout, isolation_level=None, check_same_thread=False)
        try:
            opened.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
        except BaseException:
            opened.close()
            raise
        return opened

    def _kept(self, value: Id) -> Id:
        return value

    def _id(self, kept: Id) -> Id:
        return kept
