"""A/B tests: scenarios, the variants of each, and which variant a person has: always the same one.

The variant is drawn by the stable hash of (scenario, kind of id, id), so that every process and every replica says the
same without asking anybody, and two scenarios are drawn independently of each other.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from falconet.config import from_plain
from falconet.errors import ConfigError, suggest
from falconet.hashing import stable_hash
from falconet.serve.events import Who, check_id
from falconet.serve.filters import parameters_of
from falconet.serve.request import Request

_PARTS = 1 << 64  # the values of a hash


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What stands in place of a request's own settings. None leaves those as they are. `weight`: its share of people.

    The settings mean what they mean in a request; boosts have no parameters.
    """

    name: str
    weight: float = 1.0
    diversity: float | None = None
    temperature: float | None = None
    exclude_seen: bool | None = None
    boosts: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        check_id(self.name, "variant name")
        if not 0 < self.weight < float("inf"):
            raise ConfigError(f"variant `{self.name}` has the weight {self.weight!r}", hint="a number above 0")
        if with_parameters := [expression for expression in self.boosts or () if parameters_of(expression)]:
            raise ConfigError(
                f"variant `{self.name}`: boosts have no parameters, but `{with_parameters[0]}` does",
                hint="write the value into the expression",
            )
        try:
            self.apply(Request())
        except ConfigError as error:
            raise ConfigError(f"variant `{self.name}`: {error.args[0]}", hint=error.hint) from error

    @property
    def settings(self) -> dict[str, Any]:
        """Those that are given."""
        names = ("diversity", "temperature", "exclude_seen", "boosts")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def apply(self, request: Request) -> Request:
        """The request with the variant's settings."""
        return replace(request, **self.settings)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A place where lists are shown, such as `home`, and the variants that are compared there.

    The first variant is the one that others are compared with.
    """

    name: str
    variants: tuple[Variant, ...] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        check_id(self.name, "scenario name")
        names = [variant.name for variant in self.variants]
        if len(names) < 2 or len(set(names)) < len(names):
            raise ConfigError(
                f"scenario `{self.name}` has the variants {names}", hint="two or more, each with a name of its own"
            )

    def variant(self, who: Who) -> Variant:
        """The one that a person has. People keep theirs as long as names, weights and their order stay."""
        drawn = stable_hash((self.name, who.kind, who.id))
        assert drawn is not None  # ids are no nulls
        total = sum(variant.weight for variant in self.variants)
        place, bound = drawn / _PARTS, 0.0
        for variant in self.variants:
            bound += variant.weight / total
            if place < bound:
                return variant
        return self.variants[-1]  # the last bound may be a rounding error below 1


@dataclass(frozen=True, kw_only=True)
class Scenarios:
    """All of a server: `[[scenario]]` with `name` and `[[scenario.variants]]` in a TOML file."""

    scenario: tuple[Scenario, ...] = ()

    def __post_init__(self) -> None:
        names = [one.name for one in self.scenario]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"two scenarios have the name `{twice[0]}`")

    @classmethod
    def read(cls, path: str | Path) -> Scenarios:
        """Those of a file. Raises ConfigError, naming the key, for a file that is none."""
        try:
            plain = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ConfigError(f"no file of scenarios at `{path}`") from error
        except OSError as error:
            raise ConfigError(f"`{path}` cannot be read: {error.strerror}", hint="scenarios are a TOML file") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"`{path}` is not TOML: {error}") from error
        return from_plain(cls, plain, where=str(path))

    def of(self, name: str) -> Scenario:
        """The scenario of a name. Raises ConfigError where there is none."""
        for one in self.scenario:
            if one.name == name:
                return one
        names = [one.name for one in self.scenario]
        hint = suggest(name, names) if names else "`falconet serve --scenarios FILE` names them"
        raise ConfigError(f"`scenario` is {name!r}, which this server does not have", hint=hint)
