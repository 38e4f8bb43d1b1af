"""Where the rows of a data set are kept while a loader gives them out, and how batches get to a GPU."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from falconet.batch import Batch
from falconet.errors import ConfigError
from falconet.loader.fetch import ahead
from falconet.memory import SHARE, as_size, machine_memory

Mode = Literal["memory", "stream", "device"]
MODES = ("memory", "stream", "device")
MOST = 2**32  # bytes that are kept in memory unless `budget` says otherwise


class Choice(NamedTuple):
    """A mode, and the bytes it was chosen by."""

    mode: Mode
    budget: int


def choose(need: int, device: torch.device, budget: int | None, processes: int) -> Choice:
    """The fastest mode in which `need` bytes of a process fit.

    `budget`: bytes for the data of all `processes` of this machine; by default a quarter of its memory, at most 4 GiB,
    or for the device a quarter of what is free there.
    """
    if device.type == "cuda":
        room = torch.cuda.mem_get_info(device)[0] // SHARE
        room = room if budget is None else min(room, budget // processes)
        if need <= room:
            return Choice("device", room)
    room = (min(MOST, machine_memory() // SHARE) if budget is None else budget) // processes
    return Choice("memory" if need <= room else "stream", room)


def in_words(rows: int, need: int, choice: Choice, device: torch.device) -> str:
    """A line that says what was chosen and why."""
    where = {"memory": "kept in memory", "stream": "read in every epoch", "device": f"kept on {device}"}[choice.mode]
    relation = "more than" if need > choice.budget else "within"
    return f"{rows:,} rows, {as_size(need)} as tensors, {where}: {relation} the budget of {as_size(choice.budget)}"


class _Sent(NamedTuple):
    batch: Batch
    there: torch.cuda.Event | None  # when the copies are done; None where nothing has to be waited for


def deliver(batches: Generator[Batch], device: torch.device, count: int) -> Generator[Batch]:
    """Batches made by a thread that keeps `count` ready, on a device.

    To a GPU they are copied from pinned memory on a stream of their own, while the GPU computes; the stream on which
    this generator is used waits for the copies of a batch before that batch is handed out.
    """
    if device.type != "cuda":
        yield from ahead(_on(batches, device), count)
        return
    with closing(ahead(_send(batches, device), count)) as sent:
        for batch, there in sent:
            current = torch.cuda.current_stream(device)
            if there is not None:
                current.wait_event(there)
            yield batch.apply(partial(_used_on, current))


def _used_on(stream: torch.cuda.Stream, x: Tensor) -> Tensor:
    x.record_stream(stream)  # or its memory might be given to another tensor while `stream` still reads it
    return x


def _on(batches: Generator[Batch], device: torch.device) -> Generator[Batch]:
    with closing(batches):
        for batch in batches:
            yield batch if device.type == "cpu" else batch.to(device)


def _send(batches: Generator[Batch], device: torch.device) -> Generator[_Sent]:
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with closing(batches):
        while True:
            with torch.cuda.stream(stream):  # also for what a mode makes on the device
                batch = next(batches, None)
                if batch is None:
                    return
                batch = batch.apply(lambda x: x.pin_memory().to(device, non_blocking=True) if x.is_cpu else x)
            yield _Sent(batch, stream.record_event())


def parse_device(device: str | torch.device) -> torch.device:
    """A device by name. Raises ConfigError for one that is not there."""
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"`device` is {device!r}, which torch does not know", hint="cpu, cuda or cuda:0") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"`device` is {device!r}, but there is no GPU that this torch can use", hint='device="cpu"')
    return found
