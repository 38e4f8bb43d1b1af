"""Names to classes, so that files and recipes can say `Categorify` or `TwoTower`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from falconet.arguments import explained_class
from falconet.errors import ConfigError, suggest

T = TypeVar("T")


class Registry(Mapping[str, type[T]]):
    """A read-only mapping that classes join by decoration.

    >>> OPS = Registry("operator")
    >>> @OPS.register()
    ... class Clip: ...
    >>> OPS["Clip"].__name__
    'Clip'
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._classes: dict[str, type[T]] = {}

    def register(self, name: str | None = None) -> Callable[[type[T]], type[T]]:
        """A class decorator; the name defaults to the class's own."""

        def add(cls: type[T]) -> type[T]:
            key = name or cls.__name__
            known = self._classes.get(key)
            if known is not None and (known.__module__, known.__qualname__) != (
                cls.__module__,
                cls.__qualname__,
            ):
                raise ConfigError(
                    f"{self.kind} `{key}` is registered twice: by {known.__module__} and {cls.__module__}"
                )
            self._classes[key] = explained_class(cls)
            return cls

        return add

    def __getitem__(self, name: str) -> type[T]:
        if name not in self._classes:
            raise ConfigError(f"unknown {self.kind} `{name}`", hint=suggest(name, self._classes))
        return self._classes[name]

    def __contains__(self, name: object) -> bool:
        return name in self._classes

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._classes))

    def __len__(self) -> int:
        return len(self._classes)
