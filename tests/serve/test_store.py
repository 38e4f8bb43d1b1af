"""The contract of a store of events, and what is particular to the one in SQLite."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from falconet.errors import ArtifactError, ConfigError, DataError
from falconet.serve.events import Event, SqliteStore, Store, Who


def event(number: int, item: int | str = 1, kind: str = "view", **more: object) -> Event:
    who = {} if "session_id" in more else {"user_id": 7}
    return Event(event_id=f"e{number}", item_id=item, type=kind, **{**who, "time": number, **more})  # type: ignore[arg-type]


def test_an_event_is_taken_in_once_and_a_repeat_is_a_duplicate(store: Store) -> None:
    assert store.add_events([event(1), event(2, 5)]) == ["accepted", "accepted"]
    assert store.add_events([event(2, 5), event(3, 6), event(3, 6)]) == ["duplicate", "accepted", "duplicate"]
    assert store.history(Who("user", 7), 10) == [(1, "view"), (5, "view"), (6, "view")]


def test_an_event_id_of_another_event_is_refused_with_the_reason(store: Store) -> None:
    store.add_events([event(1)])
    assert store.add_events([event(1, item=2)]) == ["this event_id was used before, for another event"]


def test_a_time_far_in_the_future_is_refused_and_the_other_events_are_kept(store: Store) -> None:
    outcomes = store.add_events([event(1, time=2**62), event(2, 9)])
    assert outcomes[0].startswith("the time lies more than a day in the future")
    assert store.history(Who("user", 7), 10) == [(9, "view")]


def test_the_history_is_in_the_order_of_time_and_ties_keep_the_order_of_arrival(store: Store) -> None:
    store.add_events([event(3, "c"), event(1, "a"), event(4, "d", time=3), event(2, "b")])
    assert [item for item, _ in store.history(Who("user", 7), 10)] == ["a", "b", "c", "d"]
    assert [item for item, _ in store.history(Who("user", 7), 2)] == ["c", "d"]


def test_an_item_met_twice_stands_where_it_was_met_last_and_hide_is_no_meeting(store: Store) -> None:
    store.add_events([event(1, "a"), event(2, "b"), event(3, "a", "like"), event(4, "c", "hide")])
    assert store.history(Who("user", 7), 10) == [("b", "view"), ("a", "like")]
    assert sorted(store.seen(Who("user", 7))) == ["a", "b", "c"]
    assert store.seen(Who("user", 7), ("hide",)) == ["c"]
    assert store.seen(Who("user", 7), ()) == []


def test_a_number_and_its_digits_are_two_people_and_so_are_a_user_and_a_session(store: Store) -> None:
    store.add_events([event(1, 1), event(2, 2, user_id="7"), event(3, 3, session_id=7), event(4, 2**62)])
    assert store.history(Who("user", 7), 9) == [(1, "view"), (2**62, "view")]
    assert store.history(Who("user", "7"), 9) == [(2, "view")]
    assert store.history(Who("session", 7), 9) == [(3, "view")]


def test_export_gives_events_in_order_of_arrival_with_ids_of_one_type(store: Store) -> None:
    assert list(store.export()) == []
    store.add_events([event(2, 5, value=4.5), event(1, 6), event(3, 7, session_id="s")])
    table = pa.Table.from_batches(store.export(rows=2))
    assert table.column("number").to_pylist() == [1, 2, 3]
    assert table.column("item_id").to_pylist() == [5, 6, 7]
    assert table.column("value").to_pylist() == [4.5, None, None]
    assert table.column("session_id").to_pylist() == [None, None, "s"]
    assert table.column("user_id").to_pylist() == [7, 7, None]
    assert pa.Table.from_batches(store.export(since=2)).column("event_id").to_pylist() == ["e3"]
    store.add_events([event(4, "x")])
    assert pa.Table.from_batches(store.export()).column("item_id").to_pylist() == ["5", "6", "7", "x"]


def test_threads_write_at_once_and_nothing_is_lost(store: Store) -> None:
    outcomes: list[str] = []

    def write(thread: int) -> None:
        for i in range(20):
            outcomes.extend(store.add_events([event(100 * thread + i, i), event(9999, 1)]))

    threads = [threading.Thread(target=write, args=(t,)) for t in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(outcomes) == {"accepted": 121, "duplicate": 119}


WRITER = """
import sys
from falconet.serve.events import Event, SqliteStore
store = SqliteStore(sys.argv[1])
for i in range(int(sys.argv[2])):
    (said,) = store.add_events([Event(event_id=f"{sys.argv[3]}-{i}", user_id=7, item_id=i, type="view")])
    print(f"{sys.argv[3]}-{i}", said, flush=True)
"""


def writer(path: Path, count: int, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), str(count), name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_write_at_once_and_a_third_reads_all_of_it(store: SqliteStore) -> None:
    writers = [writer(store.path, 100, name) for name in ("a", "b")]
    for process in writers:
        said, _ = process.communicate(timeout=60)
        assert said.count("accepted") == 100
    assert sum(batch.num_rows for batch in store.export()) == 200


def test_every_accepted_event_survives_the_killing_of_its_process(store: SqliteStore) -> None:
    with writer(store.path, 10**6, "a") as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(50)]
        process.send_signal(signal.SIGKILL)
        said += process.stdout.readlines()
    accepted = {line.split()[0] for line in said if line.endswith("accepted\n")}
    kept = set(pa.Table.from_batches(store.export()).column("event_id").to_pylist())
    assert len(accepted) >= 50
    assert accepted <= kept


def test_a_closed_store_can_be_used_again(store: SqliteStore) -> None:
    store.add_events([event(1)])
    store.close()
    assert store.seen(Who("user", 7)) == [1]


def test_a_file_that_is_no_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no database, but long enough to look like one " * 40)
    with pytest.raises(ArtifactError, match=r"notes\.txt` cannot be used as a store of events"):
        SqliteStore(path)
    assert path.read_text().startswith("no database")


def test_a_store_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "e.db").close()
    connection = sqlite3.connect(tmp_path / "e.db")
    connection.execute("UPDATE meta SET value = 2")
    connection.commit()
    connection.close()
    with pytest.raises(ArtifactError, match="has event format 2, this version reads 1"):
        SqliteStore(tmp_path / "e.db")


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no folder `.*nowhere` for the events"):
        SqliteStore(tmp_path / "nowhere" / "e.db")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"user_id": None}, "needs a `user_id` or a `session_id`"),
        ({"session_id": 3}, "needs a `user_id` or a `session_id`"),
        ({"event_id": ""}, "`event_id` must have 1 to 256 characters, not 0"),
        ({"type": "x" * 257}, "`type` must have 1 to 256 characters, not 257"),
        ({"type": 3}, "event `type` must be a string, not 3"),
        ({"user_id": "\ud800"}, r"`user_id` is '\\ud800', which is no Unicode text"),
        ({"item_id": 2**63}, "`item_id` is 9223372036854775808, which does not fit in 64 bits"),
        ({"item_id": True}, "`item_id` must be a whole number or a string, not True"),
        ({"user_id": 1.5}, r"`user_id` must be a whole number or a string, not 1\.5"),
        ({"value": float("nan")}, "event `value` must be a number or nothing, not nan"),
        ({"time": -1}, "event `time` must be microseconds since 1970, not -1"),
    ],
)
def test_an_event_that_cannot_be_stored_names_its_field(values: dict[str, object], message: str) -> None:
    good = {"event_id": "e", "user_id": 7, "item_id": 1, "type": "view"}
    with pytest.raises(DataError, match=message):
        Event(**{**good, **values})  # type: ignore[arg-type]


def test_a_request_has_one_person() -> None:
    assert Who.of() is None
    with pytest.raises(ConfigError, match="`user_id` and `session_id` are both given"):
        Who.of(1, 2)
