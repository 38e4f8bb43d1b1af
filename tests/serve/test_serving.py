"""Another bundle takes the place of the one that is served; metrics, request ids, the log, too many requests."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from falconet.errors import ArtifactError, ConfigError
from falconet.serve.http import guard
from falconet.serve.http.app import create_app
from falconet.serve.http.bodies import MAX_BODY
from falconet.serve.recommender import Recommender
from falconet.serve.serving import Serving
from falconet.serve.stores.sqlite import SqliteStore
from serving_world import World, build_world_bundle


@pytest.fixture
def serving(world: World, tmp_path: Path, store: SqliteStore) -> Serving:
    """Two bundles beside each other, `bundle` and `other`; the first one is served."""
    shutil.copytree(world.bundle, tmp_path / "bundle")
    build_world_bundle(world, tmp_path / "other", ranker=False)
    return Serving(Recommender.load(tmp_path / "bundle", store))


def call(app: Any, method: str, path: str, **more: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **more)

    return asyncio.run(send())


def test_another_bundle_takes_over_and_the_old_one_can_come_back(serving: Serving, world: World) -> None:
    first = serving.recommender
    before = first.recommend(world.users[5])
    old, new = serving.reload("other")
    assert (old, new) == (first.bundle.name, serving.recommender.bundle.name)
    assert old != new
    after = serving.recommender.recommend(world.users[5])
    assert (after.bundle, after.items != before.items) == (new, True)
    assert serving.recommender.next(before.recommendation_id).items  # pages go on in the new bundle
    assert serving.reload("bundle") == (new, old)
    assert serving.recommender.recommend(world.users[5]).items == before.items


@pytest.mark.parametrize("what", ["damaged", "other answers", "missing"])
def test_a_bundle_that_is_refused_leaves_the_old_one_in_place(serving: Serving, what: str) -> None:
    other = serving.recommender.bundle.path.parent / "other"
    if what == "missing":
        shutil.rmtree(other)
    else:
        name = "indexes/retriever.safetensors" if what == "damaged" else "manifest.json"
        data = bytearray((other / name).read_bytes())
        if what == "damaged":
            data[-3] ^= 1
        else:
            data = bytearray(
                bytes(data).replace(b'"scores": [', b'"scores": [9e9, ', 1).replace(b'"items": [', b'"items": [1, ', 1)
            )
        (other / name).write_bytes(data)
    served = serving.recommender
    with pytest.raises(ArtifactError):
        serving.reload("other")
    assert serving.recommender is served
    for name in ("../other", "/", "..", "a/b"):
        with pytest.raises(ConfigError, match="`bundle` is"):
            serving.reload(name)


def test_no_request_fails_while_bundles_change(serving: Serving, world: World) -> None:
    over, failed, answered = threading.Event(), [], []

    def ask() -> None:
        while not over.is_set():
            try:
                answered.append(serving.recommender.recommend(world.users[5]).bundle)
            except Exception as error:  # noqa: BLE001
                failed.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for folder in ("other", "bundle", "other"):
        serving.reload(folder)
    over.set()
    for thread in threads:
        thread.join()
    assert failed == []
    assert answered


def test_a_watched_folder_is_served_anew_and_a_bad_bundle_is_not(
    serving: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    served = serving.recommender.bundle
    other = served.path.parent / "other"

    def put(source: Path) -> None:
        shutil.move(served.path, served.path.with_name("aside"))
        shutil.copytree(source, served.path)
        shutil.rmtree(served.path.with_name("aside"))

    with serving.watched(seconds=0.05):
        put(other)
        for _ in range(400):
            if serving.recommender.bundle is not served:
                break
            time.sleep(0.05)
        assert serving.recommender.bundle.name != served.name
        (other / "serving.json").write_text("{}")
        now = serving.recommender
        put(other)
        time.sleep(0.3)
        assert serving.recommender is now
    assert not [t for t in threading.enumerate() if t.name == "falconet-watch"]


def test_reload_over_http_needs_the_token(serving: Serving) -> None:
    app = create_app(serving, token="t")  # noqa: S106
    assert call(app, "POST", "/v1/admin/reload", json={}).status_code == 401
    headers = {"authorization": "Bearer t"}
    done = call(app, "POST", "/v1/admin/reload", json={"bundle": "other"}, headers=headers)
    assert (done.status_code, done.json()["bundle"]) == (200, serving.recommender.bundle.name)
    assert call(app, "GET", "/health/ready").json()["bundle"] == done.json()["bundle"]
    refused = call(app, "POST", "/v1/admin/reload", json={"bundle": "none"}, headers=headers)
    assert refused.status_code == 409
    assert "no bundle at" in refused.json()["error"]["message"]
    assert call(app, "POST", "/v1/admin/reload", json={"bundle": "../x"}, headers=headers).status_code == 422


def test_metrics_count_answers_stages_and_events(serving: Serving, world: World) -> None:
    app = create_app(serving)
    for body in ({"user_id": world.users[5]}, {}, {"filter": "1 == 2"}):
        assert call(app, "POST", "/v1/recommend", json=body).status_code == 200
    event = {"event_id": "e", "user_id": 1, "item_id": 1, "type": "view"}
    call(app, "POST", "/v1/events", json={"events": [event, event, {**event, "event_id": "f", "time": 2**62}]})
    text = call(app, "GET", "/metrics").text
    for line in (
        'falconet_answers_total{source="retriever"} 1.0',
        'falconet_answers_total{source="popular"} 1.0',
        'falconet_answers_total{source="none"} 1.0',
        "falconet_cold_starts_total 2.0",
        "falconet_short_answers_total 1.0",
        'falconet_events_total{outcome="accepted"} 1.0',
        'falconet_events_total{outcome="duplicate"} 1.0',
        'falconet_events_total{outcome="rejected"} 1.0',
        'falconet_stage_milliseconds_count{stage="rank"} 1.0',
        'falconet_stage_milliseconds_count{stage="total"} 3.0',
        f'falconet_bundle_items{{bundle="{serving.recommender.bundle.name}"}} 40.0',
    ):
        assert line in text


def test_every_request_has_an_id_and_a_line_of_the_log(serving: Serving) -> None:
    lines: list[dict[str, Any]] = []
    app = create_app(serving, log=lines.append)
    own = call(app, "POST", "/v1/recommend", json={}, headers={"x-request-id": "abc-1"})
    assert own.headers["x-request-id"] == "abc-1"
    made = call(app, "GET", "/nowhere", headers={"x-request-id": "a\tb"})
    assert len(made.headers["x-request-id"]) == 32
    large = call(app, "POST", "/v1/recommend", content=b" " * (MAX_BODY + 1))
    assert [(x["method"], x["path"], x["status"]) for x in lines] == [
        ("POST", "/v1/recommend", 200), ("GET", "/nowhere", 404), ("POST", "/v1/recommend", 413)
    ]  # fmt: skip
    assert [x["id"] for x in lines] == [r.headers["x-request-id"] for r in (own, made, large)]
    assert all(x["ms"] > 0 for x in lines)


def test_a_body_that_stops_on_its_way_leaves_its_place_to_others(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.2)
    app = create_app(serving, at_once=2)
    scope = {"type": "http", "method": "POST", "path": "/v1/recommend", "headers": [], "query_string": b""}

    async def half() -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        parts = [{"type": "http.request", "body": b'{"k"', "more_body": True}]

        async def receive() -> dict[str, Any]:
            return parts.pop() if parts else await asyncio.get_running_loop().create_future()

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await app(dict(scope), receive, send)
        return sent

    async def all_of_them() -> list[list[dict[str, Any]]]:
        return await asyncio.wait_for(asyncio.gather(half(), half()), 20)

    for start, body in asyncio.run(all_of_them()):
        assert (start["status"], dict(start["headers"])[b"connection"]) == (408, b"close")
        assert json.loads(body["body"])["error"]["message"] == "the body did not come within 0.2 s"
    assert call(app, "POST", "/v1/recommend", json={}).status_code == 200


def test_too_many_requests_at_once_are_told_to_come_back(serving: Serving) -> None:
    app = create_app(serving, at_once=2)

    async def send() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            calls = [client.post("/v1/recommend", json={}) for _ in range(8)]
            return await asyncio.gather(*calls, client.get("/health/live"))

    *answers, health = asyncio.run(send())
    codes = [response.status_code for response in answers]
    assert set(codes) == {200, 429}
    assert all(r.headers["retry-after"] == "1" for r in answers if r.status_code == 429)
    assert health.status_code == 200
    assert call(app, "POST", "/v1/recommend", json={}).status_code == 200
