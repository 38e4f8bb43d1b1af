"""`falconet serve` and `falconet recommend`: processes, ports, signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from falconet.cli.recommend import recommend
from falconet.cli.serve import serve
from falconet.errors import ArtifactError, ConfigError
from falconet.serve.deeds import Deeds
from falconet.serve.events import Event, Who
from falconet.serve.stores.sqlite import SqliteStore
from serving_world import World, make_world

SERVE = """
import sys
import time
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
    assert Deeds(store, Who("session", "s"), 9).history(9) == [(item, "like")]
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


WORKERS = SERVE.replace("port=0,", "port=0, workers=2, token='t',").replace("quiet=True", "quiet=False")


def workers_of(process: subprocess.Popen[str]) -> set[int]:
    """The processes that it started to answer."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            if parent == process.pid and b"spawn_main" in (status.parent / "cmdline").read_bytes():
                found.add(int(status.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@pytest.fixture(scope="module")
def world_copy(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("served"))


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc")
def test_workers_share_events_and_one_that_dies_is_started_again(world_copy: World, tmp_path: Path) -> None:
    world, script, own = world_copy, tmp_path / "script.py", tmp_path / "own_models.py"
    own.write_text("import os\nwith open(__file__ + '.loaded', 'a') as f:\n    f.write(f'{os.getpid()}\\n')\n")
    begin = (
        f"if __name__ == '__main__':\n    from falconet.plugins import load_modules\n    load_modules([{str(own)!r}])\n"
    )
    script.write_text(WORKERS.replace("serve(Path", begin + "    serve(Path"))
    command = [sys.executable, "-W", "error", str(script), str(world.bundle), str(tmp_path / "events.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = address_of(process)
            first = workers_of(process)
            assert len(first) == 2
            assert set(map(int, Path(f"{own}.loaded").read_text().split())) == {process.pid, *first}
            item = world.items[9]
            event = {"event_id": "e", "session_id": "s", "item_id": item, "type": "like"}
            assert post(address, "/v1/events", {"events": [event]})["accepted"] == 1
            victim = min(first)
            os.kill(victim, signal.SIGKILL)
            end = time.monotonic() + 60
            while len(now := workers_of(process)) < 2 or victim in now:
                assert time.monotonic() < end
                time.sleep(0.02)
            assert first - {victim} < now
            for _ in range(10):
                answer = post(address, "/v1/recommend", {"session_id": "s", "k": 40})
                assert [met["item_id"] for met in answer["history"]] == [item]
            with httpx.Client(trust_env=False, timeout=30, headers={"authorization": "Bearer t"}) as client:
                refused = client.post(address + "/v1/admin/reload", json={"bundle": "other"})
                assert refused.status_code == 422
                assert "several workers" in refused.json()["error"]["message"]
                assert client.post(address + "/v1/admin/reload", json={}).status_code == 200
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=30)
            assert process.returncode == 0
            assert f"worker {victim} ended (signal 9): another takes its place" in said
            assert "with 2 workers" in said
            assert "Traceback" not in said
        finally:
            process.kill()
    assert not any(alive(pid) for pid in now)


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc")
def test_workers_end_with_the_process_that_started_them_and_one_that_cannot_start_ends_all(
    world_copy: World, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(WORKERS.replace("serve(Path", "if __name__ == '__main__':\n    serve(Path"))
    command = [sys.executable, str(script), str(world_copy.bundle), str(tmp_path / "events.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        address_of(process)
        now = workers_of(process)
        assert len(now) == 2
        process.kill()
    end = time.monotonic() + 30
    while any(alive(pid) for pid in now):
        assert time.monotonic() < end
        time.sleep(0.05)
    command[2] = str(tmp_path / "nothing")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "error: " in done.stderr
    assert "nothing" in done.stderr
    assert "Traceback" not in done.stderr


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
