"""A store that is away: 503 with `Retry-After` where it is needed, and answers again once it is back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

import store_servers
from falconet.serve.http.app import create_app
from falconet.serve.recommender import Recommender
from falconet.serve.serving import Serving
from falconet.serve.stores import open_store
from falconet.serve.stores.sqlite import SqliteStore
from serving_world import World


def call(app: object, method: str = "POST", path: str = "/v1/recommend", **more: object) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **more)  # type: ignore[arg-type]

    return asyncio.run(send())


def says_come_back(response: httpx.Response) -> bool:
    assert response.json()["error"]["message"] == "what is known of people and items cannot be reached at the moment"
    return (response.status_code, response.headers["retry-after"]) == (503, "1")


def test_a_file_that_is_locked_or_gone_is_503_until_it_is_back(world: World, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "events.db", timeout=0.05)
    app = create_app(Serving(Recommender.load(world.bundle, store)))
    asked = {"user_id": world.users[5], "k": 2}
    event = {"event_id": "e", "user_id": world.users[5], "item_id": world.items[0], "type": "like"}
    with store._connection() as other:
        other.execute("BEGIN IMMEDIATE")
        assert says_come_back(call(app, path="/v1/events", json={"events": [event]}))
        assert says_come_back(call(app, json=asked))
        assert call(app, "GET", "/health/live").status_code == 200
        other.execute("ROLLBACK")
    assert call(app, path="/v1/events", json={"events": [event]}).json()["accepted"] == 1
    assert call(app, json=asked).json()["history"][-1]["type"] == "like"
    store.close()


@pytest.mark.parametrize("kind", ["postgres", "redis"])
def test_a_server_that_is_stopped_is_503(world: World, kind: str) -> None:
    with getattr(store_servers, kind)() as place:
        store = open_store(place)
        app = create_app(Serving(Recommender.load(world.bundle, store)))
        assert call(app, json={"user_id": 1}).status_code == 200
        store.close()  # PostgreSQL waits for its clients before it stops; a call connects anew
    for _ in range(2):
        assert says_come_back(call(app, json={"user_id": world.users[5]}))
        assert call(app, json={"user_id": 1}).json()["degraded"] == ["store"]  # nobody that training knows
        assert says_come_back(call(app, "GET", "/health/ready"))
    store.close()
