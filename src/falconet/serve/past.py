"""What is known of a person: what they met, in training and since, and what they never want to see again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from falconet.serve.deeds import Deeds
from falconet.serve.engine import Engine
from falconet.serve.events import HIDE, Event, Id, Who, check_id
from falconet.serve.request import SEEN_IN_TRAINING
from falconet.serve.store import Store

_ALL = 10_000  # events of a person that are read at most


class Past:
    """Looks people up in the tables of a bundle and in a store, where there is one."""

    def __init__(self, engine: Engine, store: Store | None) -> None:
        self._people, self._catalogue, self._features = engine.people, engine.catalogue, engine.features
        self._store = store

    def who(self, user_id: Id | None, session_id: Id | None) -> Who | None:
        """The person of a request, with the id as the training data has it."""
        who = Who.of(user_id, session_id)
        return replace(who, id=self._people.ids.normal(who.id)) if who is not None and who.kind == "user" else who

    def profile(self, who: Who | None) -> dict[str, Any] | None:
        """What was said of a user, where models read any of it."""
        if self._store is None or who is None or who.kind != "user" or not self._features.columns:
            return None
        return self._store.get_user(who.id)

    def row(self, who: Who | None) -> int | None:
        """The row of a person known to training."""
        return self._people.row(who.id) if who is not None and who.kind == "user" else None

    def normal(self, event: Event) -> Event:
        """An event with ids as the training data has them, so that "7" and 7 are one person where ids are numbers."""
        user = None if event.user_id is None else self._people.ids.normal(event.user_id)
        return replace(event, user_id=user, item_id=self._catalogue.ids.normal(event.item_id))

    def deeds(self, who: Who | None) -> Deeds:
        """The person's events."""
        return Deeds(self._store, who, self._features.length)

    def met(
        self, who: Who | None, deeds: Deeds, history: Sequence[Id] | None, hidden: Collection[int]
    ) -> list[tuple[int, str]]:
        """Codes and types of what the person met, oldest first: training's history, then events; not what is hidden.

        An item that was met again moves to its new place. A `history` stands in place of both.
        """
        length = self._features.length
        if history is not None:
            codes = [code for item in history if (code := self._code(item, "history")) is not None]
            return [(code, "view") for code in list(dict.fromkeys(reversed(codes)))[:length][::-1]]
        row = self.row(who)
        events = self._events(deeds, hidden, length)
        known = [] if row is None else self._features.history(row)
        old = [(code, SEEN_IN_TRAINING) for code in known if code not in events and code not in hidden]
        return [*old, *events.items()][-length:]

    def everything(
        self, who: Who | None, deeds: Deeds, history: Sequence[Id] | None, hidden: Collection[int]
    ) -> list[int] | None:
        """Codes of all that the person met, for models that read more than the history; None where none does."""
        if not self._features.reads_all:
            return None
        if history is not None:
            return [code for item in history if (code := self._code(item, "history")) is not None]
        row = self.row(who)
        known = [] if row is None else self._people.seen(row).tolist()
        return [code for code in dict.fromkeys([*known, *self._events(deeds, hidden, _ALL)]) if code not in hidden]

    def _events(self, deeds: Deeds, hidden: Collection[int], wanted: int) -> dict[int, str]:
        """Code and type of the last items of the catalogue that the person's events are of, oldest first."""
        limit = wanted
        while True:
            met = deeds.history(limit)
            codes = ((self._catalogue.code(item), kind) for item, kind in met)
            found = {code: kind for code, kind in codes if code is not None and code not in hidden}
            if len(found) >= wanted or len(met) < limit:
                return found
            limit *= 4  # items newer than the bundle, and hidden ones, must not push out the others

    def hidden(self, deeds: Deeds) -> frozenset[int]:
        """Codes of what the person never wants to see again."""
        return self.codes(deeds.seen((HIDE,)), "hidden")

    def seen(self, who: Who | None, deeds: Deeds, which: bool | Collection[str]) -> frozenset[int]:
        """Codes of what the person met: all of it, or only through events of these types."""
        if which is False:
            return frozenset()
        row = self.row(who)
        training = row is not None and (which is True or SEEN_IN_TRAINING in which)
        before = frozenset(self._people.seen(row).tolist()) if row is not None and training else frozenset()
        return before | self.codes(deeds.seen(None if which is True else which), "seen")

    def codes(self, items: Collection[Id], name: str) -> frozenset[int]:
        """Codes of the items the catalogue has. `name`: what is said of a value that is no id."""
        return frozenset(code for item in items if (code := self._code(item, name)) is not None)

    def _code(self, item: Id, name: str) -> int | None:
        check_id(item, name)
        return self._catalogue.code(item)
