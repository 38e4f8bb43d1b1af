"""How long the stages of an answer may take, and what becomes of work that takes longer.

Retrieving and ranking run in threads of their own, so that a request waits for a stage no longer than it may. What is
late goes on alone, its thread is replaced, and what comes of it is thrown away. Work that stays behind does not pile
up: while LOST runs of a stage have been given up and not ended, no further one begins it. So there are never more
threads than `threads`, and for each stage LOST - 1 and `threads` again.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from falconet.errors import ConfigError
from falconet.serve.pool import Pool

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
            if value is not None and not 0 < value <= threading.TIMEOUT_MAX * 1000:
                raise ConfigError(
                    f"the budget `{name}` is {value!r} ms",
                    hint="above 0, and a time that can be waited for; None: no bound",
                )

    def left(self, stage: Stage, since: float, begun: float) -> float | None:
        """Seconds that a stage may still take, of an answer that began at `since`; None: no bound.

        Both times are those of time.perf_counter; `begun` is when the stage began.
        """
        now, own = time.perf_counter(), getattr(self, stage)
        left = [] if own is None else [own / 1000 - (now - begun)]
        if self.total is not None:
            left.append(self.total / 1000 - (now - since))
        return min(left, default=None)


class _Run:
    """The stages of one answer on their way."""

    def __init__(self, steps: Iterator[Any], names: tuple[Stage, ...]) -> None:
        self.steps, self.names = steps, names
        self.results: list[Any] = []
        self.begun = time.perf_counter()  # the stage that runs or is waited for
        self.error: BaseException | None = None
        self.skipped = False  # the next stage must not begin
        self.running = self.given_up = False
        self.over = threading.Lock()  # held until there is no more to wait for
        self.over.acquire()

    @property
    def stage(self) -> Stage | None:
        """The stage whose result is the next; None after the last."""
        return self.names[len(self.results)] if len(self.results) < len(self.names) else None


class Stages:
    """Runs the stages of answers in a bounded number of threads, which start when they are needed."""

    def __init__(self, budgets: Budgets, *, threads: int = _THREADS) -> None:
        self.budgets = budgets
        self._pool = Pool("falconet-stages", threads)
        self._lock = threading.Lock()
        self._lost: Counter[Stage] = Counter()  # runs that were given up and have not ended, by their stage

    @property
    def lost(self) -> int:
        """Runs that were given up and still go on."""
        return self._lost.total()

    def take(self, steps: Iterator[Any], names: tuple[Stage, ...], since: float) -> tuple[list[Any], Stage | None]:
        """What `steps` give, one for each named stage, of an answer that began at `since` (time.perf_counter).

        Where a stage is late, or must not begin, the results of those before it, and its name. Raises what a step
        raises.
        """
        run = _Run(steps, names)
        left = self.budgets.left(names[0], since, run.begun)
        with self._lock:
            if self._lost[names[0]] >= LOST or (left is not None and left <= 0):
                return [], names[0]
        self._pool.put(lambda: self._go(run))
        # One wait for all stages in most cases: to be woken after each would cost more than some of them.
        while not run.over.acquire(timeout=self._patience(run, since)):
            with self._lock:
                stage = run.stage
                left = None if stage is None else self.budgets.left(stage, since, run.begun)
                if left is not None and left <= 0 and run.over.locked():
                    self._give_up(run)
                    return run.results, stage
        if run.error is not None:
            raise run.error
        return run.results, run.stage

    def close(self) -> None:
        """End the threads, each after what it does."""
        self._pool.close()

    def _patience(self, run: _Run, since: float) -> float:
        """Seconds after which a stage of a run may be late; -1: never."""
        with self._lock:
            coming = run.names[len(run.results) :]
            now = time.perf_counter()
            left = [self.budgets.left(name, since, now if i else run.begun) for i, name in enumerate(coming)]
        bounds = [x for x in left if x is not None]
        return max(min(bounds), 0.0) if bounds else -1.0

    def _give_up(self, run: _Run) -> None:
        run.given_up = True
        if run.running:  # its thread is as good as gone
            assert run.stage is not None
            self._lost[run.stage] += 1
            self._pool.replace()

    def _go(self, run: _Run) -> Callable[[], None] | None:
        """Go through the stages of a run; who waits for it is told by what this gives, None where nobody waits."""
        while True:
            with self._lock:
                stage = run.stage
                run.running = not (
                    run.given_up or stage is None or run.error or (run.results and self._lost[stage] >= LOST)
                )
                if not run.running:
                    return run.over.release
            assert stage is not None
            result, error = None, None
            try:
                result = next(run.steps)
            except BaseException as raised:  # noqa: BLE001  # whoever waits for it gets it
                error = raised
            with self._lock:
                if run.given_up:
                    self._lost[stage] -= 1
                    return None
                run.begun, run.error, run.running = time.perf_counter(), error, False
                if error is None:
                    run.results.append(result)


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
