"""Several processes of this machine for one function, `fl.launch(fn, nproc=2)`, or one script, `falconet launch`."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from falconet.errors import ConfigError, DistributedError
from falconet.train.runtime import Runtime

T = TypeVar("T")
_GRACE = 5.0  # seconds between asking a process to end and ending it
_TIME_TO_SAVE = 30.0  # the same where it is asked because this process was: it may write a snapshot first

_LEFT_ALONE = ("by peer", "gloo/transport")  # what a process says when another one has gone


@dataclass(frozen=True)
class _Failure:
    what: str
    trace: str = ""
    follows: bool = False  # from another process's end


def launch(fn: Callable[..., T], nproc: int, args: Sequence[Any] = ()) -> T:
    """Run `fn(*args)` in `nproc` processes of this machine that form one group; what rank 0 returned.

    Each starts a fresh interpreter and imports the module of `fn`: so `fn` must be a function of a module, or of a
    script with an `if __name__ == "__main__":` line, and arguments and result must be picklable.

    Raises ConfigError for a function that cannot be given to a process, before any is started, and DistributedError,
    with the trace of the process that failed first, when one fails. No process is left behind. SIGTERM is passed on.
    """
    result: T = _run(fn, nproc, tuple(args), join=True)
    return result


def launch_script(script: str | Path, nproc: int, args: Sequence[str] = ()) -> None:
    """Run a script in `nproc` processes that find each other as under torchrun, by `Runtime.start()` or torch's own.

    Raises as `launch`; a script that ends by `sys.exit` with another code than 0 has failed.
    """
    _run(_script, nproc, (str(script), tuple(args)), join=False)


def _script(path: str, args: Sequence[str]) -> None:
    multiprocessing.set_start_method(None, force=True)  # the script's own processes start as they do without us
    sys.argv = [path, *args]
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


def _run(fn: Callable[..., Any], nproc: int, args: tuple[Any, ...], *, join: bool) -> Any:
    """What `fn(*args)` returned in rank 0; with `join` the processes are in one group already when it begins."""
    if nproc < 1:
        raise ConfigError(f"`nproc` is {nproc}", hint="at least 1")
    _check(fn, args)
    context = multiprocessing.get_context("spawn")
    # This process holds the meeting point, so that no port can be taken between choosing and using it.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes: list[SpawnProcess] = []
    pipes: list[Connection] = []
    with _sigterm_ends():
        try:
            for rank in range(nproc):
                ours, theirs = context.Pipe()
                process = context.Process(target=_work, args=(fn, args, join, rank, nproc, store.port, theirs))
                process.start()
                theirs.close()
                processes.append(process)
                pipes.append(ours)
            return _results(processes, pipes)
        finally:
            for pipe in pipes:
                pipe.close()  # which tells a process that waits here to end
            _end(processes)


@contextmanager
def _sigterm_ends() -> Iterator[None]:
    """Within the block SIGTERM raises SystemExit(143), so that it is passed on before this process ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(143)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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


def _results(processes: Sequence[SpawnProcess], pipes: Sequence[Connection]) -> Any:
    """What rank 0 returned, when all are done."""
    results: dict[int, Any] = {}
    failures: dict[int, _Failure] = {}
    deadline = 0.0
    while len(results) + len(failures) < len(pipes):
        pending = {id(p): rank for rank, p in enumerate(pipes) if rank not in results and rank not in failures}
        ready = wait(
            [pipes[rank] for rank in pending.values()], max(deadline - time.monotonic(), 0) if failures else None
        )
        if not ready:
            break  # the others had a moment to say whether they were the cause
        for rank in (pending[id(pipe)] for pipe in ready):
            outcome = _receive(processes[rank], pipes[rank])
            if isinstance(outcome, _Failure):
                failures[rank] = outcome
                deadline = deadline or time.monotonic() + 1
            else:
                results[rank] = outcome[0]
    if failures:
        rank, cause = min(failures.items(), key=lambda item: item[1].follows)
        raise DistributedError(f"process {rank} of {len(pipes)} failed: {cause.what}\n\n{cause.trace}".rstrip())
    for pipe in pipes:
        pipe.send(None)  # tensors in a result live as long as the process that made them
    return results[0]


def _receive(process: SpawnProcess, pipe: Connection) -> _Failure | tuple[Any]:
    try:
        outcome: _Failure | tuple[Any] = pipe.recv()
    except EOFError:
        process.join(_GRACE)
        code = process.exitcode
        return _Failure(f"it was ended by signal {-code}" if code and code < 0 else f"it ended with exit code {code}")
    return outcome


def _end(processes: Sequence[SpawnProcess]) -> None:
    """Wait for processes that are done; end those that are not."""
    failed = sys.exc_info()[0]
    for process in processes:
        if failed is not None:
            process.terminate()
    deadline = time.monotonic() + (_TIME_TO_SAVE if failed is SystemExit else _GRACE)
    for process in processes:
        process.join(max(deadline - time.monotonic(), 0))
        if process.is_alive():
            process.kill()
            process.join()


def _work(
    fn: Callable[..., Any], args: tuple[Any, ...], join: bool, rank: int, nproc: int, port: int, pipe: Connection
) -> None:
    """One process: join the group, run the function, tell the parent how it went."""
    threading.Thread(target=_follow_parent, daemon=True).start()
    place = {"RANK": rank, "WORLD_SIZE": nproc, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": nproc, "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in place.items()}
    # The last two are for torch's own init_process_group: the meeting point is there already.
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    os.environ |= {"TORCHELASTIC_RESTART_COUNT": "0"}
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads_each(nproc))
    try:
        with Runtime.start() if join else nullcontext():
            result = fn(*args)
            _flush()
            _tell(pipe, (result,))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent tells it
        _flush()
        follows = isinstance(error, dist.DistBackendError) or any(text in str(error) for text in _LEFT_ALONE)
        _tell(pipe, _Failure(f"{type(error).__name__}: {error}", traceback.format_exc(), follows))
    with suppress(EOFError, OSError):
        pipe.recv()


def _tell(pipe: Connection, outcome: _Failure | tuple[Any]) -> None:
    with suppress(BrokenPipeError):  # the parent has seen enough and is ending everything
        pipe.send(outcome)


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
