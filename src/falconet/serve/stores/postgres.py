"""The store in PostgreSQL, for servers on several machines. The only file that imports psycopg."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from falconet.errors import ArtifactError, ConfigError
from falconet.serve.events import Id
from falconet.serve.store import FORMAT
from falconet.serve.stores.sql import Cursor, SqlStore

if TYPE_CHECKING:
    import psycopg

_PERSON = "kind TEXT CHECK (kind IN ('user', 'session')), who TEXT"
_SECOND = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value BIGINT NOT NULL);
INSERT INTO meta VALUES ('format', 2), ('changes', 0);
CREATE TABLE events (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event_id TEXT NOT NULL UNIQUE, {_PERSON} NOT NULL,
    item_id TEXT NOT NULL, type TEXT NOT NULL, value DOUBLE PRECISION, time BIGINT NOT NULL, recommendation_id TEXT
);
CREATE INDEX events_of ON events (kind, who, time, number);
CREATE TABLE items (
    item_id TEXT PRIMARY KEY, number BIGINT NOT NULL UNIQUE, features TEXT, hidden INTEGER NOT NULL, expires BIGINT
);
CREATE TABLE users (user_id TEXT PRIMARY KEY, profile TEXT NOT NULL);
CREATE TABLE pages (
    recommendation_id TEXT PRIMARY KEY, {_PERSON}, request TEXT NOT NULL, shown TEXT NOT NULL, time BIGINT NOT NULL
);
CREATE INDEX pages_of ON pages (kind, who);
CREATE TABLE impressions (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, recommendation_id TEXT NOT NULL UNIQUE, {_PERSON},
    time BIGINT NOT NULL, bundle TEXT NOT NULL, items TEXT NOT NULL, scenario TEXT, variant TEXT
);
CREATE INDEX impressions_of ON impressions (kind, who);
"""
_STEPS = {0: _SECOND}
"""What brings tables of a format to the next one; the first was 2. 0: there are none."""
_SCHEMA = "falconet"
_LOCK = 0x66616C63  # of PostgreSQL's advisory locks, taken by who writes: so numbers are in the order of commits


class PostgresStore(SqlStore):
    """A `Store` in a PostgreSQL database, in a schema of its own, `falconet`.

    Ids are kept as JSON, which tells 7 from "7" and has room for every character. Raises ConfigError where psycopg is
    missing, ArtifactError where the database cannot be used.
    """

    text_id = "left({}, 1) = '\"'"

    def __init__(self, url: str, *, timeout: float = 10.0) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise ConfigError("a store in PostgreSQL needs psycopg", hint='pip install "falconet[postgres]"') from error
        self._psycopg, self._url, self._timeout = psycopg, url, timeout
        self._idle: list[psycopg.Connection[Any]] = []
        self._lock = threading.Lock()
        try:
            self._move_up()
        except psycopg.Error as error:
            raise ArtifactError(f"`{_shown(url)}` cannot be used as a store: {error}") from error

    def __str__(self) -> str:
        return _shown(self._url)

    @property
    def outages(self) -> tuple[type[Exception], ...]:
        return (self._psycopg.OperationalError,)

    def _move_up(self) -> None:
        with self._writing() as connection:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA}")
            found = 0
            if connection.execute(f"SELECT to_regclass('{_SCHEMA}.meta')").fetchone() != (None,):
                row = connection.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
                found = int(row[0]) if row else 0
            if found > FORMAT:
                raise ArtifactError(f"`{_shown(self._url)}` has store format {found}, this version reads {FORMAT}")
            for start in sorted(_STEPS):
                if start >= found and found != FORMAT:
                    connection.execute(_STEPS[start])

    def close(self) -> None:
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    @contextmanager
    def _reading(self) -> Iterator[_Statements]:
        with self._connection() as connection:
            yield _Statements(connection)

    @contextmanager
    def _writing(self) -> Iterator[_Statements]:
        with self._connection() as connection, connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
            yield _Statements(connection)

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection for one call, given back afterwards; one that lay idle may have been cut off, and is tried."""
        found = None
        while found is None:
            with self._lock:
                idle = self._idle.pop() if self._idle else None
            found = self._open() if idle is None else self._alive(idle)
        try:
            yield found
        except BaseException:
            found.close()
            raise
        with self._lock:
            self._idle.append(found)

    def _alive(self, connection: psycopg.Connection[Any]) -> psycopg.Connection[Any] | None:
        try:
            connection.execute("SELECT 1")
        except self._psycopg.OperationalError:
            connection.close()
            return None
        return connection

    def _open(self) -> psycopg.Connection[Any]:
        return self._psycopg.connect(
            self._url,
            autocommit=True,
            connect_timeout=max(int(self._timeout), 1),
            options=f"-c search_path={_SCHEMA} -c lock_timeout={int(self._timeout * 1000)}",
        )

    def _kept(self, value: Id) -> str:
        return json.dumps(value)

    def _id(self, kept: str) -> Id:
        value: Id = json.loads(kept)
        return value


class _Statements:
    """A connection that takes `?` for values, as SQLite does."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Cursor:
        if not values:
            return self._connection.execute(statement)
        return self._connection.execute(statement.replace("?", "%s"), values)


def _shown(url: str) -> str:
    """The address without its password."""
    scheme, _, rest = url.partition("://")
    account, at, place = rest.rpartition("@")
    return f"{scheme}://{account.partition(':')[0]}{at}{place}"
