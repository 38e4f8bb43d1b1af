"""Names of columns and files."""

from __future__ import annotations

from collections.abc import Iterable


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
