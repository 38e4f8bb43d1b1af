"""What a training is told from outside: to stop, or to write a snapshot."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any


class Signals:
    """Within the block, SIGTERM and Ctrl-C ask for a stop and SIGUSR1, or the clock, for a snapshot; the loop heeds it
    later. A second Ctrl-C is heeded at once.

    Only this process knows; the trainer tells the others. Signals are left alone outside the main thread, and Ctrl-C
    where it is ignored: in processes of `falconet launch`, which hears it for them.
    """

    def __init__(self, minutes: float | None) -> None:
        self.code = 0  # with which the program should end, once it should
        self._save = False
        self._every = None if minutes is None else minutes * 60
        self._due = time.monotonic() + (self._every or 0)
        self._before: dict[signal.Signals, Any] = {}

    def save(self) -> bool:
        """Whether a snapshot was asked for since the last call."""
        asked, self._save = self._save, False
        if self._every is not None and time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every
            return True
        return asked

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._before[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._hear_stop)
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._hear_interrupt)
            if hasattr(signal, "SIGUSR1"):  # not on Windows
                self._before[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._hear_save)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear_stop(self, number: int, frame: FrameType | None) -> None:
        self.code = 143

    def _hear_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.code == 130:
            signal.default_int_handler(number, frame)
        self.code = 130

    def _hear_save(self, number: int, frame: FrameType | None) -> None:
        self._save = True
