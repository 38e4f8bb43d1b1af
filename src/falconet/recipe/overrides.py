"""Settings changed by name, as `--set a.b=value` says it."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from falconet.errors import ConfigError


def overridden(plain: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Plain values with `a.b=value` changed in them. Raises ConfigError for what cannot be set."""
    changed = copy.deepcopy(dict(plain))
    for override in overrides:
        _override(changed, override)
    return changed


def _override(plain: dict[str, Any], override: str) -> None:
    key, sign, text = override.partition("=")
    *tables, name = key.strip().split(".")
    if not sign or not name:
        raise ConfigError(f"`--set {override}` is not a setting", hint="write it as --set table.key=value")
    here: Any = plain
    for i, table in enumerate(tables):
        here = _table(here, table, override, ".".join(tables[:i]))
    if not isinstance(here, dict):
        raise ConfigError(
            f"`--set {override}`: there are {len(here)} `{tables[-1]}`", hint=f"`{tables[-1]}.0.{name}` is the first's"
        )
    here[name] = _value(text.strip())


def _table(here: Any, table: str, override: str, before: str) -> Any:
    """The table of that name, or of that number in a list of tables."""
    if isinstance(here, list):
        if not table.isdecimal() or int(table) >= len(here):
            raise ConfigError(
                f"`--set {override}`: `{before}` has no number {table}", hint=f"from 0 to {len(here) - 1}"
            )
        found = here[int(table)]
    else:
        found = here.setdefault(table, {})
    if not isinstance(found, (dict, list)):
        raise ConfigError(f"`--set {override}`: `{table}` is a value, not a table")
    return found


def _value(text: str) -> Any:
    """A TOML value, or the text itself where it is none (so that paths need no quotes)."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text
