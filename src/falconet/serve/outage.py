"""A store that is away, for answers that can do without it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

AGAIN = 1.0  # seconds


class Outage:
    """Asks a store that is away once in a while, and not for every request: each would wait until its time is over."""

    def __init__(self, kinds: tuple[type[Exception], ...], *, again: float = AGAIN) -> None:
        """`kinds`: what calls raise while the store is away. `again`: seconds until one of them is tried again."""
        self._kinds, self._again = kinds, again
        self._lock = threading.Lock()
        self._until: float | None = None  # when to ask again; None while it answers

    @property
    def is_on(self) -> bool:
        """Whether the store was away when it was asked last."""
        return self._until is not None

    def attempt(self, ask: Callable[[], T]) -> T | None:
        """What the store says; None while it is away."""
        with self._lock:
            if self._until is not None:
                if time.monotonic() < self._until:
                    return None
                self._until = time.monotonic() + self._again  # the others need not wait for this one
        try:
            said = ask()
        except self._kinds:
            with self._lock:
                self._until = time.monotonic() + self._again
            return None
        with self._lock:
            self._until = None
        return said
