"""The contract of a store, held to each of them on a real server; and what an event is."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import store_servers
from falconet.errors import ConfigError, DataError
from falconet.serve.ab import report
from falconet.serve.deeds import Deeds
from falconet.serve.events import Event, Who
from falconet.serve.scenarios import Scenario, Scenarios, Variant
from falconet.serve.store import Impression, ItemChange, Page, Store
from falconet.serve.stores import open_store

U7 = Who("user", 7)
KINDS = ("sqlite", "postgres", "redis")


@pytest.fixture(scope="session", params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a store is, as its address."""
    with ExitStack() as stack:
        if request.param == "sqlite":
            yield str(tmp_path_factory.mktemp("sqlite") / "events.db")
        else:
            yield stack.enter_context(getattr(store_servers, request.param)())


def empty(place: str) -> None:
    """Leave nothing of what a test has stored."""
    if place.startswith("postgresql"):
        import psycopg

        with psycopg.connect(place) as connection:
            connection.execute("DROP SCHEMA IF EXISTS falconet CASCADE")
    elif place.startswith("redis"):
        import redis

        redis.Redis.from_url(place).flushall()
    else:
        for file in Path(place).parent.iterdir():
            file.unlink()


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    empty(place)
    store = open_store(place)
    yield store
    store.close()


def event(number: int, item: int | str = 1, kind: str = "view", **more: object) -> Event:
    who = {} if "session_id" in more else {"user_id": 7}
    return Event(event_id=f"e{number}", item_id=item, type=kind, **{**who, "time": number, **more})  # type: ignore[arg-type]


def history(store: Store, who: Who, limit: int) -> list[tuple[int | str, str]]:
    return Deeds(store, who, limit).history(limit)


def test_an_event_is_taken_in_once_and_a_repeat_is_a_duplicate(store: Store) -> None:
    assert store.add_events([event(1), event(2, 5)]) == ["accepted", "accepted"]
    assert store.add_events([event(2, 5), event(3, 6), event(3, 6)]) == ["duplicate", "accepted", "duplicate"]
    assert history(store, U7, 10) == [(1, "view"), (5, "view"), (6, "view")]


def test_an_event_id_of_another_event_is_refused_with_the_reason(store: Store) -> None:
    store.add_events([event(1)])
    assert store.add_events([event(1, item=2)]) == ["this event_id was used before, for another event"]


def test_a_time_far_in_the_future_is_refused_and_the_other_events_are_kept(store: Store) -> None:
    outcomes = store.add_events([event(1, time=2**62), event(2, 9)])
    assert outcomes[0].startswith("the time lies more than a day in the future")
    assert history(store, U7, 10) == [(9, "view")]


def test_the_history_is_in_the_order_of_time_and_ties_keep_the_order_of_arrival(store: Store) -> None:
    store.add_events([event(3, "c"), event(1, "a"), event(4, "d", time=3), event(2, "b")])
    assert [item for item, _ in history(store, U7, 10)] == ["a", "b", "c", "d"]
    assert [item for item, _ in history(store, U7, 2)] == ["c", "d"]


def test_an_item_met_twice_stands_where_it_was_met_last_and_hide_is_no_meeting(store: Store) -> None:
    store.add_events([event(1, "a"), event(2, "b"), event(3, "a", "like"), event(4, "c", "hide")])
    assert history(store, U7, 10) == [("b", "view"), ("a", "like")]
    assert sorted(store.seen(U7)) == ["a", "b", "c"]
    assert store.seen(U7, ("hide",)) == ["c"]
    assert store.seen(U7, ()) == []


def test_a_number_and_its_digits_are_two_people_and_so_are_a_user_and_a_session(store: Store) -> None:
    store.add_events([event(1, 1), event(2, 2, user_id="7"), event(3, 3, session_id=7), event(4, 2**62)])
    assert history(store, U7, 9) == [(1, "view"), (2**62, "view")]
    assert history(store, Who("user", "7"), 9) == [(2, "view")]
    assert history(store, Who("session", 7), 9) == [(3, "view")]


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
from falconet.serve.events import Event
from falconet.serve.stores import open_store
store = open_store(sys.argv[1])
for i in range(int(sys.argv[2])):
    (said,) = store.add_events([Event(event_id=f"{sys.argv[3]}-{i}", user_id=7, item_id=i, type="view")])
    print(f"{sys.argv[3]}-{i}", said, flush=True)
"""


def writer(place: str, count: int, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, place, str(count), name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_write_at_once_and_a_third_reads_all_of_it(store: Store, place: str) -> None:
    writers = [writer(place, 100, name) for name in ("a", "b")]
    for process in writers:
        said, _ = process.communicate(timeout=60)
        assert said.count("accepted") == 100
    assert sum(batch.num_rows for batch in store.export()) == 200


def test_every_accepted_event_survives_the_killing_of_its_process(store: Store, place: str) -> None:
    with writer(place, 10**6, "a") as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(50)]
        process.send_signal(signal.SIGKILL)
        said += process.stdout.readlines()
    accepted = {line.split()[0] for line in said if line.endswith("accepted\n")}
    kept = set(pa.Table.from_batches(store.export()).column("event_id").to_pylist())
    assert len(accepted) >= 50
    assert accepted <= kept


def test_a_closed_store_can_be_used_again(store: Store) -> None:
    store.add_events([event(1)])
    store.close()
    assert store.seen(U7) == [1]


ODD = ["7", 7, "", "a\tb", "a\nb", "nul\0", "tab\\t", "é☃𝄞", '"quoted"', "%s ? {}", -(2**63), 2**63 - 1]


@pytest.mark.parametrize("value", [x for x in ODD if x != ""], ids=repr)
def test_every_id_comes_back_as_it_was(store: Store, value: int | str) -> None:
    who = Who("session", value)
    text = str(value)
    odd = Event(event_id=text, item_id=value, type=text, session_id=value, time=5, recommendation_id=text)
    assert store.add_events([odd, odd]) == ["accepted", "duplicate"]
    assert history(store, who, 3) == [(value, text)]
    assert store.seen(who, [text]) == [value]
    (batch,) = store.export()
    assert batch.to_pylist()[0] | {"number": 1} == {
        "number": 1, "event_id": text, "user_id": None, "session_id": value, "item_id": value, "type": text,
        "value": None, "time": 5, "recommendation_id": text,
    }  # fmt: skip
    store.put_item(value, features={text: [text, None, 1.5]})
    store.put_user(value, {text: text})
    assert store.items_changed_since(0)[0].item_id == value
    assert store.items_changed_since(0)[0].features == {text: [text, None, 1.5]}
    assert store.get_user(value) == {text: text}
    store.save_page(text, Page(who=who, request={text: value}, shown=(value,)), 5)
    assert store.page(text) == Page(who=who, request={text: value}, shown=(value,))
    assert store.forget(who) == 1
    assert store.page(text) is None


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 4), st.sampled_from(["view", "like", "hide"]), st.integers(0, 6)),
        max_size=25,
    ),
    st.integers(1, 5),
)
def test_history_and_seen_are_those_of_a_list(place: str, rows: list[tuple[int, int, str, int]], limit: int) -> None:
    empty(place)
    store = open_store(place)
    store.add_events([event(i, item, kind, user_id=who, time=at) for i, (who, item, kind, at) in enumerate(rows)])
    for who in range(3):
        mine = sorted(((at, i, item, kind) for i, (w, item, kind, at) in enumerate(rows) if w == who), reverse=True)
        met = list({item: kind for _, _, item, kind in mine[::-1] if kind != "hide"}.items())
        latest = dict.fromkeys(item for _, _, item, kind in mine if kind != "hide")
        want = [(item, dict(met)[item]) for item in list(latest)[:limit]][::-1]
        person = Who("user", who)
        assert store.latest(person, limit) == [(item, kind) for *_, item, kind in mine[:limit]]
        seen, liked = {item for _, _, item, _ in mine}, {item for *_, item, kind in mine if kind == "like"}
        for wanted in (limit, 99):
            deeds = Deeds(store, person, wanted)
            assert deeds.history(limit) == want
            for known in (deeds.seen(), store.seen(person)):
                assert (len(known), set(known)) == (len(seen), seen)
            for known in (deeds.seen(["like"]), store.seen(person, ["like"])):
                assert (len(known), set(known)) == (len(liked), liked)
    store.close()


def test_changes_of_items_are_numbered_and_the_last_of_each_counts(store: Store) -> None:
    assert (store.change_number(), store.items_changed_since(0)) == (0, [])
    assert store.put_item("a", features={"genre": ["Drama"]}, expires=9) == 1
    assert store.put_item(5) == 2
    assert store.hide_item("a") == 3
    assert store.hide_item("new") == 4
    hidden = ItemChange(item_id="a", number=3, hidden=True, expires=9, features={"genre": ["Drama"]})
    assert store.items_changed_since(0) == [
        ItemChange(item_id=5, number=2), hidden, ItemChange(item_id="new", number=4, hidden=True)
    ]  # fmt: skip
    assert store.items_changed_since(3) == [ItemChange(item_id="new", number=4, hidden=True)]
    assert store.put_item("a") == store.change_number() == 5
    kept = {"genre": ["Drama"]}
    assert store.items_changed_since(4) == [ItemChange(item_id="a", number=5, features=kept)]


def test_features_stay_until_others_are_said(store: Store) -> None:
    said = {"title": "a, [b]}", "genres": [], "year": None, "price": 1.5}
    store.put_item("a", features=said, expires=9)
    store.put_item("a", hidden=True, expires=7)
    store.put_item(5)
    assert store.items_changed_since(0) == [
        ItemChange(item_id="a", number=2, hidden=True, expires=7, features=said), ItemChange(item_id=5, number=3)
    ]  # fmt: skip
    store.put_item("a", features={"year": 1})
    store.put_item(5, features={})
    assert store.items_changed_since(3) == [
        ItemChange(item_id="a", number=4, features={"year": 1}), ItemChange(item_id=5, number=5, features={})
    ]  # fmt: skip


def test_a_profile_replaces_the_one_before(store: Store) -> None:
    assert store.get_user(1) is None
    store.put_user(1, {"age": 30, "city": "Bern"})
    store.put_user(1, {"age": 31})
    store.put_user("1", {})
    assert (store.get_user(1), store.get_user("1")) == ({"age": 31}, {})
    assert dict(store.profiles()) == {1: {"age": 31}, "1": {}}


def test_pages_grow_by_one_that_knows_what_was_shown(store: Store) -> None:
    assert store.page("r") is None
    assert not store.extend_page("r", 0, [1])
    store.save_page("r", Page(who=U7, request={"k": 2}, shown=(1, "2")), 5)
    store.save_page("r", Page(who=None, request={}, shown=()), 6)
    assert store.extend_page("r", 2, [3])
    assert not store.extend_page("r", 2, [4])
    assert store.page("r") == Page(who=U7, request={"k": 2}, shown=(1, "2", 3))
    store.save_page("nobody", Page(who=None, request={}, shown=()), 5)
    assert store.extend_page("nobody", 0, [])
    assert store.page("nobody") == Page(who=None, request={}, shown=())


def test_only_one_of_many_threads_extends_a_page(store: Store) -> None:
    store.save_page("r", Page(who=None, request={}, shown=()), 5)
    won: list[bool] = []
    threads = [threading.Thread(target=lambda i=i: won.append(store.extend_page("r", 0, [i]))) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 5 + [True]
    page = store.page("r")
    assert page is not None and len(page.shown) == 1


def impression(name: str, who: Who | None = U7, time: int = 5) -> Impression:
    return Impression(recommendation_id=name, who=who, time=time, bundle="b", items=(1, "x"), scenario="s", variant="v")


def test_impressions_are_kept_once_and_in_order(store: Store) -> None:
    first, second = impression("a"), impression("b", None)
    store.log_impressions([first, second, impression("a", time=9)])
    store.log_impressions([second])
    found = list(store.impressions())
    assert [one for _, one in found] == [first, second]
    assert [one for _, one in store.impressions(found[0][0])] == [second]


def test_a_person_can_be_forgotten_and_nobody_else_is(store: Store) -> None:
    others = [Who("user", "7"), Who("session", 7)]
    for i, who in enumerate([U7, *others]):
        named = {"user_id": who.id} if who.kind == "user" else {"session_id": who.id, "user_id": None}
        store.add_events([event(10 * i, 1, **named), event(10 * i + 1, 2, "hide", **named)])
        store.save_page(f"p{i}", Page(who=who, request={}, shown=(1,)), 5)
        store.log_impressions([impression(f"p{i}", who)])
    store.put_user(7, {"age": 3})
    store.put_user("7", {"age": 4})
    assert store.forget(U7) == 2
    assert store.forget(U7) == 0
    assert (history(store, U7, 9), store.seen(U7), store.get_user(7), store.page("p0")) == ([], [], None, None)
    assert [one.who for _, one in store.impressions()] == others
    assert store.get_user("7") == {"age": 4}
    assert [store.seen(who, ["hide"]) for who in others] == [[2], [2]]
    assert pa.Table.from_batches(store.export()).column("event_id").to_pylist() == ["e10", "e11", "e20", "e21"]
    assert store.add_events([event(0)]) == ["accepted"]  # its id is free again


def test_what_is_old_can_be_forgotten(store: Store) -> None:
    store.add_events([event(1, 1), event(2, 1, time=9), event(3, 2), event(4, 3, time=10), event(5, user_id=8, time=1)])
    for name, time in (("old", 8), ("new", 9)):
        store.save_page(name, Page(who=U7, request={}, shown=()), time)
        store.log_impressions([impression(name, time=time)])
    assert store.forget_before(9) == 3
    assert history(store, U7, 9) == [(1, "view"), (3, "view")]
    assert sorted(store.seen(U7)) == [1, 3]
    assert store.seen(Who("user", 8)) == []
    assert store.page("old") is None and store.page("new") is not None
    assert [one.recommendation_id for _, one in store.impressions()] == ["new"]


def test_export_leaves_out_what_arrives_meanwhile(store: Store) -> None:
    store.add_events([event(i, i) for i in range(5)])
    batches = store.export(rows=2)
    first = next(batches)
    store.add_events([event(9, "x")])
    assert first.num_rows + sum(batch.num_rows for batch in batches) == 5


@pytest.mark.parametrize("place", KINDS, indirect=True)
def test_a_store_of_a_newer_format_is_refused(place: str) -> None:
    from falconet.errors import ArtifactError

    empty(place)
    open_store(place).close()
    if place.startswith("postgresql"):
        import psycopg

        with psycopg.connect(place) as connection:
            connection.execute("UPDATE falconet.meta SET value = 3 WHERE key = 'format'")
    elif place.startswith("redis"):
        import redis

        redis.Redis.from_url(place).hset("falconet:meta", "format", 3)
    else:
        import sqlite3

        with sqlite3.connect(place) as connection:
            connection.execute("UPDATE meta SET value = 3 WHERE key = 'format'")
    with pytest.raises(ArtifactError, match="has store format 3, this version reads"):
        open_store(place)
    empty(place)


def test_an_address_of_nothing_is_an_error_that_hides_the_password() -> None:
    from falconet.errors import ArtifactError

    for address in ("postgresql://me:secret@127.0.0.1:1/x", "redis://:secret@127.0.0.1:1/0"):
        with pytest.raises(ArtifactError, match=r"127\.0\.0\.1:1/.` cannot be used as a store") as caught:
            open_store(address)
        assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError, match="no store for `mysql://`"):
        open_store("mysql://localhost/x")


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
        ({"recommendation_id": 3}, "event `recommendation_id` must be a string, not 3"),
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


def test_a_report_of_an_ab_test_is_the_same_from_every_store(store: Store) -> None:
    scenario = Scenario(name="home", variants=(Variant(name="a"), Variant(name="b")))
    people = [Who("user", 1), Who("user", "1"), Who("session", 1), Who("user", 2)]
    store.log_impressions(
        [
            Impression(
                recommendation_id=f"r{n}", who=who, time=n, bundle="x", items=(5,), scenario="home", variant="ab"[n % 2]
            )
            for n, who in enumerate(people)
        ]
    )
    told = {"item_id": 5, "type": "click", "time": 9}
    events = [
        Event(event_id="e1", user_id=2, recommendation_id="r3", **told),  # type: ignore[arg-type]
        Event(event_id="e2", session_id=1, recommendation_id="r2", **told),  # type: ignore[arg-type]
        Event(event_id="e3", user_id=2, recommendation_id="r0", **told),  # type: ignore[arg-type]
    ]
    assert store.add_events(events) == ["accepted"] * 3
    found = report(store, Scenarios(scenario=(scenario,)))["home"]
    assert {name: (one.responded, one.lists, one.events) for name, one in found.variants.items()} == {
        "a": (1, 2, 1),
        "b": (1, 2, 1),
    }
