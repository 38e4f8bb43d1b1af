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

from serving_world import World

SERVE = """
import sys
from pathlib import Path
from falconet.cli.serve import serve
serve(Path(sys.argv[1]), port=0, db=Path(sys.argv[2]), quiet=True)
"""


@contextmanager
def server(bundle: Path, db: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of a server in a process of its own, and the process."""
    command = [sys.executable, "-W", "error", "-c", SERVE, str(bundle), str(db)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            if not address:
                pytest.fail(process.communicate(timeout=10)[1])
            yield address, process
        finally:
            process.kill()


def post(address: str, path: str, body: dict[str, object]) -> dict[str, object]:
    with httpx.Client(trust_env=False, timeout=30) as client:
        content: dict[str, object] = client.post(address + path, json=body).raise_for_status().json()
        return content


def falconet(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "falconet", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_write_to_one_process_is_read_in_another_and_outlives_both(world: World, tmp_path: Path) -> None:
    item, request = world.items[9], {"session_id": "s", "k": 40}
    event = {"event_id": "e", "session_id": "s", "item_id": item, "type": "like"}
    with ExitStack() as stack:
        servers = [stack.enter_context(server(world.bundle, tmp_path / "events.db")) for _ in range(2)]
        (one, first), (two, second) = servers
        for turn in range(3):
            assert post(one, "/v1/events", {"events": [{**event, "event_id": f"e{turn}"}]})["accepted"] == 1
            answer = post(two, "/v1/recommend", request)
            assert item not in [found["item_id"] for found in answer["items"]]  # type: ignore[attr-defined, index]
            assert answer["history"] == [{"item_id": item, "title": "Film 09 (1969)", "type": "like"}]
        first.kill()
        second.send_signal(signal.SIGTERM)
        _, errors = second.communicate(timeout=30)
        assert (second.returncode, errors) == (0, "")
    with server(world.bundle, tmp_path / "events.db") as (address, process):
        assert len(post(address, "/v1/recommend", request)["history"]) == 1  # type: ignore[arg-type]
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)
        assert process.returncode == 0


def test_a_port_in_use_is_an_error_that_names_a_free_one(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = falconet("serve", str(world.bundle), "--port", str(port))
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: port {port} of 127.0.0.1 is in use by another program\n\nhint: --port ")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_host_that_is_none_and_a_bundle_that_is_none_are_errors(world: World, tmp_path: Path) -> None:
    done = falconet("serve", str(world.bundle), "--host", "no.such.host.invalid", "--port", "0")
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, "error: `--host no.such.host.invalid` is no address")
    done = falconet("serve", str(tmp_path / "none"), "--port", "0")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: no bundle at `{tmp_path / 'none'}`")


def test_recommend_prints_a_table_and_with_json_the_same_as_json(world: World) -> None:
    user = str(world.users[5])
    table = falconet("recommend", str(world.bundle), "--user", user, "-k", "3")
    assert (table.returncode, table.stderr) == (0, "")
    plain = falconet("recommend", str(world.bundle), "--user", user, "-k", "3", "--json")
    answer = json.loads(plain.stdout)
    assert len(answer["items"]) == 3
    assert all(item["title"] in table.stdout for item in answer["items"])
    assert all(str(item["item_id"]) in table.stdout for item in answer["items"])


def test_recommend_takes_a_history_or_nobody_at_all(world: World) -> None:
    history = f"{world.items[3]}, {world.items[4]}"
    answer = json.loads(falconet("recommend", str(world.bundle), "--history", history, "--json").stdout)
    assert [met["item_id"] for met in answer["history"]] == world.items[3:5]
    done = falconet("recommend", str(world.bundle), "--user", "an unknown one")
    assert done.returncode == 0
    assert "Popular with" in done.stdout
    assert "cold start" in done.stdout
