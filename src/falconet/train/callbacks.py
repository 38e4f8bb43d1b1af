"""Looking on while a model trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from falconet.errors import DistributedError
from falconet.train.runtime import Runtime


class Callback:
    """What is told how a training goes. Override what you need; nothing here does anything.

    Every process has its own callbacks and calls them with the same figures, at the same steps, counted from 1 over all
    epochs. `start` comes once, with the settings of the run; `step` after each step (on a GPU some steps later, a few
    at once); `epoch` after each epoch, with its line of metrics.jsonl; where it gives True on any process, training
    ends there. `end` comes last, whatever ended it. `main_only`: only the main process calls it.

    An error in a callback ends the training on all processes.
    """

    main_only = False

    def start(self, settings: Mapping[str, Any]) -> None:
        """Training begins, or goes on."""

    def step(self, step: int, figures: Mapping[str, float]) -> None:
        """A step was taken: `loss` (mean over the rows of all processes), `learning_rate`, `gradient_norm`."""

    def epoch(self, epoch: int, figures: Mapping[str, Any]) -> bool | None:
        """An epoch is over, counted from 1."""

    def end(self) -> None:
        """Training is over, or was broken off."""


class Callbacks:
    """The callbacks of this process, whose errors are raised where all processes know of them.

    One that raised at once would leave the others waiting. So `failed` goes to them with the next figures that all add
    up, and each then calls `check`; until then no callback is called.
    """

    def __init__(self, callbacks: Sequence[Callback], runtime: Runtime) -> None:
        self._mine = [c for c in callbacks if runtime.is_main or not c.main_only]
        self._runtime = runtime
        self._error: Exception | None = None

    @contextmanager
    def told(self, settings: Mapping[str, Any]) -> Iterator[None]:
        """They hear of the start and, whatever happens within the block, of the end."""
        try:
            self._each(lambda callback: callback.start(settings))
            self._check_all()
            yield
        except BaseException as error:
            for other in self._end():
                error.add_note(f"and at the end: {type(other).__name__}: {other}")
            raise
        errors = self._end()
        self._error = errors[0] if errors else None
        self._check_all()

    def step(self, step: int, figures: Mapping[str, float]) -> None:
        self._each(lambda callback: callback.step(step, figures))
        if self._runtime.world == 1:
            self.check(self.failed)

    def epoch(self, epoch: int, figures: Mapping[str, Any]) -> bool:
        """Whether one of this process's ends the training."""
        return any(self._each(lambda callback: callback.epoch(epoch, figures)))

    @property
    def failed(self) -> bool:
        return self._error is not None

    def check(self, failures: float) -> None:
        """Where there were failures: raise the error of this process's callback, or DistributedError for another's."""
        if failures:
            raise self._error or DistributedError(
                "a callback failed on another process", hint="that process says what went wrong"
            )

    def _check_all(self) -> None:
        self.check(float(self._runtime.sums(torch.tensor([float(self.failed)]))))

    def _end(self) -> list[Exception]:
        errors: list[Exception] = []
        for callback in self._mine:
            try:
                callback.end()
            except Exception as error:  # noqa: BLE001 - `told` raises the first, once all callbacks were told
                errors.append(error)
        return errors

    def _each(self, call: Callable[[Callback], object]) -> list[object]:
        if self.failed:
            return []
        try:
            return [call(callback) for callback in self._mine]
        except Exception as error:  # noqa: BLE001 - `check` raises it
            self._error = error
            return []
