"""A bundle with an approximate index: its recall is measured; where it finds all, answers are the exact ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from falconet.errors import ConfigError
from falconet.evaluation.baselines import popular
from falconet.evaluation.tables import read_items
from falconet.models.store import save_model
from falconet.retrieval import faiss as approximate
from falconet.serve.bundle import ServingConfig, build_bundle, load_bundle
from falconet.serve.events import Event
from falconet.serve.recommender import Recommender
from falconet.serve.stores.sqlite import SqliteStore
from serving_world import World, build_world_bundle

pytest.importorskip("faiss")


@pytest.fixture
def both(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Recommender, Recommender]:
    """The exact recommender and the approximate one, which never falls back for having few items."""
    monkeypatch.setattr(approximate, "FEW", 0)
    monkeypatch.setattr(approximate, "SPARE", 0)
    build_world_bundle(world, tmp_path / "ann", index="ann")
    exact = Recommender.load(world.bundle, SqliteStore(tmp_path / "a.db"))
    return exact, Recommender.load(tmp_path / "ann", SqliteStore(tmp_path / "b.db"))


def ids(recommender: Recommender, user: Any, **asked: Any) -> list[Any]:
    return [(item.item_id, item.score) for item in recommender.recommend(user, **asked).items]


def test_answers_are_those_of_the_exact_search(both: tuple[Recommender, Recommender], world: World) -> None:
    exact, near = both
    assert near.bundle.manifest.extra["ann_recall"] == {"retriever": 1.0}
    assert exact.bundle.manifest.extra["ann_recall"] is None
    wishes: list[dict[str, Any]] = [
        {"k": 5},
        {"k": 40},
        {"k": 3, "filter": '"Horror" in genres'},
        {"include_ids": world.items[:3], "exclude_ids": world.items[:1]},
        {"exclude_seen": False, "k": 10},
    ]
    for user in [*world.users, "stranger"]:
        for wish in wishes:
            assert ids(near, user, **wish) == ids(exact, user, **wish), (user, wish)


def test_what_happened_is_known_to_the_next_answer(both: tuple[Recommender, Recommender], world: World) -> None:
    exact, near = both
    user = world.users[5]
    first = near.recommend(user).items[0].item_id
    for one in both:
        one.add_events([Event(event_id="a", user_id=user, item_id=first, type="like")])
    assert first not in [item for item, _ in ids(near, user, k=40)]
    assert ids(near, user, k=40) == ids(exact, user, k=40)


def test_without_faiss_such_a_bundle_says_what_it_needs(
    both: tuple[Recommender, Recommender], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(ConfigError, match=r"needs faiss[\s\S]*falconet\[ann\]"):
        load_bundle(both[1].bundle.path)


def test_a_model_that_asks_nothing_of_people_is_measured_too(world: World, tmp_path: Path) -> None:
    save_model(popular(read_items(world.folder / "items")), tmp_path / "popular")
    bundle = build_bundle(
        tmp_path / "bundle",
        workflow=world.folder / "workflow",
        retriever=tmp_path / "popular",
        ranker=None,
        items=world.folder / "items",
        users=world.folder / "users",
        config=ServingConfig(user="user", item="item", candidates=5, index="ann"),
        data={},
    )
    assert bundle.manifest.extra["ann_recall"] == {"retriever": 1.0}
