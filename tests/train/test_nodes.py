"""Processes and launchers find each other, and agree. All in one process, in threads: nothing here is slow."""

from __future__ import annotations

import gc
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import pytest

from falconet.errors import ConfigError, DistributedError
from falconet.train import meeting as meeting_module
from falconet.train import nodes as nodes_module
from falconet.train.meeting import find, hold, interface_to, within
from falconet.train.nodes import Council, Ending, Nodes, cause
from falconet.train.place import Meeting

T = TypeVar("T")
SOON = timedelta(seconds=20)


@contextmanager
def taken() -> Iterator[int]:
    """A port that somebody who never answers listens at; those after it are free as far as one can tell."""
    with socket.socket() as listening:
        listening.bind(("", 0))
        listening.listen()
        yield listening.getsockname()[1]
    for thread in threading.enumerate():  # those who still wait here for an answer: torch prints that there is none
        if thread.name == "falconet store":
            thread.join(20)


def together(*acts: Callable[[], T]) -> list[T]:
    """What the acts gave, done at the same time. Raises what the first of them raised."""
    found: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(i: int) -> None:
        try:
            found[i] = acts[i]()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    return [found[i] for i in range(len(acts))]


def test_a_taken_port_is_passed_over_by_all_who_know_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting_module, "_PATIENCE", timedelta(seconds=0.5))
    with taken() as port:
        place = Meeting("127.0.0.1", port, job="mpirun 7")
        ours, theirs = together(lambda: hold(place, SOON), lambda: find(place, SOON))
    assert port < ours.port == theirs.port <= port + 15


def test_two_jobs_at_one_port_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting_module, "_PATIENCE", timedelta(seconds=0.5))
    with taken() as port:
        one, other = (Meeting("127.0.0.1", port, job=f"mpirun {i}") for i in "12")
        first, second = hold(one, SOON), hold(other, SOON)
        assert first.port != second.port
        assert find(other, SOON).port == second.port
        assert find(one, SOON).port == first.port


def test_a_port_that_was_asked_for_and_is_taken_is_named() -> None:
    with taken() as port, pytest.raises(ConfigError, match=rf"port {port} is taken on this machine(?s:.*)MASTER_PORT"):
        hold(Meeting("127.0.0.1", port), SOON)


def test_nobody_at_the_meeting_is_an_error_that_says_where() -> None:
    with socket.socket() as closed:  # bound, so that nobody else takes it, but not listening
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with pytest.raises(DistributedError, match=rf"nobody of this job was met at 127.0.0.1:{port} within 1 s: "):
            find(Meeting("127.0.0.1", port), timedelta(seconds=1))


def until(asked: Callable[[], T]) -> T:
    """What an act gives once it gives something: word travels through a server, in its own time."""
    deadline = time.monotonic() + 20
    while not (answer := asked()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return answer


def councils(timeout_s: float = 60.0) -> list[Council]:
    with taken() as port:
        place = Meeting("127.0.0.1", port, job=f"council {port}")
        return together(*(lambda rank=i: Council(Nodes(2, rank, place, timeout_s), 2) for i in range(2)))  # type: ignore[misc]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting_module, "_PATIENCE", timedelta(seconds=0.5))
    monkeypatch.setattr(nodes_module, "_FAREWELL", 0.5)


@pytest.mark.usefixtures("quick")
def test_launchers_hear_of_a_failure_and_of_its_cause() -> None:
    first, second = councils()
    assert not first.over(0)
    second.call_off(0)
    assert until(lambda: first.over(0))
    assert not first.over(1)
    fails = Ending("failed", rank=3, what="ValueError: enough", trace="Traceback ...")
    second.say(0, fails)
    assert second.endings(0, fails) is None
    cut = Ending("cut")
    first.say(0, cut)
    assert until(lambda: first.endings(0, cut)) == [cut, Ending("failed", rank=3, what="ValueError: enough")]
    assert cause(until(lambda: second.endings(0, fails)) or []) == fails
    together(first.leave, second.leave)


@pytest.mark.usefixtures("quick")
def test_all_processes_of_an_attempt_meet_at_one_port_and_not_where_those_before_did() -> None:
    first, second = councils()
    ports = [together(lambda n=n: first.begin(n), lambda n=n: second.begin(n)) for n in range(3)]  # type: ignore[misc]
    assert [a == b for a, b in ports] == [True] * 3
    assert len({a for a, _ in ports}) == 3
    together(first.leave, second.leave)


@pytest.mark.usefixtures("quick")
def test_a_launcher_that_falls_silent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = councils(timeout_s=0.3)
    with pytest.raises(DistributedError, match=r"node 1 of 2 is gone: its launcher has been silent for 0 s"):
        while not first.over(0):
            pass
    monkeypatch.setattr(nodes_module, "_FAREWELL", 60)
    start = time.monotonic()
    first.leave()  # does not wait for it
    assert time.monotonic() - start < 5
    assert second.nodes.rank == 1


@pytest.mark.usefixtures("quick")
def test_node_0_that_is_gone_is_named_and_torch_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    first, second = councils()
    capfd.readouterr()
    del first
    gc.collect()  # and with it its store
    with pytest.raises(
        DistributedError, match=r"node 0 of 2 is gone: its launcher has ended(?s:.*)start all launchers"
    ):
        while not second.over(0):
            pass
    second.call_off(0)
    second.say(0, Ending("cut"))
    second.leave()
    assert capfd.readouterr().err == ""


class Deaf:
    """A store on a machine whose cable was cut."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: time.sleep(5)


@pytest.mark.usefixtures("quick")
def test_a_machine_that_does_not_answer_is_waited_for_once() -> None:
    first, second = councils(timeout_s=1.0)
    second.store = Deaf()  # type: ignore[assignment]
    with pytest.raises(DistributedError, match=r"node 0 of 2 is gone: no answer in 1 s"):
        second.over(0)
    start = time.monotonic()
    second.call_off(0)
    second.say(0, Ending("cut"))
    second.leave()
    assert time.monotonic() - start < 0.5
    assert first.nodes.rank == 0


def test_a_store_that_does_not_answer_is_not_waited_for() -> None:
    with pytest.raises(TimeoutError, match="no answer in 0 s"):
        within(0.1, lambda: time.sleep(1))
    with pytest.raises(RuntimeError, match="Broken pipe"):
        within(10, lambda: _raise(RuntimeError("Broken pipe")))


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.skipif(sys.platform != "linux", reason="asked of Linux's kernel")
def test_the_interface_to_another_machine() -> None:
    assert interface_to("127.0.0.1") == "lo"
    assert interface_to("no.such.machine.invalid") is None


def test_launchers_that_were_started_differently_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting_module, "_PATIENCE", timedelta(seconds=0.5))
    with taken() as port:
        place = Meeting("127.0.0.1", port, job="differ")
        node0 = Council(Nodes(2, 0, place), 2)
        with pytest.raises(ConfigError, match="node 1 has --nnodes 2 -np 3, node 0 has --nnodes 2 -np 2"):
            Council(Nodes(2, 1, place), 3)
        with pytest.raises(ConfigError, match="two launchers say they are node 1"):
            Council(Nodes(2, 1, place), 2)
    assert node0.begin(0) != port


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((Ending("done"), Ending("done")), "done"),
        ((Ending("failed", 0, follows=True), Ending("failed", 1)), "failed"),
        ((Ending("failed", 0, follows=True), Ending("stopped")), "stopped"),
        ((Ending("done"), Ending("cut"), Ending("failed", 2)), "failed"),
    ],
)
def test_the_cause_is_what_follows_from_nothing_else(kinds: tuple[Ending, ...], expected: str) -> None:
    found = cause(list(kinds))
    assert (found.kind, found.follows) == (expected, False)
