"""`falconet serve` and `falconet recommend`: processes, ports, signals."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from falconet.cli.recommend import recommend
from falconet.cli.serve import serve
from falconet.errors import ArtifactError, ConfigError
from falconet.serve.events import Event, Who
from falconet.serve.stores.sqlite import SqliteStore
from serving_world import World

SERVE = """
import sys
from pathlib import Path
from falconet.cli.serve import serve
serve(Path(sys.argv[1]), port=0, db=Path(sys.argv[2]), quiet=True)
"""


@contextmanager
def server(bundle: Path, db: Path) -> Iterator[subprocess.Popen[str]]:
    """A server in a process of its own, which may still be starting."""
    command = [sys.executable, "-W", "error", "-c", SERVE, str(bundle), str(db)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def address_of(process: subprocess.Popen[str]) -> str:
    """Where a server is, once it says so."""
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    if not address:
        pytest.fail(process.communicate(timeout=10)[1])
    return address


def post(address: str, path: str, body: dict[str, object]) -> dict[str, object]:
    with httpx.Client(trust_env=False, timeout=30) as client:
        content: dict[str, object] = client.post(address + path, json=body).raise_for_status().json()
        return content


def test_a_write_to_one_process_is_read_in_another_and_outlives_both(world: World, tmp_path: Path) -> None:
    item, request = world.items[9], {"session_id": "s", "k": 40}
    event = {"event_id": "e", "session_id": "s", "item_id": item, "type": "like"}
    with ExitStack() as stack:
        servers = [stack.enter_context(server(world.bundle, tmp_path / "events.db")) for _ in range(2)]
        one, two = map(address_of, servers)
        for turn in range(3):
            assert post(one, "/v1/events", {"events": [{**event, "event_id": f"e{turn}"}]})["accepted"] == 1
            answer = post(two, "/v1/recommend", request)
            assert item not in [found["item_id"] for found in answer["items"]]  # type: ignore[attr-defined, index]
            assert answer["history"] == [{"item_id": item, "title": "Film 09 (1969)", "type": "like"}]
        for process, number in zip(servers, (signal.SIGINT, signal.SIGTERM), strict=True):
            process.send_signal(number)
            _, errors = process.communicate(timeout=30)
            assert (process.returncode, errors) == (0, "")
    store = SqliteStore(tmp_path / "events.db")
    assert store.history(Who("session", "s"), 9) == [(item, "like")]
    store.close()


def test_a_port_in_use_is_an_error_that_names_a_free_one(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "falconet", "serve", str(world.bundle), "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: port {port} of 127.0.0.1 is in use by another program\n\nhint: --port ")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_host_that_is_none_and_a_bundle_that_is_none_are_errors(world: World, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`--host no\.such\.host\.invalid` is no address"):
        serve(world.bundle, host="no.such.host.invalid", port=0)
    with pytest.raises(ArtifactError, match=r"no bundle at `.*none`"):
        serve(tmp_path / "none", port=0)


def test_recommend_prints_a_table_and_with_json_the_same_as_json(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    user = str(world.users[5])
    recommend(world.bundle, user=user, k=3)
    table = capsys.readouterr()
    recommend(world.bundle, user=user, k=3, as_json=True)
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["items"]) == 3
    assert all(item["title"] in table.out for item in answer["items"])
    assert all(str(item["item_id"]) in table.out for item in answer["items"])
    assert table.err == ""


def test_recommend_takes_a_history_or_nobody_at_all(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    history = f"{world.items[3]}, {world.items[4]}"
    recommend(world.bundle, history=history, as_json=True)
    answer = json.loads(capsys.readouterr().out)
    assert [met["item_id"] for met in answer["history"]] == world.items[3:5]
    recommend(world.bundle, user="an unknown one")
    table = capsys.readouterr().out
    assert "Popular with" in table
    assert "cold start" in table


def test_recommend_says_which_items_of_a_history_it_does_not_know(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    recommend(world.bundle, history=f"{world.items[3]},nonsense", as_json=True)
    said = capsys.readouterr()
    assert "not in the catalogue, left out: nonsense" in said.err
    assert [met["item_id"] for met in json.loads(said.out)["history"]] == [world.items[3]]


def test_recommend_takes_events_into_account(
    world: World, store: SqliteStore, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store.add_events([Event(event_id="e", user_id=world.users[5], item_id=world.items[-1], type="like")])
    recommend(world.bundle, user=str(world.users[5]), db=str(store.path), as_json=True)
    assert json.loads(capsys.readouterr().out)["history"][-1]["item_id"] == world.items[-1]
    with pytest.raises(ConfigError, match="no file of events at"):
        recommend(world.bundle, db=str(tmp_path / "none.db"))
