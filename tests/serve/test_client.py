"""The client against a real server: the answers of the recommender, errors in words, busy and absent servers."""

from __future__ import annotations

import dataclasses
import http.server
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn

from falconet.client import Client
from falconet.errors import ConfigError, DataError, ServiceError
from falconet.serve.events import Event
from falconet.serve.http.app import create_app
from falconet.serve.recommender import Recommender
from falconet.serve.serving import Serving
from serving_world import World


@pytest.fixture
def client(recommender: Recommender) -> Iterator[Client]:
    config = uvicorn.Config(create_app(Serving(recommender), token="t"), port=0, log_level="error")  # noqa: S106
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    with Client(f"http://127.0.0.1:{port}/", token="t") as client:  # noqa: S106
        yield client
    server.should_exit = True
    thread.join()


def test_answers_are_those_of_the_recommender(client: Client, recommender: Recommender, world: World) -> None:
    user = world.users[5]
    asked = {"k": 4, "filter": "'Drama' in genres", "exclude_ids": {world.items[1]}, "exclude_seen": ("like",)}
    here, there = recommender.recommend(user, **asked), client.recommend(user, **asked)  # type: ignore[arg-type]
    same = {"recommendation_id": "", "took_ms": {}}
    assert dataclasses.replace(there, **same) == dataclasses.replace(here, **same)  # type: ignore[arg-type]
    page = client.next(there.recommendation_id, 2)
    assert not {item.item_id for item in there.items} & {item.item_id for item in page.items}
    batch = client.recommend_batch([{"user_id": user, "k": 2}, {"history": world.items[:2]}])
    assert [len(one.items) for one in batch] == [2, 10]
    assert client.rank(world.items[:3], user).items == recommender.rank(world.items[:3], user).items
    assert client.similar(world.items[0], 3) == recommender.similar(world.items[0], 3)
    assert client.search_items("Film 1", 3) == recommender.search_items("Film 1", 3)
    assert client.count("title == $t", {"t": "Film 06 (1966)"}) == 1
    assert client.version()["bundle"] == recommender.bundle.name


def test_events_items_people_and_bundles_change(client: Client, recommender: Recommender, world: World) -> None:
    event = Event(event_id="e", session_id="a/b c", item_id=world.items[0], type="like")
    assert client.add_events([event, event]) == ["accepted", "duplicate"]
    assert client.recommend(session_id="a/b c").history[-1].type == "like"
    assert client.forget(session_id="a/b c") == 1
    client.put_item(world.items[1], hidden=True)
    assert client.rank(world.items[1:2]).items == []
    client.put_item(world.items[1])
    assert len(client.rank(world.items[1:2]).items) == 1
    assert client.forget(world.users[5]) == 0
    assert client.reload() == recommender.bundle.name


def test_errors_say_what_the_server_says(client: Client) -> None:
    with pytest.raises(
        DataError, match=r"gave 422: filter, character 1: items have no column `x`(?s:.*)hint: available"
    ):
        client.recommend(filter="x == 1")
    with pytest.raises(DataError, match="gave 404: no item '5'"):
        client.similar(5)
    with (
        Client(client.url) as stranger,
        pytest.raises(ServiceError, match=r"gave 401: .*the token is missing or wrong"),
    ):
        stranger.put_item(1, hidden=True)
    with pytest.raises(ConfigError, match="one of `user_id` and `session_id`"):
        client.forget()
    with pytest.raises(ConfigError, match="`localhost:8000` is no address"):
        Client("localhost:8000")


def test_a_server_that_is_not_there_is_an_error_with_a_hint() -> None:
    with pytest.raises(ServiceError, match=r"cannot be reached(?s:.*)hint: is `falconet serve` running"):
        Client("http://127.0.0.1:9", timeout=1).recommend()


def test_a_busy_server_is_asked_again_and_what_is_no_json_is_shown() -> None:
    answers = [(429, b"{}"), (200, b'{"falconet": "1"}'), (502, b"<html>")]

    class Busy(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.pop(0)
            self.send_response(status)
            self.send_header("retry-after", "0")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = Client(f"http://127.0.0.1:{server.server_port}")
        assert client.version() == {"falconet": "1"}
        with pytest.raises(ServiceError, match="gave 502 and no JSON: b'<html>'"):
            client.version()
        client.close()
        server.shutdown()


def test_a_client_needs_no_torch() -> None:
    program = "import sys, falconet.client; print('torch' in sys.modules, 'polars' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
