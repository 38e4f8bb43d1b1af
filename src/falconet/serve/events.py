"""What people did: events, and whose they are."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Literal

from falconet.errors import ConfigError, DataError

HIDE = "hide"  # the one type that says no: never history, and the item is gone for that person

RATING = "rating"  # the one whose value is a rating

Id = int | str
Outcome = str
"""`accepted`, `duplicate`, or the reason why an event was refused."""

ACCEPTED: Outcome = "accepted"
DUPLICATE: Outcome = "duplicate"
CLASH: Outcome = "this event_id was used before, for another event"
FUTURE: Outcome = "the time lies more than a day in the future; it is in microseconds since 1970"

_INT64 = 2**63
_LONGEST = 256  # characters of an id or a type
_DAY = 86_400_000_000


def latest_time() -> int:
    """The last time that is believed: a day from now."""
    return time.time_ns() // 1000 + _DAY


@dataclass(frozen=True)
class Who:
    """A person: a user, or a visitor known only by a session. The two never meet, even with equal ids."""

    kind: Literal["user", "session"]
    id: Id

    @classmethod
    def of(cls, user_id: Id | None = None, session_id: Id | None = None) -> Who | None:
        """The person of a request; None where it names nobody. Raises ConfigError where it names two."""
        if user_id is not None and session_id is not None:
            raise ConfigError("`user_id` and `session_id` are both given", hint="an event or a request has one person")
        if user_id is not None:
            return cls("user", user_id)
        return None if session_id is None else cls("session", session_id)


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing a person did with one item. `time` is in microseconds since 1970, UTC; now by default.

    Raises DataError, naming the field, where a value cannot be stored.
    """

    event_id: str
    item_id: Id
    type: str
    user_id: Id | None = None
    session_id: Id | None = None
    value: float | None = None
    time: int | None = None
    recommendation_id: str | None = None  # of the answer that the person saw the item in

    def __post_init__(self) -> None:
        if (self.user_id is None) == (self.session_id is None):
            raise DataError("an event needs a `user_id` or a `session_id`, not both and not none")
        for name in ("event_id", "type"):
            text = getattr(self, name)
            if not isinstance(text, str):
                raise DataError(f"event `{name}` must be a string, not {text!r}")
            check_id(text, name)
        if self.recommendation_id is not None:
            if not isinstance(self.recommendation_id, str):
                raise DataError(f"event `recommendation_id` must be a string, not {self.recommendation_id!r}")
            check_id(self.recommendation_id, "recommendation_id")
        for name in ("item_id", "user_id", "session_id"):
            if getattr(self, name) is not None:
                check_id(getattr(self, name), name)
        if self.value is not None and not math.isfinite(self.value):
            raise DataError(f"event `value` must be a number or nothing, not {self.value!r}")
        if self.time is None:
            object.__setattr__(self, "time", time.time_ns() // 1000)
        elif not isinstance(self.time, int) or not 0 <= self.time < _INT64:
            raise DataError(f"event `time` must be microseconds since 1970, not {self.time!r}")

    @property
    def who(self) -> Who:
        who = Who.of(self.user_id, self.session_id)
        assert who is not None
        return who


def check_id(value: object, name: str) -> None:
    """Raise DataError unless `value` is an id: a whole number of 64 bits, or a short string that can be stored."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise DataError(f"`{name}` must be a whole number or a string, not {value!r}")
    if isinstance(value, int) and not -_INT64 <= value < _INT64:
        raise DataError(f"`{name}` is {value}, which does not fit in 64 bits", hint="send it as a string")
    if isinstance(value, str) and not 0 < len(value) <= _LONGEST:
        raise DataError(f"`{name}` must have 1 to {_LONGEST} characters, not {len(value)}")
    if isinstance(value, str) and any("\ud800" <= c <= "\udfff" for c in value):
        raise DataError(f"`{name}` is {value!r}, which is no Unicode text")
