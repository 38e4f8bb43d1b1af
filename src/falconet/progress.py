"""Progress of long work: a bar with rate and ETA on a terminal, plain lines otherwise, nothing when quiet.

Everything goes to stderr; stdout is data for the next command.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_quiet = False
_LINE_SECONDS = 10.0  # how often a plain line is written where there is no terminal


def set_quiet(quiet: bool) -> None:
    """Silence all progress and notes of this process (`--quiet`)."""
    global _quiet
    _quiet = quiet


@contextmanager
def hushed() -> Iterator[None]:
    """Nothing is said in its body."""
    before = _quiet
    set_quiet(True)
    try:
        yield
    finally:
        set_quiet(before)


def note(message: str) -> None:
    """One line on stderr, unless quiet."""
    if not _quiet:
        sys.stderr.write(message + "\n")
        sys.stderr.flush()


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """A table as text: every line's cells under those of the line before."""
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


class Task:
    """One piece of long work. `advance` it; the rest is drawn."""

    def __init__(self, title: str, total: int | None, unit: str) -> None:
        self.title, self.total, self.unit = title, total, unit
        self.done = 0
        self.start = self._last = time.monotonic()

    def advance(self, amount: int = 1) -> None:
        self.done += amount
        now = time.monotonic()
        if not _quiet and now - self._last >= _LINE_SECONDS:
            self._last = now
            note(self.line())

    def line(self) -> str:
        """`title: done/total unit, rate, ETA`."""
        seconds = max(time.monotonic() - self.start, 1e-9)
        rate = self.done / seconds
        of = f"/{self.total:,}" if self.total else ""
        text = f"{self.title}: {self.done:,}{of} {self.unit}, {rate:,.0f} {self.unit}/s"
        if self.total and 0 < self.done < self.total:
            text += f", {(self.total - self.done) / rate:,.0f} s left"
        return text


class _Bar(Task):
    """A task drawn by rich."""

    def __init__(self, title: str, total: int | None, unit: str, bar: object, key: object) -> None:
        super().__init__(title, total, unit)
        self._bar, self._key = bar, key

    def advance(self, amount: int = 1) -> None:
        self.done += amount
        rate = self.done / max(time.monotonic() - self.start, 1e-9)
        self._bar.update(self._key, advance=amount, rate=f"{rate:,.0f} {self.unit}/s")  # type: ignore[attr-defined]


@contextmanager
def progress(title: str, total: int | None = None, unit: str = "rows") -> Iterator[Task]:
    """Show the progress of a block of work.

    >>> with progress("reading", total=3) as task:
    ...     for _ in range(3):
    ...         task.advance()
    """
    if _quiet or not sys.stderr.isatty():
        yield Task(title, total, unit)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _Bar(title, total, unit, bar, bar.add_task(title, total=total, rate=""))
