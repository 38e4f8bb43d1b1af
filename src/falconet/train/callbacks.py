"""Looking on while a model trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Callback:
    """What is told how a training goes. Override what you need; nothing here does anything.

    Every process has its own callbacks and calls them with the same figures, at the same steps, counted from 1 over all
    epochs. `start` comes once, with the settings of the run; `step` after each step (on a GPU some steps later, a few
    at once); `epoch` after each epoch, with its line of metrics.jsonl; where it gives True on any process, training
    ends there. `end` comes last, whatever ended it. `main_only`: only the main process calls it.
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
