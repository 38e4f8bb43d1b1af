"""What `falconet tune` may change in a recipe, and between which values: the table `[tune]`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from falconet.errors import ConfigError

TABLES = ("retriever", "ranker", "prepare", "bundle")  # of what is measured by the same rows whatever it is set to
_RANGE = ("low", "high", "log", "step")


@dataclass(frozen=True)
class Choice:
    """One of these values; lists and tables are values too."""

    values: tuple[Any, ...]

    @property
    def ends(self) -> tuple[Any, ...]:
        return self.values

    def has(self, value: Any) -> bool:
        return any(value == one and type(value) is type(one) for one in self.values)


@dataclass(frozen=True)
class Range:
    """A number from `low` to `high`, both included, whole where both are. `log`: small ones as likely as large ones."""

    low: float
    high: float
    log: bool = False
    step: float | None = None

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> tuple[Any, ...]:
        return (self.low, self.high)

    def has(self, value: Any) -> bool:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not self.low <= value <= self.high or (self.whole and not isinstance(value, int)):
            return False
        places = 0.0 if self.step is None else (value - self.low) / self.step
        return math.isclose(places, round(places), abs_tol=1e-9)


@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    """A search. `space`: for each setting, by its name as for `--set`, a list of values or `low` and `high`.

    `metric` of the model `of` in the report is to be as high as it can be. Without `of` it is the two stages' together
    where the space changes anything but retrievers, else what the retrievers name.
    """

    space: dict[str, Any] = field(default_factory=dict)
    metric: str = "ndcg@10"
    of: str | None = None
    trials: int = 20
    prune: bool = True  # end the training of a retriever that is behind the others after the same epoch

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ConfigError(f"`tune.trials` is {self.trials}", hint="at least 1")
        for name in self.space:
            if name.partition(".")[0] not in TABLES:
                raise ConfigError(
                    f"`tune.space` has `{name}`", hint=f"what can be searched begins with {', '.join(TABLES)}"
                )
        self.ranges  # noqa: B018 - to check them

    @property
    def ranges(self) -> dict[str, Choice | Range]:
        """The space, checked. Raises ConfigError."""
        return {name: _range(name, given) for name, given in self.space.items()}


def _range(name: str, given: Any) -> Choice | Range:
    where = f"`tune.space` of `{name}`"
    if isinstance(given, (list, tuple)):
        if not given:
            raise ConfigError(f"{where} has no values", hint="a list of values, like [32, 64]")
        return Choice(tuple(given))
    if not isinstance(given, Mapping) or not {"low", "high"} <= given.keys():
        raise ConfigError(
            f"{where} is {given!r}", hint="a list of values, like [32, 64], or { low = 0.001, high = 0.1, log = true }"
        )
    if unknown := sorted(given.keys() - set(_RANGE)):
        raise ConfigError(f"{where} has no `{unknown[0]}`", hint=f"there are {', '.join(_RANGE)}")
    for key in given.keys() - {"log"}:
        if isinstance(given[key], bool) or not isinstance(given[key], (int, float)) or not math.isfinite(given[key]):
            raise ConfigError(f"{where}: `{key}` is {given[key]!r}", hint="a number")
    if not isinstance(given.get("log", False), bool):
        raise ConfigError(f"{where}: `log` is {given['log']!r}", hint="true or false")
    found = Range(given["low"], given["high"], given.get("log", False), given.get("step"))
    if found.low > found.high:
        raise ConfigError(f"{where} goes from {found.low} to {found.high}", hint="`low` is the smaller one")
    if found.log and found.low <= 0:
        raise ConfigError(f"{where}: `log` needs a `low` above 0, not {found.low}")
    if found.step is not None and (found.step <= 0 or found.log):
        raise ConfigError(f"{where}: `step` is {found.step}", hint="above 0, and not together with `log`")
    if found.whole and found.step is not None and not isinstance(found.step, int):
        raise ConfigError(f"{where}: `step` is {found.step}", hint="a whole number, as `low` and `high` are")
    return found
