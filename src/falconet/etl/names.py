"""Names of columns: groups of them, and those that an operator makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from falconet.errors import ConfigError, SchemaError

if TYPE_CHECKING:
    from falconet.etl.op import Op


def repeated(names: Iterable[str]) -> str | None:
    """The first name that was there before; None where each is there once.

    >>> repeated(["a", "b", "b", "a"])
    'b'
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def check_bytes(names: Iterable[str], where: str) -> None:
    """Raise SchemaError for a name that other programs would cut short."""
    for name in names:
        if "\0" in name:
            raise SchemaError(f"{where} has the name {name!r}, and no name may have a null byte", hint="rename it")


def sources_of(op: Op, groups: Iterable[tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The outputs of an operator on columns in groups, each with the inputs it is made from."""
    if not op.grouped:
        return op.sources(_once(groups))
    found: dict[str, tuple[str, ...]] = {}
    for group in groups:
        for name, made_from in op.sources(group).items():
            if found.setdefault(name, made_from) != made_from:
                raise ConfigError(
                    f"{type(op).__name__} makes two columns `{name}`, of {list(found[name])} and of {list(made_from)}",
                    hint="`>> Rename(...)` a column before, or choose another separator of names",
                )
    return found


def made_by(op: Op, groups: Sequence[tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The same without the inputs that come out as they are."""
    parts = groups if op.grouped else [_once(groups)]
    untouched = {name for part in parts for name in op.untouched(part)}
    return {name: made_from for name, made_from in sources_of(op, groups).items() if name not in untouched}


def _once(groups: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """The names in groups; one may be in several."""
    return tuple(dict.fromkeys(name for group in groups for name in group))


def checked_names(value: Any) -> tuple[Any, ...]:
    """Names and groups of names (nested lists), groups as tuples. Raises ConfigError for anything else."""
    if isinstance(value, str):
        return (value,)
    names = tuple(tuple(name) if isinstance(name, (list, tuple)) else name for name in value)
    for group in names:
        for name in group if isinstance(group, tuple) else (group,):
            if not isinstance(name, str):
                raise ConfigError(f"a column name is a string, not {name!r}", hint="groups are nested one level deep")
        if not group:
            raise ConfigError("a group of no columns", hint='a nested list names its columns: [["user", "friend"]]')
    return names


def flat(names: Iterable[Any]) -> list[str]:
    """The names, those in groups too."""
    return [n for name in names for n in ((name,) if isinstance(name, str) else name)]


def regroup(groups: tuple[tuple[str, ...], ...], names: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """The groups among `names`, and what is in no group alone; in the order of the first of each."""
    place = {name: i for i, name in enumerate(names)}
    left = [tuple(name for name in group if name in place) for group in groups]
    grouped = {name for group in left for name in group}
    found = dict.fromkeys([group for group in left if group] + [(name,) for name in place if name not in grouped])
    return tuple(sorted(found, key=lambda group: min(place[name] for name in group)))
