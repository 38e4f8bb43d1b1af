"""The tiny world of the serving tests, built once, and a recommender with a fresh store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from falconet.retrieval import faiss as approximate
from falconet.serve.recommender import Recommender
from falconet.serve.stores.sqlite import SqliteStore
from serving_world import World, build_world_bundle, make_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Ids are numbers above 2^31."""
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def ann_bundle(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of the same world with an approximate index."""
    pytest.importorskip("faiss")
    folder = tmp_path_factory.mktemp("ann") / "bundle"
    build_world_bundle(world, folder, index="ann")
    return folder


@pytest.fixture(params=["exact", "ann"])
def searching(world: World, store: SqliteStore, request: pytest.FixtureRequest) -> Recommender:
    """A recommender of each index. The approximate one does not search exactly for having few items."""
    if request.param == "exact":
        return Recommender.load(world.bundle, store)
    patch = request.getfixturevalue("monkeypatch")
    patch.setattr(approximate, "FEW", 0)
    patch.setattr(approximate, "SPARE", 0)
    return Recommender.load(request.getfixturevalue("ann_bundle"), store)


@pytest.fixture(scope="session")
def world_of_strings(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Ids are strings, and there is no ranker."""
    return make_world(tmp_path_factory.mktemp("strings"), strings=True, ranker=False)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "events.db")
    yield store
    store.close()


@pytest.fixture
def recommender(world: World, store: SqliteStore) -> Recommender:
    return Recommender.load(world.bundle, store)


@pytest.fixture
def strings(world_of_strings: World, store: SqliteStore) -> Recommender:
    return Recommender.load(world_of_strings.bundle, store)
