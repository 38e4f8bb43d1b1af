"""Several processes for one function, `fl.launch(fn, nproc=2)`, or for one script, `falconet launch`.

A launcher starts the processes of its machine, follows them, and ends all when one fails; then it may start them anew.
Launchers of several machines do that together (see `nodes`).
"""

from __future__ import annotations

import io
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import FrameType
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist

from falconet.errors import ConfigError, DistributedError
from falconet.progress import note
from falconet.train.nodes import Council, Ending, Nodes, cause
from falconet.train.runtime import Runtime

T = TypeVar("T")
_GRACE = 5.0  # seconds between asking a process to end and ending it
_TIME_TO_SAVE = 30.0  # the same where it is asked because this process was: it may write a snapshot first

_LEFT_ALONE = ("by peer", "gloo/transport")  # what a process says when another one has gone


_USR1: signal.Signals | None = getattr(signal, "SIGUSR1", None)  # not on Windows
OnUsr1 = Literal["snapshot", "stop"]


def launch(fn: Callable[..., T], nproc: int, args: Sequence[Any] = (), *, max_restarts: int = 0) -> T:
    """Run `fn(*args)` in `nproc` processes of this machine that form one group; what rank 0 returned.

    Each starts a fresh interpreter and imports the module of `fn`: so `fn` must be a function of a module, or of a
    script with an `if __name__ == "__main__":` line, and arguments and result must be picklable. When a process fails,
    all are ended and, up to `max_restarts` times, all started again.

    Raises ConfigError for a function that cannot be given to a process, before any is started, and DistributedError,
    with the trace of the process that failed first, when one fails. No process is left behind. SIGTERM and SIGUSR1 are
    passed on.
    """
    job = _Job(fn, tuple(args), nproc, join=True)
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

    Raises as `launch`; a script that ends by `sys.exit` with another code than 0 has failed. One that ends with 143, as
    a training that was told to stop does, is not started again: SystemExit(143) is raised here too.
    """
    _run(_Job(_script, (str(script), tuple(args)), nproc, join=False), nodes or Nodes(), max_restarts, usr1)


def _script(path: str, args: Sequence[str]) -> None:
    multiprocessing.set_start_method(None, force=True)  # the script's own processes start as they do without us
    sys.argv = [path, *args]
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


@dataclass(frozen=True)
class _Job:
    """What every process does."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    nproc: int
    join: bool  # the processes are in one group already when `fn` begins

    def __post_init__(self) -> None:
        if self.nproc < 1:
            raise ConfigError(f"`nproc` is {self.nproc}", hint="at least 1")
        _check(self.fn, self.args)


def _run(job: _Job, nodes: Nodes, max_restarts: int, usr1: OnUsr1) -> Any:
    """What the job came to in rank 0, if that is one of this machine's processes."""
    team = _Team(job)
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


def _attempt(team: _Team, council: Council, attempt: int) -> Ending:
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
            team.grace = _TIME_TO_SAVE if own.kind == "stopped" else _GRACE
            council.call_off(attempt)
            team.end()
        council.say(attempt, own)
    while (endings := council.endings(attempt, own)) is None:
        time.sleep(council.look or 0)
    return cause(endings)


@contextmanager
def _signals(team: _Team, usr1: OnUsr1) -> Iterator[None]:
    """Within the block SIGTERM raises SystemExit(143), so that it is passed on; SIGUSR1 does so or is passed on."""
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

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, end)}
    if _USR1 is not None:
        before[_USR1] = signal.signal(_USR1, end if usr1 == "stop" else pass_on)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check(fn: Callable[..., Any], args: Sequence[Any]) -> None:
    name = getattr(fn, "__qualname__", repr(fn))
    nowhere = getattr(fn, "__module__", None) == "__main__" and not hasattr(sys.modules["__main__"], "__file__")
    if "<" in name or nowhere:
        raise ConfigError(
            f"`{name}` cannot be given to other processes: each imports the function by its module and name, "
            + ("and a notebook's or prompt's cells are in no module" if nowhere else "and it has none there"),
            hint="put it, at the top level, in a .py file beside, and import it: `from worker import train`",
        )
    try:
        ForkingPickler.dumps((fn, tuple(args)))
    except Exception as error:
        raise ConfigError(
            f"`{name}` or its arguments cannot be given to other processes: {error}",
            hint="a function of a module, and arguments of plain values; open loaders and models inside the function",
        ) from error


@dataclass
class _Team:
    """The processes of one attempt on this machine."""

    job: _Job
    processes: list[SpawnProcess] = field(default_factory=list)
    grace: float = _GRACE
    _pipes: list[Connection] = field(default_factory=list)
    _results: dict[int, Any] = field(default_factory=dict)  # by the number of the process on this machine
    _failures: dict[int, Ending] = field(default_factory=dict)

    def start(self, council: Council, attempt: int) -> None:
        self._results, self._failures = {}, {}
        context = multiprocessing.get_context("spawn")
        job, node, world = self.job, council.nodes.rank, council.nodes.count * self.job.nproc
        port = council.begin(attempt)
        with _usr1_waits():  # a process that is not ready for it would die of it
            for local in range(job.nproc):
                place = {"RANK": node * job.nproc + local, "WORLD_SIZE": world, "LOCAL_RANK": local}
                place |= {"LOCAL_WORLD_SIZE": job.nproc, "GROUP_RANK": node, "MASTER_PORT": port}
                env = {name: str(value) for name, value in place.items()} | {"MASTER_ADDR": council.address}
                # These are for torch's own init_process_group: the meeting point is there already.
                env |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": str(attempt)}
                env |= {"TORCHELASTIC_RUN_ID": "falconet"}
                ours, theirs = context.Pipe()
                process = context.Process(target=_work, args=(job, env, theirs))
                process.start()
                theirs.close()
                self.processes.append(process)
                self._pipes.append(ours)

    def follow(self, council: Council, attempt: int) -> Ending:
        """How the attempt ended on this machine: when all are done, or soon after one failed here or elsewhere."""
        first, deadline = council.nodes.rank * self.job.nproc, 0.0
        while pending := {id(p): i for i, p in enumerate(self._pipes) if i not in self._results | self._failures}:
            left = max(deadline - time.monotonic(), 0) if deadline else None
            ready = wait([self._pipes[i] for i in pending.values()], council.look if left is None else left)
            if deadline and not ready:
                break  # the others had a moment to say whether they were the cause
            for local in (pending[id(pipe)] for pipe in ready):
                outcome = _receive(self.processes[local], self._pipes[local])
                if isinstance(outcome, Ending):
                    self._failures[local] = replace(outcome, rank=first + local)
                else:
                    self._results[local] = outcome[0]
            if not deadline and (self._failures or council.over(attempt)):
                deadline = time.monotonic() + 1
        if self._failures:
            ending = cause(list(self._failures.values()))
            done = ", ".join(str(first + local) for local in sorted(self._results))
            if ending.follows and done:
                ending = replace(ending, what=f"{ending.what}\nwithout an error had ended by then: process {done}")
            return ending
        return Ending("done" if len(self._results) == len(self._pipes) else "cut")

    def dismiss(self) -> Any:
        """Let the processes end; what the first one returned."""
        for pipe in self._pipes:
            with suppress(BrokenPipeError):  # it was done, and has been ended from outside since
                pipe.send(None)  # tensors in a result live as long as the process that made them
        for process in self.processes:
            process.join(_GRACE)
        return self._results[0]

    def end(self) -> None:
        """End the processes that are not done; none is left."""
        for pipe in self._pipes:
            pipe.close()  # which tells a process that waits here to end
        for process in self.processes:
            process.terminate()
        deadline = time.monotonic() + self.grace
        for process in self.processes:
            process.join(max(deadline - time.monotonic(), 0))
            if process.is_alive():
                process.kill()
                process.join()
        self._pipes.clear()
        self.processes.clear()


@contextmanager
def _usr1_waits() -> Iterator[None]:
    """Within the block, and in processes that are started there, SIGUSR1 has to wait."""
    if _USR1 is None:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {_USR1})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _receive(process: SpawnProcess, pipe: Connection) -> Ending | tuple[Any]:
    try:
        outcome: Ending | tuple[Any] = pipe.recv()
    except EOFError:
        process.join(_GRACE)
        code = process.exitcode
        what = f"it was ended by signal {-code}" if code and code < 0 else f"it ended with exit code {code}"
        return Ending("failed", what=what)
    return outcome


def _work(job: _Job, env: Mapping[str, str], pipe: Connection) -> None:
    """One process: join the group, run the function, tell the parent how it went."""
    threading.Thread(target=_follow_parent, daemon=True).start()
    if _USR1 is not None:
        signal.signal(_USR1, signal.SIG_IGN)  # until a training, or the script, knows what to do with it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {_USR1})
    os.environ |= env
    whole_lines()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads_each(job.nproc))
    try:
        with Runtime.start() if job.join else nullcontext():
            result = job.fn(*job.args)
            _flush()
            _tell(pipe, (result,))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent tells it
        _flush()
        _tell(pipe, _ending(error))
    with suppress(EOFError, OSError):
        pipe.recv()


def _ending(error: BaseException) -> Ending:
    if isinstance(error, SystemExit) and error.code == 143:
        return Ending("stopped")
    follows = isinstance(error, dist.DistBackendError) or any(text in str(error) for text in _LEFT_ALONE)
    return Ending("failed", what=f"{type(error).__name__}: {error}", follows=follows, trace=traceback.format_exc())


def _tell(pipe: Connection, outcome: Ending | tuple[Any]) -> None:
    with suppress(BrokenPipeError):  # the parent has seen enough and is ending everything
        pipe.send(outcome)


def whole_lines() -> None:
    """Have lines go out whole, one by one: all processes share an output, where pieces of lines would mix."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def _flush() -> None:
    """What was printed must be out before the parent may end this process."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _follow_parent() -> None:
    """End this process when the one that started it is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def threads_each(nproc: int) -> int:
    """Threads for each of `nproc` processes that share this machine's cores."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        cores = os.cpu_count() or 1
    return max(1, cores // nproc)
