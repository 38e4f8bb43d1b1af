"""Items that may not be recommended, as the store says: hidden ones, and those whose time is over."""

from __future__ import annotations

import threading
import time

from falconet.serve.events import Id
from falconet.serve.store import ItemChange, Store
from falconet.serve.tables import Catalogue


class ItemChanges:
    """Follows the changes of items in a store. What any process has said holds from the next call on."""

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

    def known(self) -> frozenset[int]:
        """What `gone` gave last, and what has expired since: for when the store cannot be reached."""
        now = time.time_ns() // 1000
        with self._lock:
            expired = (
                item for item, change in self._said.items() if change.expires is not None and change.expires <= now
            )
            codes = (self._catalogue.code(item) for item in expired)
            return self._gone.union(code for code in codes if code is not None)

    def gone(self) -> frozenset[int]:
        """The codes of items that may not be recommended now."""
        now = time.time_ns() // 1000
        number = self._store.change_number()
        if number == self._number and now < self._until:
            return self._gone
        with self._lock:
            for change in self._store.items_changed_since(self._number):
                item = self._catalogue.ids.normal(change.item_id)
                self._said.pop(item, None)
                if change.hidden or change.expires is not None:
                    self._said[item] = change
                self._number = change.number
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
