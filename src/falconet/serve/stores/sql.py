"""What the stores in SQL databases have in common: every statement but those that make the tables.

Statements are SQLite's and PostgreSQL's alike, with `?` for values. A store says how ids are kept (7 and "7" are two
ids) and how a connection is got.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pyarrow as pa

from falconet.serve.events import ACCEPTED, CLASH, DUPLICATE, FUTURE, Event, Id, Outcome, Who, latest_time
from falconet.serve.store import Impression, ItemChange, Page, export_batch, export_schema

Row = tuple[Any, ...]


class Cursor(Protocol):
    """What a statement gives back."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Row | None: ...

    def fetchall(self) -> list[Row]: ...


class Connection(Protocol):
    """What statements are sent to."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Cursor: ...


class SqlStore(ABC):
    """A `Store` in a SQL database."""

    text_id: str  # whether an id, named by `{}`, is a text, as SQL

    @abstractmethod
    def _reading(self) -> AbstractContextManager[Connection]:
        """A connection for one call that only reads, or writes with one statement, which holds by itself."""

    @abstractmethod
    def _writing(self) -> AbstractContextManager[Connection]:
        """A connection within a transaction that no other writes beside; it holds as a whole or not at all."""

    @abstractmethod
    def _kept(self, value: Id) -> Any:
        """An id, or another short text of a caller's, as it is kept."""

    @abstractmethod
    def _id(self, kept: Any) -> Id:
        """What is kept so."""

    def add_events(self, events: Sequence[Event]) -> list[Outcome]:
        latest = latest_time()
        with self._writing() as connection:
            return [self._add(connection, event, latest) for event in events]

    def _add(self, connection: Connection, event: Event, latest: int) -> Outcome:
        assert event.time is not None
        if event.time > latest:
            return FUTURE
        same = (
            self._kept(event.event_id), *self._person(event.who), self._kept(event.item_id), self._kept(event.type)
        )  # fmt: skip
        done = connection.execute(
            "INSERT INTO events (event_id, kind, who, item_id, type, value, time, recommendation_id)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (event_id) DO NOTHING",
            (*same, event.value, event.time, self._maybe(event.recommendation_id)),
        )
        if done.rowcount:
            return ACCEPTED
        # The time is left out: a client that lets us set it sends the same event again at a later time.
        known = connection.execute(
            "SELECT 1 FROM events WHERE event_id = ? AND kind = ? AND who = ? AND item_id = ? AND type = ?", same
        ).fetchone()
        return DUPLICATE if known else CLASH

    def latest(self, who: Who, rows: int) -> list[tuple[Id, str]]:
        with self._reading() as connection:
            found = connection.execute(
                "SELECT item_id, type FROM events WHERE kind = ? AND who = ? ORDER BY time DESC, number DESC LIMIT ?",
                (*self._person(who), rows),
            ).fetchall()
        return [(self._id(item), str(self._id(kind))) for item, kind in found]

    def seen(self, who: Who, types: Collection[str] | None = None) -> list[Id]:
        query, values = "SELECT DISTINCT item_id FROM events WHERE kind = ? AND who = ?", [*self._person(who)]
        if types is not None:
            if not types:
                return []
            query += f" AND type IN ({', '.join('?' * len(types))})"
            values += map(self._kept, types)
        with self._reading() as connection:
            return [self._id(item) for (item,) in connection.execute(query, values).fetchall()]

    def export(self, since: int = 0, rows: int = 100_000) -> Iterator[pa.RecordBatch]:
        names = ("CASE kind WHEN 'user' THEN who END", "CASE kind WHEN 'session' THEN who END", "item_id")
        texts = ", ".join(f"max(CASE WHEN {self.text_id.format(name)} THEN 1 ELSE 0 END)" for name in names)
        with self._reading() as connection:
            last, *found = connection.execute(f"SELECT max(number), {texts} FROM events").fetchone() or (None, 0, 0, 0)
        schema = export_schema([bool(text) for text in found])
        while last is not None and since < last:
            with self._reading() as connection:
                some = connection.execute(
                    f"SELECT number, event_id, {', '.join(names)}, type, value, time, recommendation_id FROM events"
                    " WHERE number > ? AND number <= ? ORDER BY number LIMIT ?",
                    (since, last, rows),
                ).fetchall()
            if not some:
                return
            since = some[-1][0]
            yield export_batch(schema, [self._row(row) for row in some])

    def _row(self, row: Row) -> Row:
        number, event_id, user, session, item, kind, value, time, recommendation = row
        names = [None if x is None else self._id(x) for x in (event_id, user, session, item, kind, recommendation)]
        return number, *names[:5], value, time, names[5]

    def put_item(
        self,
        item_id: Id,
        *,
        features: Mapping[str, Any] | None = None,
        hidden: bool = False,
        expires: int | None = None,
    ) -> int:
        values = None if features is None else json.dumps(features)
        return self._change(
            item_id,
            "features = coalesce(excluded.features, items.features), hidden = excluded.hidden,"
            " expires = excluded.expires",
            values,
            hidden,
            expires,
        )

    def hide_item(self, item_id: Id) -> int:
        return self._change(item_id, "hidden = excluded.hidden", None, True, None)

    def _change(self, item_id: Id, update: str, features: str | None, hidden: bool, expires: int | None) -> int:
        with self._writing() as connection:
            row = connection.execute(
                "UPDATE meta SET value = value + 1 WHERE key = 'changes' RETURNING value"
            ).fetchone()
            assert row is not None
            connection.execute(
                "INSERT INTO items (item_id, number, features, hidden, expires) VALUES (?, ?, ?, ?, ?)"
                f" ON CONFLICT (item_id) DO UPDATE SET number = excluded.number, {update}",
                (self._kept(item_id), row[0], features, int(hidden), expires),
            )
        return int(row[0])

    def items_changed_since(self, number: int) -> list[ItemChange]:
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT item_id, number, features, hidden, expires FROM items WHERE number > ? ORDER BY number",
                (number,),
            ).fetchall()
        return [
            ItemChange(
                item_id=self._id(item),
                number=at,
                features=None if features is None else json.loads(features),
                hidden=bool(hidden),
                expires=expires,
            )
            for item, at, features, hidden, expires in rows
        ]

    def change_number(self) -> int:
        with self._reading() as connection:
            row = connection.execute("SELECT value FROM meta WHERE key = 'changes'").fetchone()
        return int(row[0]) if row else 0

    def put_user(self, user_id: Id, profile: Mapping[str, Any]) -> None:
        with self._writing() as connection:
            connection.execute(
                "INSERT INTO users (user_id, profile) VALUES (?, ?)"
                " ON CONFLICT (user_id) DO UPDATE SET profile = excluded.profile",
                (self._kept(user_id), json.dumps(profile)),
            )

    def get_user(self, user_id: Id) -> dict[str, Any] | None:
        with self._reading() as connection:
            row = connection.execute("SELECT profile FROM users WHERE user_id = ?", (self._kept(user_id),)).fetchone()
        return None if row is None else dict(json.loads(row[0]))

    def profiles(self) -> Iterator[tuple[Id, dict[str, Any]]]:
        with self._reading() as connection:
            rows = connection.execute("SELECT user_id, profile FROM users ORDER BY user_id").fetchall()
        for user, profile in rows:
            yield self._id(user), dict(json.loads(profile))

    def save_page(self, recommendation_id: str, page: Page, time: int) -> None:
        person = (None, None) if page.who is None else self._person(page.who)
        with self._reading() as connection:  # neither a transaction nor its order matters
            connection.execute(
                "INSERT INTO pages (recommendation_id, kind, who, request, shown, time) VALUES (?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (recommendation_id) DO NOTHING",
                (self._kept(recommendation_id), *person, json.dumps(page.request), json.dumps(page.shown), time),
            )

    def page(self, recommendation_id: str) -> Page | None:
        with self._reading() as connection:
            row = connection.execute(
                "SELECT kind, who, request, shown FROM pages WHERE recommendation_id = ?",
                (self._kept(recommendation_id),),
            ).fetchone()
        if row is None:
            return None
        return Page(who=self._who(*row[:2]), request=json.loads(row[2]), shown=tuple(json.loads(row[3])))

    def extend_page(self, recommendation_id: str, known: int, items: Sequence[Id]) -> bool:
        with self._writing() as connection:
            row = connection.execute(
                "SELECT shown FROM pages WHERE recommendation_id = ?", (self._kept(recommendation_id),)
            ).fetchone()
            shown = [] if row is None else json.loads(row[0])
            if row is None or len(shown) != known:
                return False
            connection.execute(
                "UPDATE pages SET shown = ? WHERE recommendation_id = ?",
                (json.dumps([*shown, *items]), self._kept(recommendation_id)),
            )
        return True

    def log_impressions(self, impressions: Sequence[Impression]) -> None:
        with self._writing() as connection:
            for one in impressions:
                person = (None, None) if one.who is None else self._person(one.who)
                connection.execute(
                    "INSERT INTO impressions (recommendation_id, kind, who, time, bundle, items, scenario, variant)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (recommendation_id) DO NOTHING",
                    (
                        self._kept(one.recommendation_id),
                        *person,
                        one.time,
                        one.bundle,
                        json.dumps(one.items),
                        one.scenario,
                        one.variant,
                    ),
                )

    def impressions(self, since: int = 0) -> Iterator[tuple[int, Impression]]:
        while True:
            with self._reading() as connection:
                rows = connection.execute(
                    "SELECT number, recommendation_id, kind, who, time, bundle, items, scenario, variant"
                    " FROM impressions WHERE number > ? ORDER BY number LIMIT 10000",
                    (since,),
                ).fetchall()
            if not rows:
                return
            for number, name, kind, who, time, bundle, items, scenario, variant in rows:
                yield (
                    number,
                    Impression(
                        recommendation_id=str(self._id(name)),
                        who=self._who(kind, who),
                        time=time,
                        bundle=bundle,
                        items=tuple(json.loads(items)),
                        scenario=scenario,
                        variant=variant,
                    ),
                )
            since = rows[-1][0]

    def forget(self, who: Who) -> int:
        with self._writing() as connection:
            gone = 0
            for table in ("events", "pages", "impressions"):
                done = connection.execute(f"DELETE FROM {table} WHERE kind = ? AND who = ?", self._person(who))
                gone += done.rowcount if table == "events" else 0
            if who.kind == "user":
                connection.execute("DELETE FROM users WHERE user_id = ?", (self._kept(who.id),))
        return gone

    def forget_before(self, time: int) -> int:
        with self._writing() as connection:
            gone = connection.execute("DELETE FROM events WHERE time < ?", (time,)).rowcount
            for table in ("pages", "impressions"):
                connection.execute(f"DELETE FROM {table} WHERE time < ?", (time,))
        return gone

    def _maybe(self, value: Id | None) -> Any:
        return None if value is None else self._kept(value)

    def _person(self, who: Who) -> tuple[str, Any]:
        return who.kind, self._kept(who.id)

    def _who(self, kind: Any, kept: Any) -> Who | None:
        return None if kind is None else Who(kind, self._id(kept))
