"""What this process is doing now, for the page: its last minutes in memory. For Prometheus there is metrics.py."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from falconet.serve.answers import Recommendation
from falconet.serve.serving import Serving

SECONDS = 120  # of requests that are told second by second
WINDOW = 300  # seconds whose answers count for times and shares,
KEPT = 5_000  # and at most so many of them, the last ones


@dataclass(frozen=True)
class _Answered:
    when: float
    took_ms: dict[str, float]
    popular: bool
    cold: bool
    degraded: bool


class Live:
    """Counts as it goes; a request costs it an append. Any number of threads may call it. `clock`: seconds."""

    def __init__(self, serving: Serving, clock: Callable[[], float] = time.time) -> None:
        self._serving, self._clock = serving, clock
        self._started = clock()
        self._lock = threading.Lock()
        self._seconds: deque[list[int]] = deque(maxlen=SECONDS + 1)  # [second, requests, refused, broken]
        self._answers: deque[_Answered] = deque(maxlen=KEPT)
        self._events = {"accepted": 0, "duplicates": 0, "rejected": 0}
        self._totals = {"requests": 0, "refused": 0, "broken": 0, "answers": 0}
        self._last_event: float | None = None

    def asked(self, status: int) -> None:
        """A request was answered with this status."""
        second = int(self._clock())
        refused, broken = 400 <= status < 500, status >= 500
        with self._lock:
            if not self._seconds or self._seconds[-1][0] < second:
                self._seconds.append([second, 0, 0, 0])
            last = self._seconds[-1]
            last[1] += 1
            last[2] += refused
            last[3] += broken
            self._totals["requests"] += 1
            self._totals["refused"] += refused
            self._totals["broken"] += broken

    def answered(self, said: Recommendation) -> None:
        """Somebody got a list."""
        popular = bool(said.items) and said.items[0].source == "popular"
        degraded = bool(said.degraded)
        one = _Answered(self._clock(), said.took_ms, popular, said.cold_start, degraded)
        with self._lock:
            self._answers.append(one)
            self._totals["answers"] += 1

    def took_in(self, accepted: int, duplicates: int, rejected: int) -> None:
        """Events came."""
        with self._lock:
            for key, n in (("accepted", accepted), ("duplicates", duplicates), ("rejected", rejected)):
                self._events[key] += n
            if accepted:
                self._last_event = self._clock()

    def plain(self) -> dict[str, Any]:
        """All of it as plain values; times in seconds, those of stages in milliseconds."""
        now = self._clock()
        with self._lock:
            seconds = {second: rest for second, *rest in self._seconds}
            answers = [one for one in self._answers if one.when > now - WINDOW]
            events, totals, last_event = dict(self._events), dict(self._totals), self._last_event
        serving, whole = self._serving, range(int(now) - SECONDS, int(now))  # this second is not over
        return {
            "now": now,
            "process": os.getpid(),
            "alone": serving.alone,
            "up": now - self._started,
            "requests": [seconds.get(second, [0, 0, 0]) for second in whole],
            "totals": totals,
            "events": {**events, "last": last_event},
            "answers": len(answers),
            "stages": _stages(answers),
            "shares": {
                name: sum(getattr(one, name) for one in answers) / len(answers) if answers else None
                for name in ("popular", "cold", "degraded")
            },
            "bundle": serving.recommender.bundle.name,
            "loaded": serving.since,
            "reloads": [{"time": one.time, "before": one.before, "after": one.after} for one in serving.reloads],
        }


def _stages(answers: Sequence[_Answered]) -> dict[str, dict[str, float]]:
    """The 50th, 95th and 99th percentile of each stage, in the order of the first answer."""
    times: dict[str, list[float]] = {}
    for one in answers:
        for stage, ms in one.took_ms.items():
            times.setdefault(stage, []).append(ms)
    return {stage: {f"p{p}": _percentile(sorted(ms), p) for p in (50, 95, 99)} for stage, ms in times.items()}


def _percentile(ordered: Sequence[float], p: int) -> float:
    """The smallest of the values that at least p percent do not exceed."""
    return ordered[max(-(-len(ordered) * p // 100) - 1, 0)]
