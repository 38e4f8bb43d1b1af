"""How bytes pass between the processes of a run: by torch.distributed, or on one machine through its memory.

Both ways do the same: a process gets `room` for its message, writes it, and gathers everybody's; or it has rows for
each of the others and gets theirs. All processes call alike, also those with nothing to say. What is gathered is to be
read before the next call: after that others may write to their rooms again.

Shapes: W processes.
"""

from __future__ import annotations

import math
import mmap
import os
import secrets
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from falconet.errors import DistributedError
from falconet.memory import large_pages
from falconet.nn.collective import from_all
from falconet.train.runtime import Runtime

_GRAIN = 1 << 20  # bytes by which a file grows
_NAME = "falconet-board"
_LARGE = 1 << 21  # bytes of a large page, behind as many of which lies what processes have in common
_TRIES = 4


class Way(Protocol):
    """How bytes get from each process to the others."""

    def room(self, size: int) -> Tensor:
        """Where to write a message of so many bytes, a multiple of 8."""

    def gather(self, message: Tensor, numbers: Sequence[int]) -> tuple[list[list[int]], list[Tensor]]:
        """Every process's numbers, as many on each of them, and its message, by rank. `message` is what `room` gave."""

    def trade(self, rows: Tensor, give: Sequence[int], take: Sequence[int] | None = None) -> tuple[Tensor, list[int]]:
        """The rows that the processes have for this one, by rank, and how many each of them has.

        `give`: how many of the `rows`, in order, are for each process; `take`: how many there are for this one, if it
        knows.
        """


class Network:
    """The way of torch.distributed, between any machines and devices."""

    def __init__(self, runtime: Runtime) -> None:
        self._rank, self._device = runtime.rank, runtime.device

    def room(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self._device)

    def gather(self, message: Tensor, numbers: Sequence[int]) -> tuple[list[list[int]], list[Tensor]]:
        found, lengths = _numbers(numbers, len(message), self._device)
        if not max(lengths):
            return found, [message] * len(lengths)
        messages = from_all(F.pad(message, (0, max(lengths) - len(message))))
        return found, [one[:n] for one, n in zip(messages, lengths, strict=True)]

    def trade(self, rows: Tensor, give: Sequence[int], take: Sequence[int] | None = None) -> tuple[Tensor, list[int]]:
        if take is None:
            take = [counts[self._rank] for counts in from_all(torch.tensor(give, device=self._device)).tolist()]
        found = rows.new_empty(sum(take), *rows.shape[1:])
        # Bytes, as gloo does not know bfloat16 everywhere.
        dist.all_to_all_single(_bytes(found), _bytes(rows.contiguous()), list(take), list(give))
        return found, list(take)


class Board:
    """The way through the memory of one machine: what a process writes to its files there, the others read.

    The files have no names, so that nothing is left of them when the processes end, however that is. Each process has
    two, which take turns: when the first is written again, all have read it, or they would not have met at the second.
    """

    def __init__(self, rank: int, files: Sequence[Sequence[_File]]) -> None:
        self._rank, self._files, self._turn = rank, files, 0

    @classmethod
    def of(cls, runtime: Runtime) -> Board | None:
        """That of all processes, which call it together; None where any of them cannot open the others' files."""
        if runtime.world != runtime.local_world or runtime.device.type != "cpu" or not hasattr(os, "memfd_create"):
            return None
        token = secrets.randbits(62)
        own = [_File.made(token), _File.made(token)]
        known = from_all(torch.tensor([os.getpid(), token, *(-1 if file is None else file.number for file in own)]))
        files = [
            own if rank == runtime.rank else [_File.opened(process, number, token) for number in numbers]
            for rank, (process, token, *numbers) in enumerate(known.tolist())
        ]
        ready = [[file for file in some if file is not None] for some in files]
        missing = sum(len(some) for some in files) - sum(len(some) for some in ready)
        return None if runtime.sums(torch.tensor([missing])).item() else cls(runtime.rank, ready)

    def room(self, size: int) -> Tensor:
        return self._files[self._rank][self._turn].room(size)

    def gather(self, message: Tensor, numbers: Sequence[int]) -> tuple[list[list[int]], list[Tensor]]:
        found, lengths = _numbers(numbers, len(message), message.device)  # from here on all have written
        messages = [files[self._turn].bytes(n) for files, n in zip(self._files, lengths, strict=True)]
        self._turn = 1 - self._turn
        return found, messages

    def common(self, mine: Tensor) -> Tensor:
        """The first process's values in memory that all of them have in common; all give a tensor of that shape.

        Raises DistributedError, on all of them, where any cannot open it.
        """
        token = secrets.randbits(62)
        file = _File.made(token) if self._rank == 0 else None
        if file is not None:
            file.room(2 * _LARGE + mine.nbytes)
            there = file.large(mine.nbytes)
            there.view(mine.dtype).copy_(mine.reshape(-1))
            large_pages(there.data_ptr(), mine.nbytes)  # alone: at once with others it would be in their way
        number = -1 if file is None else file.number
        process, token, number = from_all(torch.tensor([os.getpid(), token, number]))[0].tolist()
        if self._rank:
            file = _File.opened(process, number, token)
        here = from_all(torch.tensor([file is not None]))  # once all have opened it, it may be closed
        if file is None or not here.all():
            raise DistributedError(
                f"{int((~here).sum())} of {len(here)} processes cannot open a table in memory that all have in common",
                hint='more open files for each process (ulimit -n), or table_placement="row"',
            )
        return file.large(mine.nbytes).view(mine.dtype).view(mine.shape)

    def trade(self, rows: Tensor, give: Sequence[int], take: Sequence[int] | None = None) -> tuple[Tensor, list[int]]:
        size = rows.element_size() * math.prod(rows.shape[1:])
        room = self.room(len(rows) * size)
        room.view(rows.dtype).copy_(rows.reshape(-1))
        counts, messages = self.gather(room, give)
        take = [some[self._rank] for some in counts]
        starts = [sum(some[: self._rank]) for some in counts]
        parts = [x[start * size :][: n * size] for x, start, n in zip(messages, starts, take, strict=True)]
        return torch.cat(parts).view(rows.dtype).view(sum(take), *rows.shape[1:]), take


class _File:
    """A file in memory, of this process or of another one."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._mapped = torch.empty(0, dtype=torch.uint8)
        weakref.finalize(self, os.close, number)

    @classmethod
    def made(cls, token: int) -> _File | None:
        """A new one; None where the system gives none."""
        try:
            file = cls(os.memfd_create(_NAME))
            file.room(8).view(torch.int64).fill_(token)
        except OSError:
            return None
        return file

    @classmethod
    def opened(cls, process: int, number: int, token: int) -> _File | None:
        """That of another process by its number there; None where it cannot be opened, or is not the one that was made
        with this token: in another container, other processes have the same numbers."""
        path = Path(f"/proc/{process}/fd/{number}")
        try:
            if _NAME not in str(path.readlink()):
                return None
            file = cls(os.open(path, os.O_RDWR))
            found = int(file.bytes(8).view(torch.int64))
        except (OSError, ValueError):  # ValueError: another program's, which is empty
            return None
        return file if found == token else None

    def room(self, size: int) -> Tensor:
        """The first bytes of it, to be written: it grows where it is too short."""
        if size > os.fstat(self.number).st_size:
            os.ftruncate(self.number, -(-size // _GRAIN) * _GRAIN)
        return self.bytes(size)

    def bytes(self, size: int) -> Tensor:
        """The first bytes of it, which are there."""
        if size > len(self._mapped):
            self._mapped = torch.frombuffer(mmap.mmap(self.number, 0), dtype=torch.uint8)
        return self._mapped[:size]

    def large(self, size: int) -> Tensor:
        """So many bytes behind the first `_LARGE` ones of it, which are there and as many more, at an address that
        pages of 2 MB can have: it is then the same as the place in the file, but for whole pages."""
        start, found = 0, torch.empty(0, dtype=torch.uint8)
        for _ in range(_TRIES):
            start = found.data_ptr() % _LARGE if len(found) else 0
            del found  # where it was, the next one is likely to be
            found = torch.frombuffer(mmap.mmap(self.number, _LARGE + size, offset=start), dtype=torch.uint8)
            if found.data_ptr() % _LARGE == start:
                break
        return found[_LARGE - start :][:size]


def _numbers(numbers: Sequence[int], length: int, device: torch.device) -> tuple[list[list[int]], list[int]]:
    """Every process's numbers, and the length of its message, by rank."""
    found = from_all(torch.tensor([*numbers, length], device=device)).tolist()
    return [some[:-1] for some in found], [some[-1] for some in found]


def _bytes(x: Tensor) -> Tensor:
    return x.view(torch.uint8) if x.dim() > 1 else x.unsqueeze(1).view(torch.uint8)
