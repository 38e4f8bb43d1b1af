"""Settings: frozen dataclasses to and from plain JSON or TOML values, with errors that name the key.

Not pydantic, because the training side reads config.json on machines that have only torch and pyarrow.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from falconet.arguments import explained_class
from falconet.errors import ConfigError, suggest

T = TypeVar("T")

_LISTS = (tuple, list, Sequence)


def to_plain(value: Any) -> Any:
    """A config as dicts, lists and scalars, ready for JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return sorted(to_plain(v) for v in value)
    return value


def from_plain(kind: type[T], data: Any, *, where: str = "config") -> T:
    """Build dataclass `kind` from a mapping. Unknown keys, missing keys and wrong types raise ConfigError."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"`{where}` must be a table of settings, not {data!r}")
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind) if f.init}  # type: ignore[arg-type]
    for key in data:
        if key not in fields:
            raise ConfigError(f"`{where}` has an unknown key `{key}`", hint=suggest(str(key), fields))
    values = {}
    for name, f in fields.items():
        if name in data:
            values[name] = _convert(hints[name], data[name], f"{where}.{name}")
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ConfigError(f"`{where}` lacks the key `{name}`", hint=f"it needs {_say(hints[name])}")
    return kind(**values)


def with_types(settings: type[T]) -> type[T]:
    """A dataclass of settings that refuses other types by ConfigError, and takes a list where it keeps a tuple."""
    made = settings.__init__
    hints_of = functools.cache(lambda: typing.get_type_hints(settings))  # not before all names are known

    @functools.wraps(made)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        hints, name = hints_of(), type(self).__qualname__
        given = {k: _convert(hints[k], x, f"{name}.{k}") if k in hints else x for k, x in kwargs.items()}
        made(self, *args, **given)

    settings.__init__ = init  # type: ignore[method-assign]
    return explained_class(settings)


def config_hash(value: Any) -> str:
    """SHA-256 of the canonical JSON of a config or of plain values."""
    text = json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        return _convert_union(hint, args, value, where)
    if origin is typing.Literal:
        if value in args and not isinstance(value, bool):
            return value
        raise ConfigError(
            f"`{where}` must be one of {', '.join(map(repr, args))}, not {value!r}",
            hint=suggest(str(value), map(str, args)),
        )
    if dataclasses.is_dataclass(hint):
        if isinstance(value, hint):  # type: ignore[arg-type]
            return value
        return from_plain(typing.cast(type[Any], hint), value, where=where)
    if origin in _LISTS and isinstance(value, (list, tuple)):
        return _convert_sequence(origin, args, value, where)
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return {str(k): _convert(args[1], v, f"{where}.{k}") for k, v in value.items()}
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint in (str, bool, types.NoneType) and isinstance(value, hint):
        return value
    listed = f"[{value!r}]" if origin in _LISTS and not dataclasses.is_dataclass(args[0]) else None
    raise ConfigError(f"`{where}` must be {_say(hint)}, not {value!r}", hint=listed)


def _convert_union(hint: Any, args: tuple[Any, ...], value: Any, where: str) -> Any:
    inner: ConfigError | None = None
    for arm in args:
        try:
            return _convert(arm, value, where)
        except ConfigError as error:
            # An arm that is a table of settings knows better what is wrong than the union does.
            if isinstance(value, Mapping) and dataclasses.is_dataclass(arm):
                inner = error
    raise inner or ConfigError(f"`{where}` must be {_say(hint)}, not {value!r}")


def _convert_sequence(origin: Any, args: tuple[Any, ...], value: Any, where: str) -> Any:
    if origin in (list, Sequence) or (len(args) == 2 and args[1] is Ellipsis):
        return (list if origin is list else tuple)(_convert(args[0], v, f"{where}[{i}]") for i, v in enumerate(value))
    if len(value) != len(args):
        raise ConfigError(f"`{where}` needs {len(args)} values, got {len(value)}: {value!r}")
    return tuple(_convert(a, v, f"{where}[{i}]") for i, (a, v) in enumerate(zip(args, value, strict=True)))


def _say(hint: Any) -> str:
    names = {
        int: "a whole number",
        float: "a number",
        str: "a string",
        bool: "true or false",
        types.NoneType: "nothing",
    }
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in names:
        return names[hint]
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_say(a) for a in args)
    if origin in _LISTS and args:
        kind, _, more = _say(args[0]).removeprefix("a ").partition(" (")
        return f"a list of {kind}s{more and f' ({more}'}"
    if origin in _LISTS:
        return "a list"
    if origin is typing.Literal:
        return f"one of {', '.join(map(repr, args))}"
    return f"a table ({getattr(hint, '__name__', hint)})"
