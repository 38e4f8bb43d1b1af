"""The store in which processes find each other: one holds it at a port, the others look for it there."""

from __future__ import annotations

import queue
import select
import socket
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from falconet.errors import ConfigError, DistributedError
from falconet.train.place import Meeting

T = TypeVar("T")
_PATIENCE = timedelta(seconds=5)  # with somebody else's server, who does not answer as a store does
_AGAIN = 30.0  # seconds until somebody else's port is tried again: it may have been slow, not somebody else
_JOB = "falconet/job"
_ADDRESS_OF = 0x8915  # Linux's SIOCGIFADDR


def hold(meeting: Meeting, timeout: timedelta) -> TCPStore:
    """The store, held by this process, at the first free port of the meeting. Raises ConfigError where none is free."""
    for port in meeting.ports:
        try:
            store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=timeout)
        except RuntimeError as error:
            taken = error
            continue
        store.set(_JOB, meeting.job or "")
        return store
    ports = meeting.ports
    where = f"port {ports[0]} is" if len(ports) == 1 else f"ports {ports[0]} to {ports[-1]} are"
    raise ConfigError(
        f"{where} taken on this machine: {taken}", hint="set MASTER_PORT to a free port, for all processes of the job"
    ) from taken


def find(meeting: Meeting, timeout: timedelta) -> TCPStore:
    """The store that another process of the job holds. Raises DistributedError where it is not found in time."""
    deadline = time.monotonic() + timeout.total_seconds()
    why = "nobody is there"
    not_before = dict.fromkeys(meeting.ports, 0.0)
    while time.monotonic() < deadline:
        for port in meeting.ports:
            if time.monotonic() < not_before[port]:
                continue
            try:
                with socket.create_connection((meeting.address, port), timeout=_PATIENCE.total_seconds()):
                    pass
                store = _join(meeting, port)
            except (OSError, RuntimeError) as error:
                why = str(error)
                continue
            if store is not None:
                store.set_timeout(timeout)
                return store
            why = f"somebody else is at port {port}"
            not_before[port] = time.monotonic() + _AGAIN
        time.sleep(0.2)
    ports = f"{meeting.port}" if len(meeting.ports) == 1 else f"{meeting.ports[0]}-{meeting.ports[-1]}"
    raise DistributedError(
        f"nobody of this job was met at {meeting.address}:{ports} within {timeout.total_seconds():.0f} s: {why}",
        hint="MASTER_ADDR and MASTER_PORT name a free port of rank 0's machine that the others can reach",
    )


def _join(meeting: Meeting, port: int) -> TCPStore | None:
    """The job's store; None where it is another job's, or where whoever listens does not answer."""

    def ask() -> TCPStore | None:
        store = TCPStore(meeting.address, port, is_master=False, wait_for_workers=False, timeout=_PATIENCE)
        return store if meeting.job is None or store.get(_JOB).decode() == meeting.job else None

    try:
        return within(_PATIENCE.total_seconds(), ask)
    except TimeoutError:
        return None


def within(seconds: float, ask: Callable[[], T]) -> T:
    """What a question to a store gives; its own error, or TimeoutError where there is no answer.

    It is asked in a thread, because torch waits without end for an answer of somebody who is no store, or is gone
    without a word.
    """
    answers: queue.Queue[tuple[T] | Exception] = queue.Queue()

    def run() -> None:
        try:
            answers.put((ask(),))
        except Exception as error:  # noqa: BLE001 - raised by whoever asked
            answers.put(error)

    threading.Thread(target=run, name="falconet store", daemon=True).start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer in {seconds:.0f} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer[0]


class Line:
    """A connection to a store on which nothing is said: it tells at once when the process that holds the store ends.

    To ask the store then would print torch's own account of it, a screen long, on stderr.
    """

    def __init__(self, address: str, port: int) -> None:
        self._socket = socket.create_connection((address, port), timeout=_PATIENCE.total_seconds())
        weakref.finalize(self, self._socket.close)

    @property
    def cut(self) -> bool:
        """Whether the other end is gone."""
        return bool(select.select([self._socket], [], [], 0)[0])


def interface_to(address: str) -> str | None:
    """The network interface through which this machine reaches another; None where the system does not tell.

    gloo takes the one that the machine's own name stands for, and on many systems that is the loopback.
    """
    if sys.platform != "linux":
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((address, 9))  # sends nothing
        except OSError:
            return None
        own = asking.getsockname()[0]
        for _, name in socket.if_nameindex():
            try:
                found = fcntl.ioctl(asking, _ADDRESS_OF, struct.pack("256s", name.encode()))
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(found[20:24]) == own:
                return name
    return None
