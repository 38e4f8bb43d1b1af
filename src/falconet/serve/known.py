"""What is known for a request: who asks, what they met, and what must not come; also while the store is away."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from falconet.serve.changes import ItemChanges
from falconet.serve.engine import Engine
from falconet.serve.events import Who
from falconet.serve.outage import Outage
from falconet.serve.past import Past
from falconet.serve.request import Request
from falconet.serve.store import Store


@dataclass(frozen=True)
class Known:
    """Who asks, and what is known of them: what they met and with which events, all of it, and what must not come.

    `needed`: something that only the store knows would have been missed. `away`: the store was, and it was not.
    """

    who: Who | None
    row: int | None
    met: list[tuple[int, str]]
    everything: list[int] | None
    exclude: frozenset[int]
    profile: dict[str, Any] | None
    needed: bool
    away: bool


class Knowledge:
    """What training and a store know of people, and which items the store hides."""

    def __init__(self, engine: Engine, store: Store | None, outage: Outage) -> None:
        self._store, self._outage = store, outage
        self._changes = None if store is None else ItemChanges(store, engine.catalogue)
        self._look_up_in(engine)

    def _look_up_in(self, engine: Engine) -> None:
        self.past, self._training = Past(engine, self._store), Past(engine, None)

    def over(self, engine: Engine) -> Knowledge:
        """The same of an engine whose catalogue has grown."""
        other = copy.copy(self)
        other._changes = self._changes and self._changes.over(engine.catalogue)
        other._look_up_in(engine)
        return other

    def _needs_store(self, request: Request) -> bool:
        """Whether something that only the store knows would be missed: no history is given, and the person is known."""
        if request.scenario is not None:  # what was shown must be kept
            return True
        return request.history is None and self.past.row(self.past.who(request.user_id, request.session_id)) is not None

    def of(self, request: Request) -> Known:
        """What is known for a request; where it can do without the store while that is away, what training knew."""
        if self._store is None or self._needs_store(request):
            return self._read(request, self.past, needed=self._store is not None)
        found = self._outage.attempt(lambda: self._read(request, self.past))
        return self._read(request, self._training, away=True) if found is None else found

    def gone(self) -> frozenset[int]:
        """The codes of items that are hidden or expired, as far as `follow` has learned."""
        return frozenset() if self._changes is None else self._changes.gone()

    def follow(self, number: int | None = None) -> None:
        """Learn which items the store hides by now. `number`: of its last change, where that has just been read."""
        if self._changes is not None:
            self._changes.follow(number)

    def _read(self, request: Request, past: Past, *, needed: bool = False, away: bool = False) -> Known:
        """`away`: the store is. Then items are hidden as was known last, and no item of the history comes back, for
        which of them the person has events with nobody knows."""
        who = past.who(request.user_id, request.session_id)
        deeds = past.deeds(who)
        if self._outage.is_on and not away:  # else what is hidden by now was learned when the request came
            self.follow()
        hidden = past.hidden(deeds)
        met = past.met(who, deeds, request.history, hidden)
        exclude = hidden | self.gone() | past.seen(who, deeds, request.exclude_seen)
        exclude |= past.codes(request.exclude_ids, "exclude_ids")
        if request.exclude_seen is True or (away and request.exclude_seen is not False):
            exclude |= past.codes(request.history or (), "history")
        everything = past.everything(who, deeds, request.history, hidden)
        return Known(who, past.row(who), met, everything, exclude, past.profile(who), needed, away)
