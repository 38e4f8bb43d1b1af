"""Where what changes while falconet serves is kept: events, the catalogue's changes, profiles, pages, impressions.

One protocol, three stores: a file (SQLite), PostgreSQL, Redis or Valkey. What a call has stored, every later call in
every process sees. Repeating a call changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from falconet.serve.events import Event, Id, Outcome, Who

FORMAT = 2  # of what is stored; an older format is moved up when it is opened, a newer one refused


@dataclass(frozen=True, kw_only=True)
class ItemChange:
    """What is said of an item since the bundle was built.

    `number` counts changes from 1; `hidden`: it is never recommended; `expires`: from then on neither, in microseconds
    since 1970; `features`: raw values by column, in place of the bundle's, None where those still hold.
    """

    item_id: Id
    number: int
    hidden: bool = False
    expires: int | None = None
    features: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Page:
    """What was answered to one request and its next pages. `request`: plain values; `shown`: items, in order."""

    who: Who | None
    request: Mapping[str, Any]
    shown: tuple[Id, ...]


@dataclass(frozen=True, kw_only=True)
class Impression:
    """One list that somebody was shown. `scenario` and `variant` are those of an A/B test."""

    recommendation_id: str
    who: Who | None
    time: int
    bundle: str
    items: tuple[Id, ...]
    scenario: str | None = None
    variant: str | None = None


class Store(Protocol):
    """What a recommender keeps. Any number of threads and processes may use one at once."""

    @property
    def outages(self) -> tuple[type[Exception], ...]:
        """What calls raise while the store cannot be reached, is locked or is full. Later calls find it again."""
        ...

    def add_events(self, events: Sequence[Event]) -> list[Outcome]:
        """Store the events in one transaction; an outcome for each, in order."""
        ...

    def latest(self, who: Who, rows: int) -> list[tuple[Id, str]]:
        """(item id, type) of the last `rows` events of that person, the latest first; of one time the last to arrive.

        Fewer than `rows` are all there are.
        """
        ...

    def seen(self, who: Who, types: Collection[str] | None = None) -> list[Id]:
        """Every item that person has an event of one of `types` (None: any type) with, each once."""
        ...

    def export(self, since: int = 0, rows: int = 100_000) -> Iterator[pa.RecordBatch]:
        """All events after number `since`, in order of arrival, as Arrow batches: `number` and what an Event has.

        Ids are int64 where all of a column are numbers, else strings. Events that arrive meanwhile are left out.
        """
        ...

    def put_item(
        self,
        item_id: Id,
        *,
        features: Mapping[str, Any] | None = None,
        hidden: bool = False,
        expires: int | None = None,
    ) -> int:
        """Say what an item is like from now on; the number of the change.

        Without `features` those that were said before stay; `{}` takes them back, and the bundle's own hold.
        """
        ...

    def hide_item(self, item_id: Id) -> int:
        """Never recommend an item from now on, until it is put again; the number of the change."""
        ...

    def items_changed_since(self, number: int) -> list[ItemChange]:
        """The last change of every item that has one after `number`, in order."""
        ...

    def change_number(self) -> int:
        """The number of the last change of an item, 0 before the first."""
        ...

    def put_user(self, user_id: Id, profile: Mapping[str, Any]) -> None:
        """Say what is known of a user: raw values by column, in place of what was said before."""
        ...

    def get_user(self, user_id: Id) -> dict[str, Any] | None:
        """What was said of a user."""
        ...

    def profiles(self) -> Iterator[tuple[Id, dict[str, Any]]]:
        """Every user of whom something was said, and what it is, in no certain order."""
        ...

    def save_page(self, recommendation_id: str, page: Page, time: int) -> None:
        """Keep an answer, so that there can be a next page. A page of that id stays as it is."""
        ...

    def page(self, recommendation_id: str) -> Page | None:
        """The answer of that id, with all that was shown since."""
        ...

    def extend_page(self, recommendation_id: str, known: int, items: Sequence[Id]) -> bool:
        """Add what the next page shows. False, and nothing is added, unless `known` items were shown before."""
        ...

    def log_impressions(self, impressions: Sequence[Impression]) -> None:
        """Keep what was shown. One recommendation id is kept once."""
        ...

    def impressions(self, since: int = 0) -> Iterator[tuple[int, Impression]]:
        """All impressions after number `since`, with their numbers, in order of arrival."""
        ...

    def forget(self, who: Who) -> int:
        """Delete everything of a person: profile, events, pages, impressions. How many events there were."""
        ...

    def forget_before(self, time: int) -> int:
        """Delete events, pages and impressions from before `time`, in microseconds since 1970. How many events."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


def export_schema(texts: Sequence[bool]) -> pa.Schema:
    """The columns of `export`; which of user_id, session_id and item_id hold texts."""
    user, session, item = (pa.string() if text else pa.int64() for text in texts)
    return pa.schema(
        [
            ("number", pa.int64()),
            ("event_id", pa.string()),
            ("user_id", user),
            ("session_id", session),
            ("item_id", item),
            ("type", pa.string()),
            ("value", pa.float64()),
            ("time", pa.int64()),
            ("recommendation_id", pa.string()),
        ]
    )


def export_batch(schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Rows of the columns of `schema` as Arrow; numbers become strings where a column holds strings."""
    arrays = []
    for field, column in zip(schema, zip(*rows, strict=True), strict=True):
        text = field.type == pa.string()
        values = [None if x is None else str(x) for x in column] if text else list(column)
        arrays.append(pa.array(values, type=field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
