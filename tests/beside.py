"""Programs that take minutes run beside the tests of this process, one after the other, from the session's start.

A test marked `beside(run=function)` asks the fixture `ended` for what has come of its program. The function is given an
empty folder, in which the program runs, and returns the arguments for Python and the changes of the environment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
LIMIT = 580  # seconds for a program

Run = Callable[[Path], tuple[Sequence[str], Mapping[str, str]]]


class Ended(NamedTuple):
    """A program that has ended, and the folder that it ran in."""

    code: int
    out: str
    err: str
    folder: Path


class Programs:
    """What was started, and what came of it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="programs beside the tests")
        self._ended: dict[str, Future[Ended]] = {}
        self._running: subprocess.Popen[str] | None = None
        self._over = False

    def add(self, name: str, run: Run, folder: Path) -> None:
        self._ended[name] = self._thread.submit(self._run, run, folder)

    def ended(self, name: str) -> Ended:
        """Waits for it; the limit begins when the program does."""
        return self._ended[name].result()

    def stop(self) -> None:
        """As Ctrl-C would: the programs end what they have started themselves."""
        self._over = True
        for waiting in self._ended.values():
            waiting.cancel()
        if (running := self._running) is not None:
            running.send_signal(signal.SIGINT if os.name != "nt" else signal.SIGTERM)
        self._thread.shutdown()

    def _run(self, run: Run, folder: Path) -> Ended:
        arguments, environment = run(folder)
        with subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as self._running:
            try:
                out, err = self._running.communicate(timeout=10 if self._over else LIMIT)
            except subprocess.TimeoutExpired:
                self._running.kill()
                out, err = self._running.communicate()
            code = self._running.returncode
            self._running = None
        return Ended(code, out, err, folder)


STARTED = pytest.StashKey[Programs]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "beside(run): waits for a program that runs beside the other tests")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the programs of the tests that will run."""
    if session.config.option.collectonly:
        return
    session.config.stash[STARTED] = programs = Programs()
    factory = session.config._tmp_path_factory  # type: ignore[attr-defined]
    for item in session.items:
        mark = item.get_closest_marker("beside")
        if mark and not any(skip.args[0] for skip in item.iter_markers("skipif")):
            programs.add(item.nodeid, mark.kwargs["run"], factory.mktemp("beside"))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (programs := session.config.stash.get(STARTED, None)) is not None:
        programs.stop()


@pytest.fixture
def ended(request: pytest.FixtureRequest) -> Ended:
    """The program of the test that asks."""
    return request.config.stash[STARTED].ended(request.node.nodeid)
