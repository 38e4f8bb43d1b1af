"""The store in which processes find each other: one holds it at a port, the others look for it there."""

from __future__ import annotations

import queue
import socket
import threading
import time
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from falconet.errors import ConfigError, DistributedError
from falconet.train.place import Meeting

_PATIENCE = timedelta(seconds=5)  # with somebody else's server, who does not answer as a store does
_AGAIN = 30.0  # seconds until somebody else's port is tried again: it may have been slow, not somebody else
_JOB = "falconet/job"


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
    answers: queue.Queue[TCPStore | RuntimeError | None] = queue.Queue()

    def ask() -> None:
        try:
            store = TCPStore(meeting.address, port, is_master=False, wait_for_workers=False, timeout=_PATIENCE)
            answers.put(store if meeting.job is None or store.get(_JOB).decode() == meeting.job else None)
        except RuntimeError as error:
            answers.put(error)

    # In a thread, because torch waits without end for the first answer of somebody who is no store.
    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=_PATIENCE.total_seconds())
    except queue.Empty:
        return None
    if isinstance(answer, RuntimeError):
        raise answer
    return answer
