"""Items that may not be recommended, as the store says: hidden ones, and those whose time is over."""

from __future__ import annotations

import threading
import time

from falconet.serve.events import Id
from falconet.serve.store import ItemChange, Store
from falconet.serve.tables import Catalogue


class ItemChanges:
    """Follows the changes of items in a store. What any process has said holds from the next `follow` on."""

    def __init__(self, store: Store, catalogue: Catalogue) -> None:
        self._store, self._catalogue = store, catalogue
        self._lock = threading.Lock()
        self._number = 0
        self._said: dict[Id, ItemChange] = {}  # of items that are hidden or will expire
        self._gone: frozenset[int] = frozenset()
        self._until = 0  # when the next item expires, in microseconds since 1970

    def over(self, catalogue: Catalogue) -> ItemChanges:
        """The same of another catalogue of the same items, and of new ones."""
        with self._lock:
            other = ItemChanges(self._store, catalogue)
            other._said, other._number = dict(self._said), self._number
            other._find_gone(time.time_ns() // 1000)
            return other

    def follow(self, number: int | None = None) -> None:
        """Take in what was said since. `number`: of the last change, where that has just been read."""
        if (self._store.change_number() if number is None else number) == self._number:
            return
        with self._lock:
            last = self._number
            for change in self._store.items_changed_since(last):
                item = self._catalogue.ids.normal(change.item_id)
                self._said.pop(item, None)
                if change.hidden or change.expires is not None:
                    self._said[item] = change
                last = change.number
            self._find_gone(time.time_ns() // 1000)
            self._number = last  # last: whoever finds it does not wait for the lock

    def gone(self) -> frozenset[int]:
        """The codes of items that may not be recommended now, by what `follow` has taken in."""
        now = time.time_ns() // 1000
        if now >= self._until:
            with self._lock:
                self._find_gone(now)
        return self._gone

    def _find_gone(self, now: int) -> None:
        """Which items are gone by what is said, and until when that holds."""
        gone, coming = [], [2**63]
        for item, change in self._said.items():
            if change.hidden or (change.expires is not None and change.expires <= now):
                gone.append(self._catalogue.code(item))
            elif change.expires is not None:
                coming.append(change.expires)
        self._gone = frozenset(code for code in gone if code is not None)
        self._until = min(coming)
