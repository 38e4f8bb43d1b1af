"""The line between the processes of one machine: each sends the others a message, in the thread that computes.

torch.distributed hands messages to a thread of its own. Where each process has a core to itself that thread is woken
against the one that computes, and a small message waits milliseconds for its turn. Here it takes two calls of the
system, on Unix sockets, and a process that has ended is noticed at once.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import struct
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext

from falconet.errors import DistributedError

HEAD = 64  # bytes before a message
_FIELDS = struct.Struct("=QQ48s")  # of them: the number of the meeting, the bytes of the message, what it is
_MOST = 8  # processes, of which each has a socket to every other one
_ROOM = 1 << 20  # bytes that wait in a socket while the others still compute
_WORD = struct.Struct("=qqq")  # what a process says that connects: who it is, and what only its group knows
_PATIENCE = 5.0  # seconds for that
_LOOK = 3600.0  # seconds that are waited for at once

Share = Callable[[Sequence[int]], Sequence[Sequence[int]]]
"""Gives every process's numbers, by rank."""


class LeftAloneError(DistributedError):
    """Another process has gone."""


class Line:
    """Sockets to all other processes, by rank, which call `meet` alike and in the same order."""

    def __init__(self, rank: int, sockets: Mapping[int, socket.socket], timeout_s: float) -> None:
        self._rank, self.world, self._timeout = rank, len(sockets) + 1, timeout_s
        self._sockets, self._met, self._is_open = dict(sockets), 0, True
        for one in sockets.values():
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
        _open.add(self)

    def close(self) -> None:
        """Hang up, which the others notice."""
        self._is_open = False
        for one in self._sockets.values():
            one.close()

    def meet(self, mine: memoryview, what: str) -> dict[int, bytearray]:
        """The other processes' messages by rank, each behind `HEAD` bytes; all are as long as `mine`.

        Nobody goes on before all have come. `what` the message is, in up to 48 bytes, is the same on all. Raises
        LeftAloneError where a process has gone, DistributedError where one is late or sends something else; after
        that, or an interruption, the line is closed.
        """
        try:
            if not self._is_open:
                raise DistributedError(
                    f"process {self._rank} of {self.world} cannot meet the others: an earlier meeting failed",
                    hint="start all processes again",
                )
            return self._meet(mine, what)
        except BaseException:  # what was sent of a message cannot be taken back
            self.close()
            raise

    def _meet(self, mine: memoryview, what: str) -> dict[int, bytearray]:
        self._met += 1
        head = _FIELDS.pack(self._met, len(mine), what.encode())
        letters = {rank: _Letter(one, head, mine) for rank, one in self._sockets.items()}
        for letter in letters.values():  # to all before any answer is looked at, which may end this
            letter.send()
        left, deadline = dict(letters), time.monotonic() + self._timeout
        while True:
            for rank, letter in list(left.items()):
                letter.send()
                letter.receive()
                if letter.their_head not in (None, head):
                    raise self._parted(rank, head, letter.their_head)
                if letter.is_cut:
                    raise self._gone(rank, what)
                if letter.is_done:
                    del left[rank]
            if not left:
                return {rank: letter.found for rank, letter in letters.items()}
            if (seconds := deadline - time.monotonic()) <= 0:
                raise self._late(left, what)
            _wait(left.values(), min(seconds, _LOOK))

    def _gone(self, rank: int, what: str) -> LeftAloneError:
        return LeftAloneError(
            f"process {rank} of {self.world} has gone, and process {self._rank} waited for its {what}",
            hint="its own message, or its exit code, says why",
        )

    def _late(self, ranks: Iterable[int], what: str) -> DistributedError:
        names = ", ".join(map(str, ranks))
        return DistributedError(
            f"process {self._rank} of {self.world} waited {self._timeout:g} s for the {what} of process {names}",
            hint="it hangs, or does more than the others; `Runtime.start(timeout_s=...)` says how long to wait",
        )

    def _parted(self, rank: int, head: bytes, their_head: bytes | None) -> DistributedError:
        mine, theirs = _in_words(head), _in_words(their_head or b"")
        return DistributedError(
            f"processes have parted: process {self._rank} of {self.world} has {mine}, process {rank} {theirs}",
            hint="every process has to call what all do together, in the same order and with tensors of one shape",
        )


class _Letter:
    """A message to one process, and the one from it."""

    def __init__(self, to: socket.socket, head: bytes, mine: memoryview) -> None:
        self.socket = to
        self.left: list[memoryview] = [memoryview(head), mine]  # to send
        self.found = bytearray(HEAD + len(mine))
        self.got = 0
        self.is_cut = False

    def send(self) -> None:
        """What can be sent now."""
        if self.left and not self.is_cut:
            try:
                n = self.socket.sendmsg(self.left)
            except BlockingIOError:
                return
            except ConnectionError:
                self.is_cut = True
                return
            while self.left and n >= len(self.left[0]):
                n -= len(self.left.pop(0))
            if n:
                self.left[0] = self.left[0][n:]

    def receive(self) -> None:
        """What is there now: also of one that has gone, whose last words may say more."""
        while self.got < len(self.found):
            try:
                n = self.socket.recv_into(memoryview(self.found)[self.got :])
            except BlockingIOError:
                return
            except ConnectionError:
                n = 0
            if not n:
                self.is_cut = True
                return
            self.got += n

    @property
    def their_head(self) -> bytes | None:
        """That of the message that is coming, once it has."""
        return bytes(self.found[:HEAD]) if self.got >= HEAD else None

    @property
    def is_done(self) -> bool:
        return not self.left and self.got == len(self.found)


def _wait(letters: Iterable[_Letter], seconds: float) -> None:
    """Until one of them can go on; signals are heeded meanwhile."""
    waiting = select.poll()
    for letter in letters:
        gets = select.POLLIN if letter.got < len(letter.found) else 0
        waiting.register(letter.socket, gets | (select.POLLOUT if letter.left else 0))
    waiting.poll(seconds * 1000)


def _in_words(head: bytes) -> str:
    number, size, what = _FIELDS.unpack(head)
    return f"a {what.rstrip(bytes(1)).decode(errors='replace')} ({size:,} bytes, call {number:,})"


def connect(rank: int, world: int, timeout_s: float, share: Share) -> Line | None:
    """The line of all processes, which call it together; None where any of them cannot reach another one in this way,
    or they are too many. `timeout_s`: how long to wait for each other at every meeting."""
    if world > _MOST or sys.platform != "linux":
        return None
    sockets: dict[int, socket.socket] = {}
    name, word = secrets.randbits(62), (secrets.randbits(62), secrets.randbits(62))
    listener = _listening(name, world)
    with nullcontext() if listener is None else listener:
        names = share([-1 if listener is None else name, *word])
        try:
            for other in range(rank):
                sockets[other] = _call(rank, *names[other])
            called = int(listener is not None)
        except OSError:
            called = 0
        have_called = all(some[0] for some in share([called]))
        if listener is not None and have_called:  # all calls wait at the listeners now
            listener.settimeout(_PATIENCE)
            try:
                while len(sockets) < world - 1:
                    _answer(listener, word, sockets)
            except OSError:
                called = 0
            if all(some[0] for some in share([called])):
                return Line(rank, dict(sorted(sockets.items())), timeout_s)
    for one in sockets.values():
        one.close()
    return None


def _address(name: int) -> bytes:
    """Without a file: it is gone with the socket."""
    return b"\0falconet-%016x" % name


def _listening(name: int, world: int) -> socket.socket | None:
    """Where the others can call; None where the system gives no socket for that."""
    try:
        one = socket.socket(socket.AF_UNIX)
    except OSError:
        return None
    try:
        one.bind(_address(name))
        one.listen(world)
    except OSError:
        one.close()
        return None
    return one


def _call(rank: int, name: int, *word: int) -> socket.socket:
    if name < 0:
        raise OSError("nobody listens")
    one = socket.socket(socket.AF_UNIX)
    try:
        one.settimeout(_PATIENCE)
        one.connect(_address(name))
        one.sendall(_WORD.pack(rank, *word))
    except OSError:
        one.close()
        raise
    return one


def _answer(listener: socket.socket, word: tuple[int, int], sockets: dict[int, socket.socket]) -> None:
    """Take the next call, if it is one of this group: anybody on this machine may call."""
    one, _ = listener.accept()
    one.settimeout(_PATIENCE)
    try:
        other, *said = _WORD.unpack(one.recv(_WORD.size, socket.MSG_WAITALL))
    except (OSError, struct.error):
        said, other = [], -1
    if tuple(said) == word and other not in sockets:
        sockets[other] = one
    else:
        one.close()


_open: weakref.WeakSet[Line] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """In a forked process: what it holds of the sockets would hide the end of this one from the others."""
    for line in list(_open):
        line.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
