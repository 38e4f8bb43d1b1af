"""What is particular to the store in SQLite."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from falconet.errors import ArtifactError
from falconet.serve.deeds import Deeds
from falconet.serve.events import Event, Who
from falconet.serve.stores.sqlite import SqliteStore

FORMAT_1 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('format', 1);
CREATE TABLE events (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL CHECK (kind IN ('user', 'session')),
    who NOT NULL,
    item_id NOT NULL,
    type TEXT NOT NULL,
    value REAL,
    time INTEGER NOT NULL
);
CREATE INDEX events_of ON events (kind, who, time, number, item_id, type);
INSERT INTO events VALUES (1, 'e', 'user', 7, 'x', 'like', NULL, 5);
"""


def test_a_store_of_the_first_format_is_moved_up_with_all_that_is_in_it(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "e.db") as connection:
        connection.executescript(FORMAT_1)
    connection.close()
    for _ in range(2):  # once moved up, it is as any other
        store = SqliteStore(tmp_path / "e.db")
        assert Deeds(store, Who("user", 7), 9).history(9) == [("x", "like")]
        again = Event(event_id="e", user_id=7, item_id="x", type="like", recommendation_id="r")
        assert store.add_events([again]) == ["duplicate"]
        store.hide_item(1)
        store.close()
    assert store.change_number() == 2
    store.close()


def test_a_file_that_is_no_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no database, but long enough to look like one " * 40)
    with pytest.raises(ArtifactError, match=r"notes\.txt` cannot be used as a store of events"):
        SqliteStore(path)
    assert path.read_text().startswith("no database")


def test_a_database_of_others_is_refused_and_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "e.db") as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = (tmp_path / "e.db").read_bytes()
    with pytest.raises(ArtifactError, match="cannot be used as a store of events: it holds other tables"):
        SqliteStore(tmp_path / "e.db")
    assert (tmp_path / "e.db").read_bytes() == before


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no folder `.*nowhere` for the events"):
        SqliteStore(tmp_path / "nowhere" / "e.db")
