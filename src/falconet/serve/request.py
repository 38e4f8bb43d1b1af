"""What is asked of a recommender, checked, and as plain values so that a next page can be asked for later."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict

from falconet.errors import ConfigError
from falconet.serve.events import Id, check_id
from falconet.serve.filters import Parameter, parameters_of

SEEN_IN_TRAINING = "training"
"""The type of what a person met before the bundle was built, in histories and in `exclude_seen`."""


Value = int | float | str | bool | None
"""A value of the moment, as `context` has it."""


class Asked(TypedDict, total=False):
    """What `Request` has beside the user, for calls that take it by name."""

    session_id: Id | None
    history: Sequence[Id] | None
    k: int
    exclude_seen: bool | Collection[str]
    exclude_ids: Collection[Id]
    include_ids: Collection[Id] | None
    context: Mapping[str, Value]
    filter: str | None
    boosts: Mapping[str, float]
    parameters: Mapping[str, Parameter]
    diversity: float
    temperature: float
    seed: int
    explain: bool
    scenario: str | None


@dataclass(frozen=True, kw_only=True)
class Request:
    """Who asks for how many items, and which and in what order.

    `history`, of somebody new, oldest first, stands in place of all that is known of the person. `exclude_ids` never
    appear; with `include_ids` nothing else does; neither does what `filter` (filters.py) does not hold for.
    `exclude_seen`: leave out what the person met, or what they have events of these types with; "training" is what they
    met in training. `boosts`: filter to number, added to the score that items are ordered by, which is a logit where
    there is a ranker. `parameters`: values for the `$names` in `filter` and `boosts`.

    `diversity`, from 0 to 1: each place goes to the best of (1 - diversity) · score - diversity · likeness to the
    places before it, both from 0 to 1 (maximal marginal relevance, Carbonell and Goldstein, SIGIR 1998). `temperature`
    above 0 draws the order: items take places with probabilities in proportion to exp(score / temperature), by `seed`.

    `scenario`: the place where the list is shown, of an A/B test (scenarios.py), whose variant for this person then
    decides some of the settings.

    Raises ConfigError or DataError, naming the field, for values that make no sense.
    """

    user_id: Id | None = None
    session_id: Id | None = None
    history: Sequence[Id] | None = None
    k: int = 10
    exclude_seen: bool | Collection[str] = True
    exclude_ids: Collection[Id] = ()
    include_ids: Collection[Id] | None = None
    context: Mapping[str, Value] = field(default_factory=dict)
    filter: str | None = None
    boosts: Mapping[str, float] = field(default_factory=dict)
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    diversity: float = 0.0
    temperature: float = 0.0
    seed: int = 0
    explain: bool = True
    scenario: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1:
            raise ConfigError(f"`k` must be a whole number of at least 1, not {self.k!r}")
        for name in ("user_id", "session_id"):
            if getattr(self, name) is not None:
                check_id(getattr(self, name), name)
        for name in ("history", "exclude_ids", "include_ids"):
            for item in getattr(self, name) or ():
                check_id(item, name)
        if isinstance(self.exclude_seen, str):
            raise ConfigError(f"`exclude_seen` is {self.exclude_seen!r}", hint="true, false, or a list of event types")
        if self.scenario is not None:
            check_id(self.scenario, "scenario")
        if not 0 <= self.diversity <= 1:
            raise ConfigError(f"`diversity` is {self.diversity!r}", hint="from 0 to 1")
        if not 0 <= self.temperature < math.inf:
            raise ConfigError(f"`temperature` is {self.temperature!r}", hint="0, or above to draw the order")
        for expression, by in self.boosts.items():
            if isinstance(by, bool) or not isinstance(by, (int, float)) or not math.isfinite(by):
                raise ConfigError(f"`boosts` has {by!r} for {expression!r}", hint="a number to add to the score")
        expressions = [*self.boosts, *([] if self.filter is None else [self.filter])]
        named = {name for expression in expressions for name in parameters_of(expression)}
        if unused := sorted(self.parameters.keys() - named):
            raise ConfigError(f"`parameters` has `{unused[0]}`, but no filter or boost has `${unused[0]}`")

    def to_plain(self) -> dict[str, Any]:
        """As values that JSON has."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        for name in ("history", "exclude_ids", "include_ids", "exclude_seen"):
            if not isinstance(plain[name], bool) and plain[name] is not None:
                plain[name] = list(plain[name])
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Request:
        """The request that `to_plain` gave."""
        return cls(**plain)
