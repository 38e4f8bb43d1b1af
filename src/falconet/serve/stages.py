"""How long the stages of an answer may take, and what becomes of work that takes longer.

Retrieving and ranking run in threads of their own, so that a request waits for a stage no longer than it may. What is
late goes on alone, its thread is replaced, and what comes of it is thrown away. Work that stays behind does not pile
up: while LOST runs of a stage have been given up and not ended, no further one begins it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Literal

from falconet.errors import ConfigError

Stage = Literal["store", "retrieve", "rank"]
LOST = 4  # runs of a stage that were given up and still go on, from which on no other begins it
_THREADS = 16  # runs at once


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """Milliseconds that an answer may take, and its stages; None: as long as it takes.

    `total` counts from the start of an answer, the reads of the store included: a stage gets what is left of it.
    """

    total: float | None = None
    retrieve: float | None = None
    rank: float | None = None

    def __post_init__(self) -> None:
        for name in ("total", "retrieve", "rank"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"the budget `{name}` is {value!r} ms", hint="above 0, or none")

    def left(self, stage: Stage, since: float) -> float | None:
        """Seconds that a stage may take now, of an answer that began at `since` (time.perf_counter); None: no bound."""
        own = getattr(self, stage)
        left = [] if own is None else [own / 1000]
        if self.total is not None:
            left.append(self.total / 1000 - (time.perf_counter() - since))
        return min(left, default=None)


class Late(Exception):  # noqa: N818  # no error: the answer goes on without the stage
    """A stage takes longer than it may, or must not begin for what others have left behind."""


class Run:
    """The stages of one answer on their way; `Stages.start` makes it."""

    def __init__(self, owner: Stages, steps: Iterator[Any], names: tuple[Stage, ...]) -> None:
        self._owner, self.steps, self.names = owner, steps, names
        self.results: SimpleQueue[tuple[bool, Any]] = SimpleQueue()
        self.at = 0  # the stage that was begun last
        self.begun = self.given_up = False  # whether it runs; whether nobody waits for it any more

    def next(self, seconds: float | None) -> Any:
        """What the next stage gives. Raises Late, after which there is no more, and what the stage raises."""
        try:
            good, result = self.results.get(timeout=None if seconds is None else max(seconds, 0))
        except Empty:
            if self._owner.give_up(self):
                raise Late from None
            good, result = self.results.get()  # it came just now
        if not good:
            raise result
        return result


class Stages:
    """Runs the stages of answers in a bounded number of threads, which start when they are needed."""

    def __init__(self, budgets: Budgets, *, threads: int = _THREADS) -> None:
        self.budgets = budgets
        self._most = threads
        self._lock = threading.Lock()
        self._waiting: SimpleQueue[Run | None] = SimpleQueue()
        self._threads = self._busy = 0  # of those that were not given up
        self._lost: Counter[Stage] = Counter()  # runs that were given up and have not ended, by their stage

    @property
    def lost(self) -> int:
        """Runs that were given up and still go on."""
        return self._lost.total()

    def start(self, steps: Iterator[Any], *names: Stage, seconds: float | None = None) -> Run:
        """Begin to take `steps`, one for each named stage; the first may take so many `seconds`.

        Raises Late where it must not begin, or has no time.
        """
        run = Run(self, steps, names)
        with self._lock:
            if self._lost[names[0]] >= LOST or (seconds is not None and seconds <= 0):
                raise Late
            self._busy += 1
            self._grow()
        self._waiting.put(run)
        return run

    def give_up(self, run: Run) -> bool:
        """Whether nobody waits for a run any more; False where a result has come in the meantime."""
        with self._lock:
            if not run.results.empty():
                return False
            run.given_up = True
            if run.begun:  # its thread is as good as gone
                self._lost[run.names[run.at]] += 1
                self._threads -= 1
                self._busy -= 1
                self._grow()
            return True

    def close(self) -> None:
        """End the threads, each after what it does."""
        with self._lock:
            for _ in range(self._threads):
                self._waiting.put(None)

    def _grow(self) -> None:
        """Start a thread where there is more to do than threads to do it."""
        if self._busy > self._threads < self._most:
            self._threads += 1
            threading.Thread(target=self._work, name="falconet-stages", daemon=True).start()

    def _work(self) -> None:
        while (run := self._waiting.get()) is not None:
            if not self._take(run):
                return

    def _take(self, run: Run) -> bool:
        """Go through the stages of a run; whether its thread is still one of the pool's."""
        for at, stage in enumerate(run.names):
            with self._lock:
                run.at, run.begun = at, True
                if run.given_up:
                    break
                if at and self._lost[stage] >= LOST:
                    run.results.put((False, Late()))
                    break
            try:
                result = (True, next(run.steps))
            except BaseException as error:  # noqa: BLE001  # whoever waits for it gets it
                result = (False, error)
            with self._lock:
                if run.given_up:
                    self._lost[stage] -= 1
                    return False
                run.results.put(result)
                run.begun = False
            if not result[0]:
                break
        with self._lock:
            self._busy -= 1
        return True


class Degraded:
    """Counts answers that went without a stage, and says so once a minute at most."""

    def __init__(self, say: Callable[[str], object], *, seconds: float = 60.0) -> None:
        self._say, self._seconds = say, seconds
        self._lock = threading.Lock()
        self._since: Counter[Stage] = Counter()
        self._last: dict[Stage, float] = {}

    def count(self, stage: Stage) -> None:
        """One more answer without a stage."""
        with self._lock:
            self._since[stage] += 1
            now = time.monotonic()
            if now - self._last.get(stage, -self._seconds) < self._seconds:
                return
            self._last[stage], count = now, self._since.pop(stage)
        answers = "an answer" if count == 1 else f"{count:,} answers"
        self._say(f"{_WHY[stage]}: {answers} {_INSTEAD[stage]}")


_WHY: dict[Stage, str] = {
    "store": "the store cannot be reached",
    "retrieve": "retrieving took too long",
    "rank": "ranking took too long",
}
_INSTEAD: dict[Stage, str] = {
    "store": "without what it knows",
    "retrieve": "with what is popular",
    "rank": "in the order of the retrievers",
}
