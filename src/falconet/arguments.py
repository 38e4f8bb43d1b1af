"""Calls with arguments that do not fit, in words."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from falconet.errors import ConfigError, suggest

P = ParamSpec("P")
T = TypeVar("T")


def explained(call: Callable[P, T]) -> Callable[P, T]:
    """`call`, which for arguments that it has not, or lacks, raises ConfigError with the near name, not TypeError."""

    @functools.wraps(call)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except TypeError:
            if (error := _unfit(call, args, kwargs)) is not None:
                raise error from None
            raise

    return checked


def explained_class(kind: type[T]) -> type[T]:
    """A class whose constructor does so."""
    kind.__init__ = explained(kind.__init__)  # type: ignore[method-assign]
    return kind


def _unfit(call: Callable[..., Any], args: Any, kwargs: Any) -> ConfigError | None:
    """What is wrong with the arguments of a call, None where they fit."""
    signature = inspect.signature(call)  # only now: annotations may name what is there for type checkers alone
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        pass
    else:
        return None
    parameters = dict(signature.parameters)
    owner = args[0] if next(iter(parameters), "") in ("self", "cls") else None
    name = call.__qualname__
    if owner is not None:
        parameters.pop(next(iter(parameters)))
        kind = owner if isinstance(owner, type) else type(owner)
        name = kind.__qualname__ + ("" if call.__name__ == "__init__" else f".{call.__name__}")
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for key in kwargs:
        if key not in parameters and not takes_any:
            return ConfigError(f"{name} has no `{key}`", hint=suggest(key, parameters))
    places = [k for k, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if twice := [k for k in places[: len(args) - (owner is not None)] if k in kwargs]:
        return ConfigError(f"{name} was given `{twice[0]}` twice, by its place and by its name", hint="once is enough")
    unbounded = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [k for k, p in parameters.items() if p.default is p.empty and p.kind not in unbounded]
    lacks = [k for k in needed[max(len(args) - (owner is not None), 0) :] if k not in kwargs]
    if lacks:
        return ConfigError(f"{name} needs `{lacks[0]}`", hint=f"{name}({', '.join(f'{k}=...' for k in needed)})")
    named = [k for k, p in parameters.items() if p.kind is p.KEYWORD_ONLY]
    example = f"{name}({named[0]}=...)" if named else f"{name}{signature}"
    return ConfigError(f"{name} was given {len(args) - (owner is not None)} values without a name", hint=example)
