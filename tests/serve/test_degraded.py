"""Answers that go without a stage that is slow, stuck or away, and never with what they must not have."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from torch import Tensor

from falconet.batch import Batch
from falconet.serve.events import Event
from falconet.serve.http.app import create_app
from falconet.serve.recommender import Recommender
from falconet.serve.scenarios import Scenario, Scenarios, Variant
from falconet.serve.serving import Serving
from falconet.serve.stages import LOST, Budgets, Stages
from falconet.serve.stores.sqlite import SqliteStore
from serving_world import World

SLOW = 10  # seconds; no test waits for it
BUDGET = 60.0  # milliseconds


class Slow:
    """A ranker that waits until `door` opens."""

    def __init__(self, ranker: Callable[[Batch], Tensor]) -> None:
        self.ranker, self.door, self.calls = ranker, threading.Event(), 0

    def __call__(self, batch: Batch) -> Tensor:
        self.calls += 1
        self.door.wait(SLOW)
        return self.ranker(batch)


@pytest.fixture
def stages() -> Iterator[Stages]:
    made = Stages(Budgets(retrieve=60_000, rank=BUDGET))
    yield made
    made.close()


@pytest.fixture
def slow(recommender: Recommender, stages: Stages) -> Iterator[tuple[Recommender, Slow]]:
    """The recommender with a slow ranker."""
    ranker = recommender.bundle.engine.ranker
    assert ranker is not None
    waits = Slow(ranker)
    bundle = replace(recommender.bundle, engine=replace(recommender.bundle.engine, ranker=waits))
    yield Recommender(bundle, recommender.store, stages=stages), waits
    waits.door.set()


def test_in_time_the_answers_are_the_same(recommender: Recommender, world: World) -> None:
    bounded = Recommender(recommender.bundle, recommender.store, stages=Stages(Budgets(total=60_000)))
    for asked in (
        {"user_id": world.users[5]},
        {"history": world.items[:3]},
        {"user_id": world.users[3], "diversity": 0.5},
    ):
        want, got = recommender.recommend(**asked), bounded.recommend(**asked)  # type: ignore[arg-type]
        assert got.items == want.items
        assert (got.degraded, got.funnel, got.took_ms.keys()) == ([], want.funnel, want.took_ms.keys())
    bounded.stages.close()  # type: ignore[union-attr]


def test_a_slow_ranker_leaves_the_order_of_the_retrievers(slow: tuple[Recommender, Slow], world: World) -> None:
    recommender, ranker = slow
    answer = recommender.recommend(world.users[5], k=5)
    assert answer.degraded == ["rank"]
    assert [item.retriever_rank for item in answer.items] == [1, 2, 3, 4, 5]
    assert all(item.score == item.retriever_score for item in answer.items)
    assert not {item.item_id for item in answer.items} & set(world.seen[world.users[5]])
    assert answer.items[0].reason.startswith("Because you")
    ranker.door.set()
    assert recommender.recommend(world.users[5], k=5).degraded == []


def test_a_slow_ranker_of_given_items_keeps_them(slow: tuple[Recommender, Slow], world: World) -> None:
    answer = slow[0].rank(world.items[:4], world.users[5])
    assert answer.degraded == ["rank"]
    assert {item.item_id for item in answer.items} == set(world.items[:4])


def test_slow_retrieval_leaves_what_is_popular(
    recommender: Recommender, stages: Stages, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    door, sources = threading.Event(), recommender.bundle.engine.sources
    search = sources.search
    monkeypatch.setattr(sources, "search", lambda *a, **k: door.wait(SLOW) and search(*a, **k))
    stages.budgets = Budgets(retrieve=BUDGET)
    answer = Recommender(recommender.bundle, recommender.store, stages=stages).recommend(
        world.users[5], k=5, filter='"Drama" in genres'
    )
    door.set()
    assert answer.degraded == ["retrieve"]
    assert {item.source for item in answer.items} == {"popular"}
    assert len(answer.items) == 5
    assert all("Drama" in item.attributes["genres"] for item in answer.items)
    assert not {item.item_id for item in answer.items} & set(world.seen[world.users[5]])


def test_what_the_store_takes_is_missing_to_the_others(
    recommender: Recommender, stages: Stages, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    latest = recommender.store.latest  # type: ignore[union-attr]
    monkeypatch.setattr(recommender.store, "latest", lambda *a: [time.sleep(0.03), *latest(*a)][1:])
    stages.budgets = Budgets(total=20)
    answer = Recommender(recommender.bundle, recommender.store, stages=stages).recommend(world.users[5])
    assert (answer.degraded, len(answer.items)) == (["retrieve"], 10)


def test_a_stuck_ranker_takes_few_threads_and_no_request_with_it(
    slow: tuple[Recommender, Slow], stages: Stages, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    recommender, ranker = slow
    app = create_app(Serving(recommender), at_once=30)

    async def ask(count: int) -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            asked = {"user_id": world.users[5], "k": 3}
            return await asyncio.gather(*(client.post("/v1/recommend", json=asked) for _ in range(count)))

    found = asyncio.run(ask(60))
    busy = [one for one in found if one.status_code == 429]
    assert len(busy) == 30
    assert {one.headers["retry-after"] for one in busy} == {"1"}
    answered = [one.json() for one in found if one.status_code == 200]
    assert len(answered) == 30
    assert all(one["degraded"] == ["rank"] and len(one["items"]) == 3 for one in answered)
    assert ranker.calls <= LOST - 1 + 16
    assert sum(t.name == "falconet-stages" for t in threading.enumerate()) <= 16 + 2 * (LOST - 1 + 16)
    metrics = asyncio.run(_get(app, "/metrics")).text
    assert 'falconet_degraded_answers_total{stage="rank"} 30.0' in metrics
    assert capsys.readouterr().err.count("ranking took too long") == 1
    ranker.door.set()
    end = time.monotonic() + 5
    while stages.lost and time.monotonic() < end:
        time.sleep(0.005)
    assert asyncio.run(ask(1))[0].json()["degraded"] == []


async def _get(app: Any, path: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        return await client.get(path)


class Flaky:
    """A store whose calls raise while it is `away`, and how many did."""

    def __init__(self, store: SqliteStore) -> None:
        self.store, self.away, self.refused = store, False, 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **more: Any) -> Any:
            if self.away:
                self.refused += 1
                raise sqlite3.OperationalError("unable to open database file")
            return found(*arguments, **more)

        return call


@pytest.fixture
def flaky(store: SqliteStore) -> Flaky:
    return Flaky(store)


@pytest.fixture
def cut(world: World, flaky: Flaky) -> Recommender:
    """A recommender whose store can go away; it asks such a one again at once."""
    tests = Scenarios(scenario=(Scenario(name="home", variants=(Variant(name="a"), Variant(name="b", diversity=0.5))),))
    recommender = Recommender.load(world.bundle, flaky, scenarios=tests)  # type: ignore[arg-type]
    recommender._outage._again = 0.0
    return recommender


def test_a_history_in_the_request_is_answered_without_the_store(cut: Recommender, flaky: Flaky, world: World) -> None:
    history = world.items[:4]
    want = cut.recommend(history=history, k=40)
    flaky.away = True
    answer = cut.recommend(history=history, k=40)
    assert answer.degraded == ["store"]
    assert [(item.item_id, item.score) for item in answer.items] == [(i.item_id, i.score) for i in want.items]
    assert not {item.item_id for item in answer.items} & set(history)
    known = cut.recommend(world.users[5], history=history, exclude_seen=["like"], k=40)
    assert known.degraded == ["store"]
    assert not {item.item_id for item in known.items} & set(history)
    flaky.away = False
    assert cut.recommend(history=history).degraded == []


def test_strangers_get_what_is_popular_and_those_who_are_known_an_outage(
    cut: Recommender, flaky: Flaky, world: World
) -> None:
    flaky.away = True
    for asked in ({"user_id": "nobody"}, {"session_id": "s"}, {}):
        assert cut.preview(**asked).degraded == ["store"]  # type: ignore[arg-type]
        answer = cut.recommend(**asked)  # type: ignore[arg-type]
        assert (answer.degraded, answer.cold_start, len(answer.items)) == (["store"], True, 10)
    with pytest.raises(sqlite3.OperationalError):
        cut.recommend(world.users[5])
    with pytest.raises(sqlite3.OperationalError):  # what was shown could not be kept
        cut.recommend(history=world.items[:2], scenario="home")
    with pytest.raises(sqlite3.OperationalError):
        cut.next(answer.recommendation_id)


def test_without_the_store_items_are_hidden_as_was_known_last(cut: Recommender, flaky: Flaky, world: World) -> None:
    first, second, third = (item.item_id for item in cut.recommend(k=3).items)
    cut.put_item(first, hidden=True)
    cut.put_item(second, expires=time.time_ns() // 1000 + 60_000)
    assert first not in [item.item_id for item in cut.recommend(k=40).items]
    flaky.away = True
    time.sleep(0.07)  # the second expires meanwhile
    found = [item.item_id for item in cut.recommend(k=3).items]
    assert found[0] == third
    assert not {first, second} & set(found)


def test_what_is_hidden_while_nobody_asks_a_store_that_is_back_holds_for_who_is_known(
    cut: Recommender, flaky: Flaky, world: World
) -> None:
    cut._outage._again = 60.0
    flaky.away = True
    assert cut.preview().degraded == ["store"]
    flaky.away = False
    first = cut.recommend(world.users[5]).items[0].item_id  # who cannot be answered without the store
    flaky.store.put_item(first, hidden=True)
    answer = cut.recommend(world.users[5], k=40)
    assert first not in [item.item_id for item in answer.items]


def test_a_list_that_cannot_be_kept_is_given_all_the_same(cut: Recommender, flaky: Flaky, world: World) -> None:
    save = flaky.store.save_page

    def full(*arguments: Any) -> None:
        flaky.store.save_page = save  # type: ignore[method-assign]
        raise sqlite3.OperationalError("database or disk is full")

    flaky.store.save_page = full  # type: ignore[method-assign]
    assert cut.recommend(history=world.items[:2]).degraded == ["store"]
    assert cut.recommend(history=world.items[:2]).degraded == []


def test_a_store_that_is_away_is_not_asked_for_every_answer(cut: Recommender, flaky: Flaky, world: World) -> None:
    cut._outage._again = 60.0
    flaky.away = True
    assert [cut.recommend(history=world.items[:2]).degraded for _ in range(5)] == [["store"]] * 5
    assert flaky.refused == 1
    cut._outage._until = time.monotonic()
    flaky.away = False
    assert cut.recommend(history=world.items[:2]).degraded == []


def test_the_next_bundle_keeps_the_budgets(slow: tuple[Recommender, Slow], stages: Stages) -> None:
    serving = Serving(slow[0])
    serving.reload()
    assert serving.recommender.stages is stages


def test_events_that_the_store_has_count_as_before(cut: Recommender, flaky: Flaky, world: World) -> None:
    event = Event(event_id="a", user_id="new", item_id=world.items[0], type="like")
    cut.add_events([event])
    assert cut.recommend("new", k=40).history[0].item_id == world.items[0]
    flaky.away = True
    answer = cut.recommend("new", history=[world.items[0]], k=40)
    assert world.items[0] not in [item.item_id for item in answer.items]


def test_an_error_of_a_stage_is_no_lateness(slow: tuple[Recommender, Slow], world: World, tmp_path: Path) -> None:
    recommender, ranker = slow

    def wrong(batch: Batch) -> Tensor:
        raise ValueError("a ranker that is wrong")

    ranker.ranker = wrong
    ranker.door.set()
    with pytest.raises(ValueError, match="a ranker that is wrong"):
        recommender.recommend(world.users[5])
