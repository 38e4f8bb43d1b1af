"""Several processes for one function, `fl.launch(fn, nproc=2)`, or for one script, `falconet launch`.

A launcher starts the processes of its machine, follows them, and ends all when one fails; then it may start them anew.
Launchers of several machines do that together (see `nodes`).
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TypeVar

from falconet.errors import ConfigError, DistributedError
from falconet.progress import note
from falconet.train.nodes import Council, Ending, Nodes, cause
from falconet.train.team import GRACE, Job, Team

T = TypeVar("T")
_TIME_TO_SAVE = 30.0  # seconds for a process to end that may write a snapshot first, as this one was asked to end

_USR1: signal.Signals | None = getattr(signal, "SIGUSR1", None)  # not on Windows
OnUsr1 = Literal["snapshot", "stop"]


def launch(fn: Callable[..., T], nproc: int, args: Sequence[Any] = (), *, max_restarts: int = 0) -> T:
    """Run `fn(*args)` in `nproc` processes of this machine that form one group; what rank 0 returned.

    Each starts a fresh interpreter and imports the module of `fn`: so `fn` must be a function of a module, or of a
    script with an `if __name__ == "__main__":` line, and arguments and result must be picklable. When a process fails,
    all are ended and, up to `max_restarts` times, all started again.

    Raises ConfigError for a function that cannot be given to a process, before any is started, and DistributedError,
    with the trace of the process that failed first, when one fails. No process is left behind. SIGTERM and SIGUSR1 are
    passed on; after Ctrl-C, which the processes do not hear, they are asked to end as by SIGTERM, and SystemExit(130)
    is raised. A second Ctrl-C ends them at once.
    """
    job = Job(fn, args, nproc, join=True)
    result: T = _run(job, Nodes(), max_restarts, "snapshot")
    return result


def launch_script(
    script: str | Path,
    nproc: int,
    args: Sequence[str] = (),
    *,
    nodes: Nodes | None = None,
    max_restarts: int = 0,
    usr1: OnUsr1 = "snapshot",
) -> None:
    """Run a script in `nproc` processes that find each other as under torchrun, by `Runtime.start()` or torch's own.

    `nodes`: that each of so many machines does the same, all with the same `nproc`. `max_restarts`: how often all
    processes of all machines are started again after one failed; a script whose training asks for `resume="auto"` then
    goes on from its last snapshot. `usr1`: whether SIGUSR1 is passed on, or ends the processes as SIGTERM does.

    Raises as `launch`; a script that ends with another code than 0 has failed. One that ends with 143, as
    a training that was told to stop does, is not started again: SystemExit(143) is raised here too.
    """
    _run(Job(_script, (str(script), tuple(args)), nproc, join=False), nodes or Nodes(), max_restarts, usr1)


def _script(path: str, args: Sequence[str]) -> None:
    multiprocessing.set_start_method(None, force=True)  # the script's own processes start as they do without us
    sys.argv = [path, *args]
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


def _run(job: Job, nodes: Nodes, max_restarts: int, usr1: OnUsr1) -> Any:
    """What the job came to in rank 0, if that is one of this machine's processes."""
    if type(max_restarts) is not int or max_restarts < 0:
        raise ConfigError(f"`max_restarts` is {max_restarts!r}", hint="a whole number, at least 0")
    team = Team(job)
    with _signals(team, usr1):
        council = Council(nodes, job.nproc)  # so that no port can be taken between choosing and using it
        try:
            for attempt in count():
                ending = _attempt(team, council, attempt)
                if ending.kind == "done":
                    return team.dismiss()
                team.end()
                if ending.kind == "stopped":
                    raise SystemExit(143)
                what = f"process {ending.rank} of {nodes.count * job.nproc} failed: {ending.what}"
                if attempt == max_restarts:
                    raise DistributedError(f"{what}\n\n{ending.trace}".rstrip())
                note(f"{what}\n{ending.trace}starting all again, {attempt + 1} of {max_restarts} times")
        finally:
            team.end()
            council.leave()


def _attempt(team: Team, council: Council, attempt: int) -> Ending:
    """How an attempt ended, over all machines."""
    own = Ending("stopped")
    try:
        team.start(council, attempt)
        own = team.follow(council, attempt)
    except DistributedError:  # a node is gone
        own = Ending("cut")
        raise
    finally:
        if own.kind != "done":
            team.grace = _TIME_TO_SAVE if own.kind == "stopped" else GRACE
            if team.interrupted:
                note("Ctrl-C: the processes are asked to end, a training after a snapshot; again ends them at once")
            council.call_off(attempt)
            team.end()
        council.say(attempt, own)
    while (endings := council.endings(attempt, own)) is None:
        time.sleep(council.look or 0)
    return cause(endings)


@contextmanager
def _signals(team: Team, usr1: OnUsr1) -> Iterator[None]:
    """Within the block SIGTERM raises SystemExit(143), so that it is passed on, as does Ctrl-C, with 130; SIGUSR1 does
    so too, or is passed on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(143)

    def pass_on(number: int, frame: FrameType | None) -> None:
        for process in team.processes:
            if process.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def interrupt(number: int, frame: FrameType | None) -> None:
        if team.interrupted:  # already
            team.grace = 0.0
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        team.interrupted = True
        raise SystemExit(130)

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, end)}
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as under nohup, or behind &
        before[signal.SIGINT] = signal.signal(signal.SIGINT, interrupt)
    if _USR1 is not None:
        before[_USR1] = signal.signal(_USR1, end if usr1 == "stop" else pass_on)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
