"""The line between processes of one machine, here between threads; and with real processes in test_collective.py."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from falconet.errors import DistributedError
from falconet.nn import line as lines
from falconet.nn.line import HEAD, LeftAloneError, Line, connect

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes meet by torch.distributed alone"),
    pytest.mark.timeout(60),
]


MADE: list[Line] = []


@pytest.fixture(autouse=True)
def no_traces() -> Iterator[None]:
    """Lines are closed after each test, and then no socket is left."""
    before = open_sockets()
    yield
    while MADE:
        MADE.pop().close()
    assert open_sockets() == before


def together(acts: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each gives, or its error."""

    def run(act: Callable[[], Any]) -> Any:
        try:
            return act()
        except Exception as error:  # noqa: BLE001 - whatever it is
            return error

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(run, acts))


class Round:
    """`share` among threads."""

    def __init__(self, world: int) -> None:
        self.told: list[Sequence[int]] = [()] * world
        self.barrier = threading.Barrier(world, timeout=30)

    def of(self, rank: int) -> Callable[[Sequence[int]], list[Sequence[int]]]:
        def share(numbers: Sequence[int]) -> list[Sequence[int]]:
            self.told[rank] = numbers
            self.barrier.wait()
            found = list(self.told)
            self.barrier.wait()
            return found

        return share


def connected(world: int, timeout_s: float = 20.0) -> list[Line | None]:
    told = Round(world)
    found = together([lambda r=r: connect(r, world, timeout_s, told.of(r)) for r in range(world)])  # type: ignore[misc]
    assert not [x for x in found if isinstance(x, Exception)], found
    return found


def opened(world: int, timeout_s: float = 20.0) -> list[Line]:
    found = [x for x in connected(world, timeout_s) if x is not None]
    MADE.extend(found)
    assert len(found) == world
    return found


def meet(line: Line, message: bytes, what: str = "sum") -> dict[int, bytes]:
    return {rank: bytes(x[HEAD:]) for rank, x in line.meet(memoryview(message), what).items()}


def open_sockets() -> int:
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this listing itself
            found += str(link.readlink()).startswith("socket:")
    return found


@pytest.mark.parametrize("world", [2, 3, 4])
def test_every_process_gets_every_message_of_any_size(world: int) -> None:
    group = opened(world)
    sizes = [0, 1, 8, 1000, 64, 70_000, 3 << 20, 0, 5]

    def talk(line: Line, rank: int) -> list[dict[int, bytes]]:
        found = []
        for i, size in enumerate(sizes):
            if (i + rank) % 3 == 0:
                time.sleep(0.01)  # it is late
            found.append(meet(line, bytes([rank + 1]) * size))
        return found

    found = together([lambda r=r: talk(group[r], r) for r in range(world)])  # type: ignore[misc]
    for rank in range(world):
        others = [r for r in range(world) if r != rank]
        assert found[rank] == [{r: bytes([r + 1]) * size for r in others} for size in sizes]


def test_nobody_goes_on_before_all_have_come() -> None:
    group, came = opened(3), []

    def come(rank: int) -> list[int]:
        time.sleep(0.1 * rank)
        came.append(rank)
        meet(group[rank], b"")
        return list(came)

    assert together([lambda r=r: come(r) for r in range(3)]) == [[0, 1, 2]] * 3  # type: ignore[misc]


@pytest.mark.parametrize("world", [2, 4])
def test_the_others_are_told_at_once_who_has_gone(world: int) -> None:
    group = opened(world)
    gone = world - 1

    def wait(rank: int) -> None:
        if rank == gone:
            time.sleep(0.2)
            group[rank].close()
        else:
            meet(group[rank], b"abc", "sum of 3 uint8")

    start = time.monotonic()
    errors = together([lambda r=r: wait(r) for r in range(world)])  # type: ignore[misc]
    assert time.monotonic() - start < 5
    for rank in range(gone):
        assert isinstance(errors[rank], LeftAloneError)
        expected = f"process {gone} of {world} has gone, and process {rank} waited for its sum of 3 uint8"
        assert errors[rank].args[0] == expected


@pytest.mark.parametrize("sent", [10, HEAD, HEAD + 2])
def test_a_process_that_goes_in_the_middle_of_a_message_has_gone(sent: int) -> None:
    group = opened(2)
    head = lines._FIELDS.pack(1, 4, b"sum")
    group[1]._sockets[0].send((head + b"abcd")[:sent])
    group[1].close()
    with pytest.raises(LeftAloneError, match="process 1 of 2 has gone"):
        meet(group[0], b"abcd")


def test_the_last_message_of_a_process_that_is_done_arrives() -> None:
    group = opened(2)

    def last() -> dict[int, bytes]:
        found = meet(group[1], b"b")
        group[1].close()
        return found

    def slow() -> dict[int, bytes]:
        group[0]._sockets[1].sendmsg([lines._FIELDS.pack(1, 1, b"sum"), b"a"])
        time.sleep(0.2)  # the other one has gone by now
        letter = lines._Letter(group[0]._sockets[1], b"", memoryview(b"a"))
        letter.left.clear()
        letter.receive()
        return {1: bytes(letter.found[HEAD:])}

    assert together([slow, last]) == [{1: b"b"}, {0: b"a"}]


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (("gather", b"abcd"), r"process 0 of 2 has a sum \(4 bytes, call 1\), process 1 a gather \(4 bytes, call 1\)"),
        (("sum", b"abcdefgh"), r"process 1 a sum \(8 bytes, call 1\)"),
        (("sum", b"a"), r"process 1 a sum \(1 bytes, call 1\)"),
        (("sum", b"x" * (3 << 20)), r"process 1 a sum \(3,145,728 bytes, call 1\)"),
    ],
)
def test_calls_that_differ_are_an_error_on_both(theirs: tuple[str, bytes], message: str) -> None:
    group = opened(2)
    errors = together([lambda: meet(group[0], b"abcd"), lambda: meet(group[1], theirs[1], theirs[0])])
    with pytest.raises(DistributedError, match=message):
        raise errors[0]
    assert isinstance(errors[1], DistributedError)
    assert "processes have parted: process 1 of 2 has a" in str(errors[1])
    with pytest.raises(DistributedError, match="process 0 of 2 cannot meet the others: an earlier meeting failed"):
        meet(group[0], b"abcd")


def test_a_process_that_missed_a_call_is_found_out() -> None:
    group = opened(3)
    together([lambda r=r: meet(group[r], b"a") for r in range(3)])  # type: ignore[misc]
    group[2]._met += 1  # as if it had been at one more
    errors = together([lambda r=r: meet(group[r], b"a") for r in range(3)])  # type: ignore[misc]
    assert all("processes have parted" in str(error) for error in errors)


def test_a_process_that_does_not_come_in_time_is_named() -> None:
    group = opened(3, timeout_s=0.3)
    start = time.monotonic()
    first, second = together([lambda: meet(group[0], b"a"), lambda: meet(group[1], b"a")])
    assert 0.3 <= time.monotonic() - start < 5
    for rank, error in enumerate((first, second)):
        assert isinstance(error, DistributedError)
        late = f"process {rank} of 3 waited 0.3 s for the sum of process 2"
        has_gone = f"process {1 - rank} of 3 has gone"  # whose time was up first
        assert str(error).startswith((late, has_gone))
    assert any("waited 0.3 s for the sum of process 2" in str(error) for error in (first, second))


def test_signals_are_heeded_in_a_meeting_which_then_goes_on() -> None:
    group, heard = opened(2), []

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(number)

    before = signal.signal(signal.SIGALRM, hear)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    other = threading.Timer(0.5, lambda: meet(group[1], b"b"))
    other.start()
    try:
        assert meet(group[0], b"a") == {1: b"b"}
        assert len(heard) >= 2
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        other.join()


def test_an_interrupted_meeting_is_over_for_all() -> None:
    group = opened(2)

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            meet(group[0], b"a")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(DistributedError, match="an earlier meeting failed"):
        meet(group[0], b"a")
    with pytest.raises(LeftAloneError, match="process 0 of 2 has gone"):
        meet(group[1], b"b")


@pytest.mark.parametrize("refused", ["__init__", "bind", "connect", "accept"])
def test_where_one_cannot_be_reached_nobody_has_a_line(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, guard = [0], threading.Lock()

    does = getattr(socket.socket, refused)

    class Refuses(socket.socket):
        pass

    def refuse(self: socket.socket, *given: object) -> Any:
        with guard:
            calls[0] += 1
            first = calls[0] == 1
        if first:
            raise OSError(24, "Too many open files")
        return does(self, *given)

    setattr(Refuses, refused, refuse)
    monkeypatch.setattr("falconet.nn.line.socket.socket", Refuses)
    assert connected(3) == [None] * 3
    assert calls[0] >= 1


def test_too_many_processes_have_none() -> None:
    assert connect(0, 9, 1.0, lambda numbers: [numbers] * 9) is None


def test_strangers_who_call_are_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody on the machine may call: who does not know the word of the group is not one of it."""
    monkeypatch.setattr(lines, "_PATIENCE", 1.0)
    word = (5, 6)
    name = 4242424242
    listener = lines._listening(name, 8)
    assert listener is not None
    with listener:
        listener.settimeout(5)
        callers = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        for caller in callers:
            caller.connect(lines._address(name))
        callers[0].close()  # without a word
        callers[1].sendall(lines._WORD.pack(1, 5, 7))
        callers[3].sendall(lines._WORD.pack(1, 5, 6))  # the second one says nothing
        sockets: dict[int, socket.socket] = {}
        for _ in range(4):
            lines._answer(listener, word, sockets)
        assert list(sockets) == [1]
        assert callers[1].recv(1) == b""
        assert callers[2].recv(1) == b""
        for one in (*callers, *sockets.values()):
            one.close()


def test_a_forked_process_does_not_hide_the_end_of_the_one_it_came_from() -> None:
    group = opened(2)
    child = os.fork()
    if child == 0:  # holds no socket of the line
        time.sleep(20)
        os._exit(0)
    try:
        group[1].close()
        start = time.monotonic()
        with pytest.raises(LeftAloneError):
            meet(group[0], b"a")
        assert time.monotonic() - start < 5
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
