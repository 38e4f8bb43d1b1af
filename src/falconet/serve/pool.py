"""Threads that run jobs, of which the one that was busy last is the next to be: what it needs is still in the caches.

Threads that wait at one queue take turns, and after a moment with many jobs at once every job wakes one that has
forgotten all.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

Job = Callable[[], Callable[[], None] | None]
"""What to do; it gives what is to be called once its thread is free for the next job, None where the thread ends."""


class Pool:
    """At most `most` threads, called `name`, which start when they are needed and end with the process."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[Job | None]] = []
        self._waiting: deque[Job] = deque()
        self._threads = 0
        self._closed = False

    def put(self, job: Job) -> None:
        """Run a job, at its turn while all threads are busy. Raises RuntimeError where no thread can be started."""
        with self._lock:
            if self._idle:
                self._idle.pop().put(job)
            elif self._threads < self._most:
                self._start(job)
            else:
                self._waiting.append(job)

    def replace(self) -> None:
        """Count a thread no more whose job does not end; that job gives None in the end."""
        with self._lock:
            self._threads -= 1
            if self._waiting:
                self._start(self._waiting.popleft())

    def close(self) -> None:
        """End the threads, each after what it does and what waits."""
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop().put(None)

    def _start(self, job: Job) -> None:
        threading.Thread(target=self._work, args=(job,), name=self._name, daemon=True).start()
        self._threads += 1

    def _work(self, job: Job | None) -> None:
        mine: SimpleQueue[Job | None] = SimpleQueue()
        while job is not None:
            then = job()
            if then is None:
                return
            with self._lock:
                job = self._waiting.popleft() if self._waiting else None
                rests = job is None and not self._closed
                if rests:
                    self._idle.append(mine)
            then()
            if rests:
                job = mine.get()
