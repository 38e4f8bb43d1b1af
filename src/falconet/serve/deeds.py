"""What a person did, as a store has it."""

from __future__ import annotations

from collections.abc import Collection

from falconet.serve.events import HIDE, Id, Who
from falconet.serve.store import Store

_MORE = 8  # events that are read beyond the items that are wanted, some of which have several


class Deeds:
    """The events of a person. The store is asked once where they are few, or where the last ones tell all."""

    def __init__(self, store: Store | None, who: Who | None, wanted: int) -> None:
        """`wanted`: how many items a history has. Without a store, or of nobody, there are none."""
        self._store, self._who = store, who
        self._read(wanted + _MORE)

    def _read(self, rows: int) -> None:
        self._latest = [] if self._store is None or self._who is None else self._store.latest(self._who, rows)
        self._are_all = len(self._latest) < rows

    def history(self, limit: int) -> list[tuple[Id, str]]:
        """(item id, type) of the last `limit` items of the person, oldest first; `hide` is not a meeting.

        An item with several events stands once, where its last one is.
        """
        while True:
            met: dict[Id, str] = {}
            for item, kind in self._latest:
                if kind != HIDE:
                    met.setdefault(item, kind)
            if self._are_all or len(met) >= limit:
                return list(met.items())[:limit][::-1]
            self._read(2 * len(self._latest))

    def seen(self, types: Collection[str] | None = None) -> list[Id]:
        """Every item that the person has an event of one of `types` (None: any type) with, each once."""
        if self._are_all:
            return list(dict.fromkeys(item for item, kind in self._latest if types is None or kind in types))
        assert self._store is not None
        assert self._who is not None
        return self._store.seen(self._who, types)
