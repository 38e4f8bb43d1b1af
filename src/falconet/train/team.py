"""The processes of a launch on one machine: started together, followed, ended together; and what each of them does."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.distributed as dist

from falconet.errors import ConfigError
from falconet.nn.line import LeftAloneError
from falconet.train.nodes import Council, Ending, cause
from falconet.train.runtime import Runtime

GRACE = 5.0  # seconds between asking a process to end and ending it
_WAIT = {getattr(signal, name) for name in ("SIGINT", "SIGUSR1") if hasattr(signal, name)}
_CALLED_AGAIN = 78  # the exit code of a process in which a script that it only imports launches
_IMPORTED_AGAIN = (
    "the script calls fl.launch whenever it is imported, as each process does\n\n"
    'hint: put the call under `if __name__ == "__main__":`'
)

# What a process says when another one has gone, or has a callback that failed.
_LEFT_ALONE = ("by peer", "gloo/transport", "failed on another process")


@dataclass(frozen=True)
class Job:
    """What every process does."""

    fn: Callable[..., Any]
    args: Sequence[Any]
    nproc: int
    join: bool  # the processes are in one group already when `fn` begins

    def __post_init__(self) -> None:
        if type(self.nproc) is not int or self.nproc < 1:
            raise ConfigError(f"`nproc` is {self.nproc!r}", hint="a whole number, at least 1")
        _check(self.fn, self.args)


def _check(fn: object, args: object) -> None:
    if not callable(fn):
        script = " -np 2 " + fn if isinstance(fn, str) else ""
        raise ConfigError(
            f"{fn!r} is no function", hint=f"launch(function, nproc); a script: `falconet launch{script}`"
        )
    if not isinstance(args, Sequence) or isinstance(args, str):
        raise ConfigError(f"`args` is {args!r}", hint=f"a tuple: `args=({args!r},)`")
    name = getattr(fn, "__qualname__", repr(fn))
    nowhere = getattr(fn, "__module__", None) == "__main__" and not hasattr(sys.modules["__main__"], "__file__")
    if "<" in name or nowhere:
        raise ConfigError(
            f"`{name}` cannot be given to other processes: each imports the function by its module and name, "
            + ("and a notebook's or prompt's cells are in no module" if nowhere else "and it has none there"),
            hint="put it, at the top level, in a .py file beside, and import it: `from worker import train`",
        )
    try:
        ForkingPickler.dumps((fn, args))
    except Exception as error:
        raise ConfigError(
            f"`{name}` or its arguments cannot be given to other processes: {error}",
            hint="a function of a module, and arguments of plain values; open loaders and models inside the function",
        ) from error


@dataclass
class Team:
    """The processes of one attempt on this machine."""

    job: Job
    processes: list[SpawnProcess] = field(default_factory=list)
    grace: float = GRACE
    interrupted: bool = False
    _pipes: list[Connection] = field(default_factory=list)
    _results: dict[int, Any] = field(default_factory=dict)  # by the number of the process on this machine
    _failures: dict[int, Ending] = field(default_factory=dict)

    def start(self, council: Council, attempt: int) -> None:
        self._results, self._failures = {}, {}
        context = multiprocessing.get_context("spawn")
        job, node, world = self.job, council.nodes.rank, council.nodes.count * self.job.nproc
        port = council.begin(attempt)
        with _signals_wait():  # a process that is not ready for them would die of them
            for local in range(job.nproc):
                place = {"RANK": node * job.nproc + local, "WORLD_SIZE": world, "LOCAL_RANK": local}
                place |= {"LOCAL_WORLD_SIZE": job.nproc, "GROUP_RANK": node, "MASTER_PORT": port}
                env = {name: str(value) for name, value in place.items()} | {"MASTER_ADDR": council.address}
                # These are for torch's own init_process_group: the meeting point is there already.
                env |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": str(attempt)}
                env |= {"TORCHELASTIC_RUN_ID": "falconet"}
                ours, theirs = context.Pipe()
                process = context.Process(target=_work, args=(job, env, theirs))
                _start(process)
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
                outcome = self._receive(local)
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

    def _receive(self, local: int) -> Ending | tuple[Any]:
        try:
            outcome: Ending | tuple[Any] = self._pipes[local].recv()
        except EOFError:
            code = _exit_code(self.processes[local])
            if code == 0 and not self.job.join:
                return (None,)  # a script may end by os._exit
            what = f"it was ended by signal {-code}" if code and code < 0 else f"it ended with exit code {code}"
            return Ending("failed", what=_IMPORTED_AGAIN if code == _CALLED_AGAIN else what)
        return outcome

    def dismiss(self) -> Any:
        """Let the processes end; what the first one returned."""
        for pipe in self._pipes:
            with suppress(BrokenPipeError):  # it was done, and has been ended from outside since
                pipe.send(None)  # tensors in a result live as long as the process that made them
        for process in self.processes:
            process.join(GRACE)
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


def _exit_code(process: SpawnProcess) -> int | None:
    """That of a process that ends; `join` would wait for its own forks, too. None: it does not end."""
    deadline = time.monotonic() + GRACE
    while process.exitcode is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return process.exitcode


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Within the block, and in processes that are started there, Ctrl-C and SIGUSR1 have to wait."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WAIT)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(process: SpawnProcess) -> None:
    try:
        process.start()
    except RuntimeError as error:
        if "bootstrapping" not in str(error):
            raise
        sys.exit(_CALLED_AGAIN)  # the launcher that started this process says why


def _work(job: Job, env: Mapping[str, str], pipe: Connection) -> None:
    """One process: join the group, run the function, tell the parent how it went."""
    threading.Thread(target=_follow_parent, daemon=True).start()
    for number in _WAIT:
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C is the launcher's; SIGUSR1 until a training wants it
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAIT)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=pipe.close)  # what a fork of this one holds would hide the end of this one
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
    if isinstance(error, SystemExit) and error.code in (130, 143):
        return Ending("stopped")
    follows = isinstance(error, (LeftAloneError, dist.DistBackendError)) or any(
        text in str(error) for text in _LEFT_ALONE
    )
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
