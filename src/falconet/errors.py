"""Every error a user can meet, as one small tree.

    FalconetError
    ├── ConfigError       a setting is wrong (also: a recipe key, a missing extra)
    ├── DataError         a file or a value is wrong
    │   └── SchemaError   columns are wrong
    │       └── ColumnNotFoundError
    ├── ArtifactError     a folder falconet wrote is missing, damaged, or of another format
    ├── DistributedError  processes disagree, or one of them is gone
    └── ServiceError      a server failed, refused, or cannot be reached

A message has four facts: what is wrong, where, what was given, and what to do (the hint).
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class FalconetError(Exception):
    """What is wrong and, where we know it, what to do about it."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        message = super().__str__()
        return message if self.hint is None else f"{message}\n\nhint: {self.hint}"

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the hint when the error travels between processes."""
        return _rebuild, (type(self), self.args[0], self.hint)


def _rebuild(kind: type[FalconetError], message: str, hint: str | None) -> FalconetError:
    error = kind.__new__(kind)
    FalconetError.__init__(error, message, hint=hint)
    return error


class ConfigError(FalconetError):
    """A setting is wrong."""


class DataError(FalconetError):
    """A file or a value is wrong."""


class SchemaError(DataError):
    """Columns are not what is needed."""


class ColumnNotFoundError(SchemaError):
    """A column was asked for that is not there."""

    @classmethod
    def of(cls, missing: str, available: Iterable[str], *, where: str) -> ColumnNotFoundError:
        return cls(f"{where} has no column `{missing}`", hint=suggest(missing, available))


class ArtifactError(FalconetError):
    """A folder that falconet wrote is missing, damaged, or of another format."""


class DistributedError(FalconetError):
    """Processes disagree, or one of them is gone."""


class ServiceError(FalconetError):
    """A server failed, refused, or cannot be reached."""


def suggest(given: str, available: Iterable[str]) -> str:
    """The hint for a name that does not exist: the close one, else all of them."""
    names = sorted(available)
    same = {name.lower(): name for name in names}
    close = get_close_matches(given, names, n=1) or [same[x] for x in get_close_matches(given.lower(), same, n=1)]
    return f"did you mean `{close[0]}`?" if close else f"available: {', '.join(names) or 'none'}"
