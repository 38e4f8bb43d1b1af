"""The tiny world of the serving tests, built once, and a recommender with a fresh store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from falconet.serve.recommender import Recommender
from falconet.serve.stores.sqlite import SqliteStore
from serving_world import World, make_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Ids are numbers above 2^31."""
    return make_world(tmp_path_factory.mktemp("world"))


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
