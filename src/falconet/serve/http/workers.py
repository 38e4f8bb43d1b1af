"""The processes that answer: one, or several that share a socket and are started again where one dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from uvicorn import Config, Server

from falconet.errors import FalconetError
from falconet.plugins import load_modules, loaded_modules
from falconet.progress import note, set_quiet
from falconet.serve.http.app import create_app
from falconet.serve.http.guard import log_to_stderr
from falconet.serve.large_pages import use_large_pages_soon
from falconet.serve.recommender import Recommender
from falconet.serve.scenarios import Scenarios
from falconet.serve.serving import Serving
from falconet.serve.stages import Budgets, Stages
from falconet.serve.stores import STORE_SECONDS, open_store

__all__ = ["Served", "Server", "Workers", "answer"]

SHUTDOWN_SECONDS = 10  # how long open requests may take once a server is told to stop
_AGAIN = 1.0  # seconds between a worker's death and the next start of it, where it had died soon after its start


@dataclass(frozen=True, kw_only=True)
class Served:
    """What a process serves, and how."""

    bundle: Path
    db: str
    scenarios: Scenarios = field(default_factory=Scenarios)
    beside: Path | None = None  # another bundle, to compare
    token: str | None = None
    watch: bool = False
    log: bool = False
    quiet: bool = False
    budgets: Budgets = field(default_factory=Budgets)
    store_seconds: float = STORE_SECONDS
    modules: tuple[str, ...] = ()  # with models of one's own, which a process must load first


def answer(
    served: Served,
    listening: socket.socket,
    *,
    ready: Callable[[Server, Recommender], None],
    alone: bool = True,
) -> None:
    """Load the bundle and answer requests at a socket, until a signal comes. `ready` is called before the first.

    `alone`: no other process answers at the socket. Raises what loading a bundle and opening a store raise.
    """
    recommender = Recommender.load(served.bundle, scenarios=served.scenarios)
    other = None if served.beside is None else Recommender.load(served.beside)
    store, stages = open_store(served.db, timeout=served.store_seconds), Stages(served.budgets)
    beside = None if other is None else Recommender(other.bundle, store, stages=stages)
    first = Recommender(recommender.bundle, store, served.scenarios, stages)
    serving = Serving(first, alone=alone, beside=beside, loaded=use_large_pages_soon)
    config = Config(
        create_app(serving, token=served.token, log=log_to_stderr if served.log else None),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nobody asks where a request came from
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    server = Server(config)
    ready(server, serving.recommender)
    use_large_pages_soon()
    # uvicorn ends open requests first and then raises the signal again: for us that is a normal end.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    try:
        with serving.watched() if served.watch else nullcontext():
            server.run(sockets=[listening])
    finally:
        stages.close()
        store.close()


class Workers:
    """Several processes that answer at one socket, each with the bundle in memory, and with the store they share."""

    def __init__(self, served: Served, listening: socket.socket, count: int) -> None:
        # A bundle that one of them is told of is for all, and all know the models that this process knows.
        self._served = replace(served, watch=True, modules=loaded_modules())
        self._listening, self._count = listening, count
        self._context = multiprocessing.get_context("spawn")
        self._running: dict[BaseProcess, _Worker] = {}

    def run(self, ready: Callable[[], None]) -> int:
        """Start them, and again whichever dies, until a signal comes; the exit code. `ready` once all can answer.

        A worker that ends with an error before all were ready for the first time has said why: all end.
        """
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
        said = False
        try:
            for _ in range(self._count):
                self._start()
            while True:
                for worker in self._changed():
                    if worker.process.exitcode is None:
                        continue
                    self._running.pop(worker.process)
                    if not said and not worker.was_ready and worker.process.exitcode > 0:
                        return 1
                    note(
                        f"worker {worker.process.pid} ended ({_how(worker.process.exitcode)}): another takes its place"
                    )
                    if time.monotonic() - worker.since < _AGAIN:
                        time.sleep(_AGAIN)
                    self._start()
                if not said and all(worker.was_ready for worker in self._running.values()):
                    said = True
                    ready()
        finally:
            self._stop()

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_work, args=(self._served, self._listening, theirs), name="falconet-worker", daemon=True
        )
        process.start()
        theirs.close()
        self._running[process] = _Worker(process, ours, time.monotonic())

    def _changed(self) -> list[_Worker]:
        """The workers that became ready or ended, once there are any."""
        asked = [w.ours for w in self._running.values() if not w.was_ready]
        happened = set(wait([*asked, *(process.sentinel for process in self._running)]))
        for worker in self._running.values():
            if worker.ours in happened and not worker.was_ready:
                try:
                    worker.was_ready = worker.ours.recv()
                except EOFError:  # it ended: its exit code follows
                    worker.process.join()
        return [w for p, w in self._running.items() if p.sentinel in happened or w.process.exitcode is not None]

    def _stop(self) -> None:
        for process in self._running:
            process.terminate()
        end = time.monotonic() + SHUTDOWN_SECONDS + 2
        for process, worker in self._running.items():
            process.join(max(end - time.monotonic(), 0))
            if process.is_alive():
                process.kill()
                process.join()
            worker.ours.close()


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    ours: Connection
    since: float
    was_ready: bool = False


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _work(served: Served, listening: socket.socket, parent: Connection) -> None:
    """One worker. It ends with its parent, however that ends, and leaves Ctrl-C to it."""
    set_quiet(served.quiet)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def ready(server: Server, recommender: Recommender) -> None:
        threading.Thread(target=_end_with, args=(parent, server), daemon=True).start()
        parent.send(True)

    try:
        load_modules(served.modules)
        answer(served, listening, ready=ready, alone=False)
    except (FalconetError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.stderr.flush()
        os._exit(1)


def _end_with(parent: Connection, server: Server) -> None:
    try:
        parent.recv()
    except (EOFError, OSError):
        server.should_exit = True
