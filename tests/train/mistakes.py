"""What one of several processes does, or suffers, and all of them hear of."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from falconet.batch import Batch
from falconet.loader.loader import Loader
from falconet.train.callbacks import Callback
from falconet.train.runtime import Runtime
from falconet.train.trainer import Trainer
from train.cases import CONSTANT, agreeing, of_all
from train.workers import config, loader, net


def said(act: Callable[[], object]) -> list[str]:
    """The errors that an act ends with, by rank: all processes come back from it."""
    try:
        act()
    except Exception as error:  # noqa: BLE001 - whatever it is
        return of_all(f"{type(error).__name__}: {error.args[0]}")
    return of_all("no error")


class FailsOn(Callback):
    """Fails in one call, on one process; notes on which processes it was told of the end."""

    def __init__(self, rank: int, name: str) -> None:
        self.ends = 0
        if Runtime.peek()[0] == rank:
            setattr(self, name, self.fail)

    def fail(self, *_: object) -> None:
        raise ValueError("the last one has had enough")

    def end(self) -> None:
        self.ends += 1


class EndsOn(Callback):
    """Ends the training after its first epoch, on one process's word."""

    def __init__(self, rank: int) -> None:
        self.mine = Runtime.peek()[0] == rank

    def epoch(self, epoch: int, figures: Mapping[str, Any]) -> bool:
        return self.mine


class MainOnly(Callback):
    """Only for the main process; fails in its start there, if asked to."""

    main_only = True

    def __init__(self, *, fails: bool = False) -> None:
        self.steps, self.fails = 0, fails

    def start(self, settings: Mapping[str, Any]) -> None:
        if self.fails:
            raise ValueError("the main process has had enough")

    def step(self, step: int, figures: Mapping[str, float]) -> None:
        self.steps += 1


def fails_in_a_callback(data: Path) -> None:
    """Train where a callback of rank 1 fails."""
    Trainer(CONSTANT, callbacks=[FailsOn(1, "step")]).fit(net(), loader(data))


def failing_callbacks(data: Path) -> dict[str, Any]:
    """What all processes say where a callback of one fails."""
    last = Runtime.peek()[1] - 1
    found: dict[str, Any] = {}
    for name in ("start", "step", "epoch"):
        fails = FailsOn(last, name)
        found[name] = said(lambda fails=fails: Trainer(CONSTANT, callbacks=[fails]).fit(net(), loader(data)))  # type: ignore[misc]
        found[f"ends_{name}"] = of_all(fails.ends)
    end = FailsOn(last, "end")
    found["end"] = said(lambda: Trainer(CONSTANT, callbacks=[end]).fit(net(), loader(data)))
    found["main"] = said(lambda: Trainer(CONSTANT, callbacks=[MainOnly(fails=True)]).fit(net(), loader(data)))
    only = MainOnly()
    Trainer(CONSTANT, callbacks=[only]).fit(net(), loader(data))
    found["steps"] = of_all(only.steps)
    ended = Trainer(config(epochs=3), callbacks=[EndsOn(last)]).fit(net(), loader(data))
    found["epochs"] = of_all(ended.epochs)
    return found


class Signal(Callback):
    """The last process gets a signal after a step."""

    def __init__(self, step: int, number: int) -> None:
        self.at, self.number = step, number

    def step(self, step: int, figures: Mapping[str, float]) -> None:
        rank, world = Runtime.peek()
        if step == self.at and rank == world - 1:
            os.kill(os.getpid(), self.number)


def stopped(data: Path, folder: Path, step: int, taken: list[float]) -> int:
    """Go on with a run until the step after one at which a process gets SIGTERM; the exit code. `taken`: ages seen."""

    class Noting(Loader):
        def batches(self, *place: int) -> Iterator[Batch]:  # type: ignore[override]
            for batch in super().batches(*place):
                taken.extend(batch.features["age"].tolist())  # type: ignore[union-attr]
                yield batch

    rows = Noting(data, batch_size=32, shuffle=True, seed=7)
    try:
        Trainer(config(), folder, callbacks=[Signal(step, signal.SIGTERM)]).fit(net(), rows, resume="auto")
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def saved_on_signal(data: Path, folder: Path) -> list[str]:
    """The snapshots of a run after the step that follows a SIGUSR1 to the last process."""
    found: list[str] = []

    class Look(Callback):
        def step(self, step: int, figures: Mapping[str, float]) -> None:
            if step == 6:
                found.extend(path.name for path in (folder / "snapshots").iterdir())

    Trainer(config(), folder, callbacks=[Signal(4, signal.SIGUSR1), Look()]).fit(net(), loader(data))
    return found


class FullDisk(Callback):
    """From a step on, files of the main process may not grow beyond some bytes."""

    def __init__(self, step: int) -> None:
        self.at = step

    def limit(self, size: int) -> None:
        import resource

        if Runtime.peek()[0] == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    def step(self, step: int, figures: Mapping[str, float]) -> None:
        if step == self.at:
            self.limit(1000)

    def end(self) -> None:
        self.limit(-1)


def mistakes(data: Path, spoilt: Path, folder: Path) -> dict[str, list[str]]:
    """What all processes say where the folder cannot be written, or a row is no number."""
    (folder / "file").touch()
    chosen = config(snapshot_steps=3)
    return {
        "file": said(lambda: Trainer(chosen, folder / "file/run").fit(net(), loader(data))),
        "full": said(lambda: Trainer(chosen, folder / "full", callbacks=[FullDisk(4)]).fit(net(), loader(data))),
        "again": said(lambda: Trainer(chosen, folder / "full").fit(net(), loader(data))),
        "other": said(lambda: Trainer(config(epochs=5), folder / "full").fit(net(), loader(data), resume="auto")),
        "nan": said(lambda: Trainer(chosen).fit(net(), Loader(spoilt, batch_size=32))),
    }


def several(files: Path, data: Path, held_out: Path, spoilt: Path, folder: Path) -> dict[str, Any]:
    """All that the tests of a group of processes look at; the run in `folder` was begun by another number of them."""
    torch.set_num_threads(1)
    with Runtime.start():
        found = agreeing(files, data, held_out)
        taken: list[float] = []
        found["stopped"] = of_all(stopped(data, folder / "run", 7, taken))
        found["taken"] = [age for ages in of_all(taken) for age in ages]
        found["saved_on_signal"] = saved_on_signal(data, folder / "asked")
        found["callbacks"] = failing_callbacks(data)
        found["mistakes"] = mistakes(data, spoilt, folder)
    return found


def alone(rank: int = 0) -> int:
    """A group that does nothing but meet."""
    with Runtime.start() as runtime:
        return int(runtime.sums(torch.tensor([runtime.rank + rank])))
