"""What people did: events, the store they go to, and the store in one SQLite file."""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import pyarrow as pa

from falconet.errors import ArtifactError, ConfigError, DataError

FORMAT = 1  # of the tables; a store of another format is refused
HIDE = "hide"  # the one type that says no: never history, and the item is gone for that person

Id = int | str
Outcome = str
"""`accepted`, `duplicate`, or the reason why an event was refused."""

ACCEPTED: Outcome = "accepted"
DUPLICATE: Outcome = "duplicate"
CLASH: Outcome = "this event_id was used before, for another event"
FUTURE: Outcome = "the time lies more than a day in the future; it is in microseconds since 1970"

_INT64 = 2**63
_LONGEST = 256  # characters of an id or a type
_DAY = 86_400_000_000


@dataclass(frozen=True)
class Who:
    """A person: a user, or a visitor known only by a session. The two never meet, even with equal ids."""

    kind: Literal["user", "session"]
    id: Id

    @classmethod
    def of(cls, user_id: Id | None = None, session_id: Id | None = None) -> Who | None:
        """The person of a request; None where it names nobody. Raises ConfigError where it names two."""
        if user_id is not None and session_id is not None:
            raise ConfigError("`user_id` and `session_id` are both given", hint="an event or a request has one person")
        if user_id is not None:
            return cls("user", user_id)
        return None if session_id is None else cls("session", session_id)


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing a person did with one item. `time` is in microseconds since 1970, UTC; now by default.

    Raises DataError, naming the field, where a value cannot be stored.
    """

    event_id: str
    item_id: Id
    type: str
    user_id: Id | None = None
    session_id: Id | None = None
    value: float | None = None
    time: int | None = None

    def __post_init__(self) -> None:
        if (self.user_id is None) == (self.session_id is None):
            raise DataError("an event needs a `user_id` or a `session_id`, not both and not none")
        for name in ("event_id", "type"):
            text = getattr(self, name)
            if not isinstance(text, str):
                raise DataError(f"event `{name}` must be a string, not {text!r}")
            check_id(text, name)
        for name in ("item_id", "user_id", "session_id"):
            if getattr(self, name) is not None:
                check_id(getattr(self, name), name)
        if self.value is not None and not math.isfinite(self.value):
            raise DataError(f"event `value` must be a number or nothing, not {self.value!r}")
        if self.time is None:
            object.__setattr__(self, "time", time.time_ns() // 1000)
        elif not isinstance(self.time, int) or not 0 <= self.time < _INT64:
            raise DataError(f"event `time` must be microseconds since 1970, not {self.time!r}")

    @property
    def who(self) -> Who:
        who = Who.of(self.user_id, self.session_id)
        assert who is not None
        return who


def check_id(value: object, name: str) -> None:
    """Raise DataError unless `value` is an id: a whole number of 64 bits, or a short string that can be stored."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise DataError(f"`{name}` must be a whole number or a string, not {value!r}")
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        raise DataError(f"`{name}` is {value}, which does not fit in 64 bits", hint="send it as a string")
    if isinstance(value, str) and not 0 < len(value) <= _LONGEST:
        raise DataError(f"`{name}` must have 1 to {_LONGEST} characters, not {len(value)}")
    if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
        raise DataError(f"`{name}` is {value!r}, which is no Unicode text")


class Store(Protocol):
    """Where events live. What `add_events` accepted, every later call in every process sees."""

    def add_events(self, events: Sequence[Event]) -> list[Outcome]:
        """Store the events in one transaction; an outcome for each, in order. Repeating a call changes nothing."""
        ...

    def history(self, who: Who, limit: int) -> list[tuple[Id, str]]:
        """(item id, type) of the last `limit` items of that person, oldest first; `hide` is not a meeting.

        An item with several events stands once, where its last one is; ties in time keep the order of arrival.
        """
        ...

    def seen(self, who: Who, types: Collection[str] | None = None) -> list[Id]:
        """Every item that person has an event of one of `types` (None: any type) with, each once."""
        ...

    def export(self, since: int = 0, rows: int = 100_000) -> Iterator[pa.RecordBatch]:
        """All events after number `since`, in order of arrival, as Arrow batches with the columns of an Event."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


# Ids have no declared type, so that SQLite keeps 7 and "7" apart.
_TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT OR IGNORE INTO meta VALUES ('format', 1);
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL CHECK (kind IN ('user', 'session')),
    who NOT NULL,
    item_id NOT NULL,
    type TEXT NOT NULL,
    value REAL,
    time INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS events_of ON events (kind, who, time, number, item_id, type);
"""

_COLUMNS = ("number", "event_id", "user_id", "session_id", "item_id", "type", "value", "time")


class SqliteStore:
    """A `Store` in one SQLite file that any number of threads and processes may use at once.

    An accepted event survives the death of the process. With `durable=True` it also survives the death of the
    machine, and writing waits for the disk. Raises ArtifactError for a file that is not such a store.
    """

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
            with self._connection() as connection:
                connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT;")
                (found,) = connection.execute("SELECT value FROM meta WHERE key = 'format'").fetchone()
        except sqlite3.DatabaseError as error:
            raise ArtifactError(
                f"`{self.path}` cannot be used as a store of events: {error}",
                hint="choose another file; this one is left as it is",
            ) from error
        if found != FORMAT:
            self.close()
            raise ArtifactError(f"`{self.path}` has event format {found}, this version reads {FORMAT}")

    def add_events(self, events: Sequence[Event]) -> list[Outcome]:
        latest = time.time_ns() // 1000 + _DAY
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            outcomes = [_add(connection, event, latest) for event in events]
            connection.execute("COMMIT")
        return outcomes

    def history(self, who: Who, limit: int) -> list[tuple[Id, str]]:
        latest: dict[Id, str] = {}
        with self._connection() as connection:
            rows = connection.execute(
                "SELECT item_id, type FROM events WHERE kind = ? AND who = ? AND type != ?"
                " ORDER BY time DESC, number DESC",
                (who.kind, who.id, HIDE),
            )
            for item, kind in rows:  # rows come one by one, so a long past is not read
                if len(latest) == limit:
                    break
                latest.setdefault(item, kind)
            rows.close()
        return list(latest.items())[::-1]

    def seen(self, who: Who, types: Collection[str] | None = None) -> list[Id]:
        query, values = "SELECT DISTINCT item_id FROM events WHERE kind = ? AND who = ?", [who.kind, who.id]
        if types is not None:
            query += f" AND type IN ({', '.join('?' * len(types))})"
            values += list(types)
        with self._connection() as connection:
            return [item for (item,) in connection.execute(query, values)]

    def export(self, since: int = 0, rows: int = 100_000) -> Iterator[pa.RecordBatch]:
        with self._connection() as connection:
            schema = self._arrow_schema(connection)
            cursor = connection.execute(
                "SELECT number, event_id, CASE kind WHEN 'user' THEN who END, CASE kind WHEN 'session' THEN who END,"
                " item_id, type, value, time FROM events WHERE number > ? ORDER BY number",
                (since,),
            )
            while found := cursor.fetchmany(rows):
                arrays = []
                for field, column in zip(schema, zip(*found, strict=True), strict=True):
                    text = field.type == pa.string()
                    values = [None if x is None else str(x) for x in column] if text else list(column)
                    arrays.append(pa.array(values, type=field.type))
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def close(self) -> None:
        with self._lock:
            while self._idle:
                self._idle.pop().close()

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
            opened.execute("PRAGMA journal_mode = WAL")
            opened.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
        except BaseException:
            opened.close()
            raise
        return opened

    def _arrow_schema(self, connection: sqlite3.Connection) -> pa.Schema:
        """Ids are int64 where all of them are numbers, else strings."""
        kinds = connection.execute(
            "SELECT max(kind = 'user' AND typeof(who) = 'text'), max(kind = 'session' AND typeof(who) = 'text'),"
            " max(typeof(item_id) = 'text') FROM events"
        ).fetchone()
        ids = [pa.string() if text else pa.int64() for text in kinds]
        types = (pa.int64(), pa.string(), *ids, pa.string(), pa.float64(), pa.int64())
        return pa.schema(list(zip(_COLUMNS, types, strict=True)))


def _add(connection: sqlite3.Connection, event: Event, latest: int) -> Outcome:
    assert event.time is not None
    if event.time > latest:
        return FUTURE
    who = event.who
    row = (event.event_id, who.kind, who.id, event.item_id, event.type, event.value, event.time)
    done = connection.execute(
        "INSERT INTO events (event_id, kind, who, item_id, type, value, time) VALUES (?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (event_id) DO NOTHING",
        row,
    )
    if done.rowcount:
        return ACCEPTED
    # The time is left out: a client that lets us set it sends the same event again at a later time.
    same = connection.execute(
        "SELECT 1 FROM events WHERE event_id = ? AND kind = ? AND who = ? AND item_id = ? AND type = ?", row[:5]
    ).fetchone()
    return DUPLICATE if same else CLASH
