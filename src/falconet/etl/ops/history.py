"""History: what the same user met before, without looking ahead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from falconet.compute.engine import collect
from falconet.compute.executor import ROW
from falconet.errors import ColumnNotFoundError, ConfigError, SchemaError
from falconet.etl.op import OPS, FrameOp, Group, StatOp
from falconet.etl.spans import Ints, bisect, comparable, numbers, ranges, spans, spans_of
from falconet.etl.table import matching, one_value
from falconet.etl.types import polars_type
from falconet.schema import Column, Tag

SLICE_ROWS = 1 << 15  # rows whose histories are put together at a time


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class History(StatOp):
    """The last `length` items of the same `key` among the fitted (training) events before a row, oldest first.

    With `time`: events with a strictly earlier time; events of one instant are not each other's history. With `row` (a
    column of row numbers) ties in time are ordered by it, so the history may hold tied earlier rows. Without `time`:
    the key's other events in file order, the row's own item left out. A row whose time is null sees all events of its
    key.

    Adds the ragged column `name`: never null, empty for an unknown or null key. Events whose key, item or time is null
    are in no history. Where `item` comes from Categorify the history has its codes, cardinality and domain.
    """

    needs = frozenset({"row"})

    key: str
    item: str
    time: str | None = None
    row: str | None = None  # type: ignore[assignment]  # a column here; the operator on one row is of `Histories`
    length: int = 50
    name: str = "history"

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ConfigError(f"History length={self.length}", hint="at least 1")
        if len({self.key, self.item, self.time}) < 3:
            raise ConfigError(
                f"History key=`{self.key}`, item=`{self.item}`, time=`{self.time}`", hint="three different columns"
            )
        if self.row is not None and self.time is None:
            raise ConfigError("History has `row` but no `time`", hint="`row` orders events of one time")

    @property
    def roles(self) -> Group:
        """The columns a row needs: key, item, and time and row where they are asked for."""
        return tuple(name for name in (self.key, self.item, self.time, self.row) if name is not None)

    def groups(self, columns: Sequence[Group]) -> list[Group]:
        return [self.roles]

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        for name in self.roles:
            if name not in columns:
                raise ColumnNotFoundError.of(name, columns, where="History")
        if self.name in columns:
            raise ConfigError(f"History would add a second column `{self.name}`", hint="choose another `name`")
        return {name: (name,) for name in columns} | {self.name: self.roles}

    def untouched(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        return columns

    def partial(self, frame: pl.LazyFrame, group: Group) -> pl.LazyFrame:
        order = pl.col(ROW if self.row is None else self.row).cast(pl.Int64).alias(ROW)
        columns = [pl.col(name) for name in (self.key, self.time, self.item) if name is not None]
        events = frame.select(*columns, order).drop_nulls()
        one_value(frame, self.roles, "History")
        if self.time is not None and events.collect_schema()[self.time].is_float():
            events = events.filter(pl.col(self.time).is_not_nan())
        return self._in_order(events)

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        return collect(self._in_order(pl.concat(states).lazy()))

    def _in_order(self, events: pl.LazyFrame) -> pl.LazyFrame:
        return events.sort([name for name in (self.key, self.time, ROW, self.item) if name is not None])

    def slice_by(self, group: Group) -> tuple[str, ...]:
        return (self.key,)

    def finish(self, state: pl.DataFrame) -> Histories:
        return Histories(plan=self, events=state)


@dataclass(frozen=True, kw_only=True, eq=False)
class Histories(FrameOp):
    """`History`, fitted: `events` sorted by key, time and row."""

    plan: History
    events: pl.DataFrame

    @property
    def title(self) -> str:
        return "History"

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        return self.plan.sources(columns)

    def untouched(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        return columns

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        schema = frame.collect_schema()
        time = self.plan.time
        if time is not None and not comparable(schema[time], self.events.schema[time]):
            raise SchemaError(
                f"`{time}` is {schema[time]}, History was fitted on {self.events.schema[time]}", hint="cast it"
            )
        made = {self.plan.name: pl.List(self.events.schema[self.plan.item])}
        return frame.map_batches(
            self._look_up,
            schema={**schema, **made},
            predicate_pushdown=False,
            projection_pushdown=False,
            slice_pushdown=False,
        )

    def describe(self, inputs: Mapping[str, Column], outputs: Mapping[str, Column]) -> Mapping[str, Column]:
        item, made = inputs[self.plan.item], outputs[self.plan.name]
        tags = item.tags - {Tag.ITEM, Tag.ID} | {Tag.USER, Tag.SEQUENCE}
        domain = item.table if item.cardinality is not None else item.domain
        of_item = {"cardinality": item.cardinality, "oov": item.oov, "dim": item.dim, "domain": domain}
        return {**outputs, self.plan.name: replace(made, tags=tags, nullable=False, **of_item)}  # type: ignore[arg-type]

    def _look_up(self, frame: pl.DataFrame) -> pl.DataFrame:
        start, end = spans_of(frame, self.plan.key, self._spans)
        asked = self._own(frame) if self.plan.time is None else self._asked(frame)
        histories: Callable[[pl.DataFrame, Ints, Ints], tuple[pl.Series, Ints]]
        histories = self._others if self.plan.time is None else self._earlier
        made = []
        # Few rows at a time: the places of their items fit in the cache, and memory is used again.
        for cut in range(0, max(1, len(frame)), SLICE_ROWS):
            of = slice(cut, cut + SLICE_ROWS)
            items = _lists(*histories(asked[of], start[of], end[of]))
            # All columns in the same pieces: Polars copies those that are not when it hands them on.
            made.append(frame[of].rechunk().with_columns(items.alias(self.plan.name)))
        return pl.concat(made)

    def _asked(self, frame: pl.DataFrame) -> pl.DataFrame:
        """What a row's events must be before: `time`, null for all of them, and the number of its `row`, if asked."""
        time = frame[self.plan.time or ""]
        if time.dtype.is_temporal():
            time = time.cast(self.events.schema[self.plan.time or ""])
        asked = {"time": time.fill_nan(None) if time.dtype.is_float() else time}
        if self.plan.row is not None:
            asked["row"] = frame[self.plan.row].cast(pl.Int64).fill_null(np.iinfo(np.int64).min)
        return pl.DataFrame(asked)

    def _earlier(self, asked: pl.DataFrame, start: Ints, end: Ints) -> tuple[pl.Series, Ints]:
        """The last items of a key before a time."""
        stop = np.where(asked["time"].is_null().to_numpy(), end, self._before(asked, start, end))
        lengths = np.minimum(stop - start, self.plan.length)
        return self._taken(stop - lengths, lengths), lengths

    def _before(self, asked: pl.DataFrame, start: Ints, end: Ints) -> Ints:
        """Where the events that a row may see end: a binary search among its key's events, for all rows at once."""
        time = numbers(asked["time"])
        row = asked["row"].to_numpy() if "row" in asked.columns else None

        def before(places: Ints) -> NDArray[np.bool_]:
            smaller: NDArray[np.bool_] = self._event_times[places] < time
            if row is not None:
                smaller |= (self._event_times[places] == time) & (self._event_rows[places] < row)
            return smaller

        return bisect(start, end, before)

    def _own(self, frame: pl.DataFrame) -> pl.DataFrame:
        """A row's `item`, and how often its key met it: `times`."""
        key, item = self.plan.key, self.plan.item
        asked = frame.lazy().select(
            key=matching(pl.col(key), frame.schema[key], self.events.schema[key], key),
            item=matching(pl.col(item), frame.schema[item], self.events.schema[item], item),
        )
        own = asked.join(self._counts.lazy(), on=["key", "item"], how="left", maintain_order="left")
        return collect(own.select("item", pl.col("times").fill_null(0)))

    def _others(self, own: pl.DataFrame, start: Ints, end: Ints) -> tuple[pl.Series, Ints]:
        """The last items of a key but for the row's own item: enough of them are taken that it can be left out."""
        taken = np.minimum(end - start, self.plan.length + own["times"].to_numpy())
        values = self._taken(end - taken, taken)
        owner = np.repeat(np.arange(len(taken)), taken)
        other = values.ne_missing(own["item"].gather(pl.Series(owner)))
        left = np.bincount(owner[other.to_numpy()], minlength=len(taken)).astype(np.int64)
        kept = np.minimum(left, self.plan.length)
        places = ranges(np.cumsum(left) - kept, kept)
        return values.filter(other).gather(pl.Series(places)), kept

    def _taken(self, start: Ints, lengths: Ints) -> pl.Series:
        """The items of spans of events, one span after the other."""
        return self._items.gather(pl.Series(ranges(start, lengths)))  # twice as fast as with an array

    def row(self, values: dict[str, Any], columns: Mapping[str, Column]) -> dict[str, Any]:
        start, end = self._span_of.get(values[self.plan.key], (0, 0))
        length = self.plan.length
        if self.plan.time is None:
            own = values[self.plan.item]
            met: list[Any] = []
            while len(met) < length and start < end:
                before = max(start, end - 2 * length)
                met = [item for item in self._listed(before, end) if item != own] + met
                end = before
            return {**values, self.plan.name: met[-length:]}
        time = values[self.plan.time]
        if time is not None and time == time:
            if self._temporal is not None:
                given = pl.Series([time], dtype=polars_type(columns[self.plan.time]))
                time = given.cast(self._temporal).to_physical()[0]
            times = self._event_times[start:end]
            stop = start + int(np.searchsorted(times, time, side="left"))
            if self.plan.row is not None and values[self.plan.row] is not None:
                last = start + int(np.searchsorted(times, time, side="right"))
                stop += int(np.searchsorted(self._event_rows[stop:last], values[self.plan.row], side="left"))
        else:
            stop = end
        return {**values, self.plan.name: self._listed(max(start, stop - length), stop)}

    def _listed(self, start: int, end: int) -> list[Any]:
        """The items of some events as Python values."""
        if self._plain is not None:
            listed: list[Any] = self._plain[start:end].tolist()
            return listed
        return self._items[start:end].to_list()

    @cached_property
    def _items(self) -> pl.Series:
        return self.events[self.plan.item]

    @cached_property
    def _temporal(self) -> pl.DataType | None:
        """The type of the fitted times, unless they are numbers."""
        dtype = None if self.plan.time is None else self.events.schema[self.plan.time]
        return dtype if dtype is not None and dtype.is_temporal() else None

    @cached_property
    def _plain(self) -> NDArray[Any] | None:
        """The items without a copy, where NumPy has their type: a few of them are then listed faster."""
        return self._items.to_numpy() if self._items.dtype.is_numeric() else None

    @cached_property
    def _spans(self) -> pl.DataFrame:
        """Per key where its events are: `key`, `start`, `end`."""
        return spans(self.events[self.plan.key])

    @cached_property
    def _span_of(self) -> dict[Any, tuple[int, int]]:
        return {key: (start, end) for key, start, end in self._spans.rows()}

    @cached_property
    def _counts(self) -> pl.DataFrame:
        """How often a key met an item: `key`, `item`, `times`."""
        pairs = self.events.select(key=pl.col(self.plan.key), item=pl.col(self.plan.item))
        return pairs.group_by("key", "item").agg(times=pl.len().cast(pl.Int64))

    @cached_property
    def _event_times(self) -> NDArray[Any]:
        return numbers(self.events[self.plan.time or ""])

    @cached_property
    def _event_rows(self) -> Ints:
        return self.events[ROW].to_numpy()


def _lists(values: pl.Series, lengths: Ints) -> pl.Series:
    """A column of lists from all their elements and the lengths."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
    made = pl.from_arrow(pa.LargeListArray.from_arrays(offsets, values.to_arrow(compat_level=pl.CompatLevel.newest())))
    assert isinstance(made, pl.Series)
    return made.cast(pl.List(values.dtype))
