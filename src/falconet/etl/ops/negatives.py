"""NegativeSamples: rows with items the user has not taken, beside the rows of those it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from falconet.compute.executor import ROW
from falconet.errors import ColumnNotFoundError, ConfigError, SchemaError
from falconet.etl.codes import FIRST
from falconet.etl.op import OPS, FrameOp, Group, Rows, StatOp
from falconet.etl.spans import Ints, bisect, comparable, numbers, spans, spans_of
from falconet.etl.table import one_value
from falconet.hashing import MASK, P, hash_uint64, splitmix64, stable_hash
from falconet.schema import Column, Tag

SLICE_ROWS = 1 << 15  # rows that get their samples at a time


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class NegativeSamples(StatOp):
    """After each row (label 1) up to `n` copies of it with other items (label 0), all different from each other.

    Items are those of the fitted data; with `time`, only those whose first event there is not later than the row. They
    are drawn one after the other among those still left, each as likely as the other, or, with `sampling="popularity"`,
    in proportion to their number of events in the whole fitted data. Never drawn: the row's own item, item codes below
    `reserved`, and, unless `exclude_taken=False`, what the user took anywhere in the fitted data, later too. Where
    fewer items are left than `n` there are fewer rows. A draw follows from (seed, row number, which draw) alone.

    A row whose item is null, NaN or below `reserved` gets none. A null time sees all items, a null user has taken
    nothing. Adds the Float32 column `target` (tags target, binary). `__row__` becomes row * (n + 1) + the place in the
    row's samples. Where the item holds codes, `reserved` must be the first one that stands for an item.
    """

    needs = frozenset({"row"})

    user: str
    item: str
    time: str | None = None
    n: int = 4
    sampling: Literal["uniform", "popularity"] = "uniform"
    exclude_taken: bool = True
    reserved: int = 0
    target: str = "label"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ConfigError(f"NegativeSamples n={self.n}", hint="at least 1 for each row")
        if self.sampling not in ("uniform", "popularity"):
            raise ConfigError(f"NegativeSamples sampling={self.sampling!r}", hint='"uniform" or "popularity"')
        if self.reserved < 0:
            raise ConfigError(f"NegativeSamples reserved={self.reserved}", hint="the first code that may be drawn")
        if len({self.user, self.item, self.time}) < 3:
            raise ConfigError(
                f"NegativeSamples user=`{self.user}`, item=`{self.item}`, time=`{self.time}`",
                hint="three different columns",
            )

    @property
    def rows(self) -> Rows:
        return "other"

    @property
    def also(self) -> tuple[str, ...]:
        """The columns that decide what is drawn."""
        return tuple(name for name in (self.user, self.item, self.time) if name is not None)

    def groups(self, columns: Sequence[Group]) -> list[Group]:
        return [tuple(name for group in columns for name in group)]

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        if self.item not in columns:
            raise ColumnNotFoundError.of(self.item, columns, where="NegativeSamples")
        if self.target in columns:
            raise ConfigError(
                f"NegativeSamples would add a second column `{self.target}`", hint="choose another `target`"
            )
        return {name: (name,) for name in columns} | {self.target: self.also}

    def reads(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in self.also if name in columns)

    def partial(self, frame: pl.LazyFrame, group: Group) -> pl.LazyFrame:
        one_value(frame, self.also, "NegativeSamples")
        types = frame.select(self.also).collect_schema()
        if self.reserved and not types[self.item].is_integer():
            raise SchemaError(
                f"NegativeSamples reserved={self.reserved}, but `{self.item}` is {types[self.item]}",
                hint="`reserved` is for codes",
            )
        columns = {"item": self.item, "user": self.user} if self.exclude_taken else {"item": self.item}
        columns |= {} if self.time is None else {"first": self.time}
        events = frame.select(
            (pl.col(name).fill_nan(None) if types[name].is_float() else pl.col(name)).alias(role)
            for role, name in columns.items()
        )
        kept = events.filter(pl.col("item") >= self.reserved) if self.reserved else events.drop_nulls("item")
        return self._counted(kept.with_columns(count=pl.lit(1, dtype=pl.Int64)))

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        return self._counted(pl.concat(states).lazy()).collect()

    def _counted(self, events: pl.LazyFrame) -> pl.LazyFrame:
        first = [] if self.time is None else [pl.col("first").min()]
        return events.group_by(self._keys).agg(*first, pl.col("count").sum()).sort(self._keys)

    @property
    def _keys(self) -> tuple[str, ...]:
        return ("item", "user") if self.exclude_taken else ("item",)

    def slice_by(self, group: Group) -> tuple[str, ...]:
        return self._keys

    def finish(self, state: pl.DataFrame) -> Negatives:
        return Negatives(plan=self, state=state)


@dataclass(frozen=True, kw_only=True, eq=False)
class Negatives(FrameOp):
    """`NegativeSamples`, fitted.

    Items lie on a line in the order of their first events, each as long as it is likely. What a row may draw is the
    line up to its time without the pieces of what its user has taken; a number below the length of what is left is a
    draw, and moving it beyond the pieces that are missing before it finds its item. So nothing is drawn in vain.
    """

    plan: NegativeSamples
    state: pl.DataFrame

    needs = frozenset({"row"})

    @property
    def rows(self) -> Rows:
        return "other"

    @property
    def also(self) -> tuple[str, ...]:
        return self.plan.also

    @property
    def title(self) -> str:
        return "NegativeSamples"

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        return self.plan.sources(columns)

    def reads(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        return self.plan.reads(columns)

    def describe(self, inputs: Mapping[str, Column], outputs: Mapping[str, Column]) -> Mapping[str, Column]:
        item, target = inputs[self.plan.item], self.plan.target
        first = FIRST + (item.oov or 0)
        is_known = item.oov is not None  # else a size that was given by hand: what is unknown may have a code, too
        if (is_known and self.plan.reserved != first) or (item.cardinality and self.plan.reserved < first):
            raise ConfigError(
                f"NegativeSamples reserved={self.plan.reserved}, but codes of `{item.name}` below {first} are no items",
                hint=f"reserved={first}",
            )
        made = replace(outputs[target], tags=frozenset({Tag.TARGET, Tag.BINARY}), nullable=False)
        return {**outputs, target: made}

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        schema = frame.collect_schema()
        known = {self.plan.item: "item"} | ({} if self.plan.time is None else {self.plan.time: "first"})
        for name, role in known.items():
            given, fitted = schema[name], self.state.schema[role]
            if not (comparable(given, fitted) if role == "first" else given == fitted):
                raise SchemaError(f"`{name}` is {given}, NegativeSamples was fitted on {fitted}", hint="cast it")
        return frame.map_batches(
            self._with_samples,
            schema={**schema, self.plan.target: pl.Float32()},
            predicate_pushdown=False,
            projection_pushdown=False,
            slice_pushdown=False,
        )

    def _with_samples(self, frame: pl.DataFrame) -> pl.DataFrame:
        return pl.concat([self._of_slice(rows) for rows in frame.iter_slices(SLICE_ROWS)] or [self._of_slice(frame)])

    def _of_slice(self, frame: pl.DataFrame) -> pl.DataFrame:
        n, item = self.plan.n, self.plan.item
        drawn = self._draw(frame)
        counts = 1 + (drawn >= 0).sum(axis=1)
        row = np.repeat(np.arange(len(frame)), counts)
        place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        positive = pl.Series(place == 0)
        chosen = pl.Series(drawn[row, place - 1]).set(positive, None)
        many = frame[row]
        return many.with_columns(
            many[item].zip_with(positive, self._items["item"].gather(chosen)).alias(item),
            positive.cast(pl.Float32).alias(self.plan.target),
            (many[ROW] * (n + 1) + pl.Series(place.astype(np.uint64))).alias(ROW),
        )

    def _draw(self, frame: pl.DataFrame) -> Ints:
        """The places of the items of each row's `n` draws among all items, -1 where there is none left."""
        drawn = np.full((len(frame), self.plan.n), -1, np.int64)
        if not len(self._items):
            return drawn
        taken, seen = self._taken_by(frame), self._seen(frame)
        # What else is missing from a row's line, and where on what the user left of it: its own item, then each draw.
        gap, size = self._own(frame, taken, seen)
        gaps, sizes = gap[:, None], size[:, None]
        left = self._starts[seen] - taken.before(self._starts[seen]) - size
        left[~self._is_item(frame[self.plan.item])] = 0
        for j in range(self.plan.n):
            some = left > 0
            at = (self._random(frame[ROW], j + 1) % np.maximum(left, 1).astype(np.uint64)).astype(np.int64)
            order = np.argsort(gaps, axis=1)
            for gap, size in zip(_columns(gaps, order), _columns(sizes, order), strict=True):
                at += np.where(at >= gap, size, 0)
            cut = taken.inside(at)
            place = np.searchsorted(self._starts, at + cut, side="right") - 1
            drawn[some, j] = place[some]
            size = np.where(some, self._sizes[np.where(some, place, 0)], 0)
            gaps, sizes = np.column_stack([gaps, self._starts[place] - cut]), np.column_stack([sizes, size])
            left -= size
        return drawn

    def _is_item(self, item: pl.Series) -> NDArray[np.bool_]:
        """Whether something stands for an item."""
        known = (item.fill_nan(None) if item.dtype.is_float() else item).is_not_null()
        return (known & (item >= self.plan.reserved).fill_null(False) if self.plan.reserved else known).to_numpy()

    def _random(self, rows: pl.Series, j: int) -> NDArray[np.uint64]:
        """`stable_hash((row, j), seed)` of each row number."""
        seed = self.plan.seed
        mixed = hash_uint64(rows.to_numpy(), seed) * np.uint64(P) + np.uint64(stable_hash(j, seed) or 0)
        return hash_uint64(mixed ^ np.uint64(splitmix64(seed & MASK)), seed)

    def _seen(self, frame: pl.DataFrame) -> Ints:
        """How many items there are at the time of each row."""
        every = np.full(len(frame), len(self._items), np.int64)
        if self.plan.time is None:
            return every
        time, first = frame[self.plan.time], self._items["first"]
        if time.dtype.is_temporal():
            time = time.cast(first.dtype)
        known = (time.fill_nan(None) if time.dtype.is_float() else time).is_not_null().to_numpy()
        return np.where(known, np.searchsorted(numbers(first), numbers(time), side="right"), every)

    def _own(self, frame: pl.DataFrame, taken: _Taken, seen: Ints) -> tuple[Ints, Ints]:
        """Where each row's own item is missing, and how long it is: 0 where it could not be drawn anyway."""
        items = self._items.lazy().select("item", place=pl.int_range(pl.len(), dtype=pl.Int64))
        asked = frame.lazy().select(item=self.plan.item)
        found = asked.join(items, on="item", how="left", maintain_order="left").collect()["place"]
        place = found.fill_null(0).to_numpy()
        start = self._starts[place]
        there = found.is_not_null().to_numpy() & (place < seen) & ~taken.has(start)
        return start - taken.before(start), np.where(there, self._sizes[place], 0)

    def _taken_by(self, frame: pl.DataFrame) -> _Taken:
        """The pieces of the line that each row's user has taken."""
        if not self.plan.exclude_taken:
            nothing = np.zeros(len(frame), np.int64)
            return replace(self._taken, begin=nothing, end=nothing)
        begin, end = spans_of(frame, self.plan.user, self._users)
        return replace(self._taken, begin=begin, end=end)

    @cached_property
    def _items(self) -> pl.DataFrame:
        """Every item that may be drawn: `item`, `first`, `size`, in the order in which they came."""
        size = pl.col("count").sum() if self.plan.sampling == "popularity" else pl.lit(1, dtype=pl.Int64)
        items = self.state.lazy().group_by("item")
        if self.plan.time is None:
            return items.agg(size=size).sort("item").collect()
        return items.agg(pl.col("first").min(), size=size).drop_nulls("first").sort("first", "item").collect()

    @cached_property
    def _sizes(self) -> Ints:
        return self._items["size"].to_numpy()

    @cached_property
    def _starts(self) -> Ints:
        """Where each item begins on the line, and where the last one ends."""
        return np.concatenate([[0], np.cumsum(self._sizes)])

    @cached_property
    def _pieces(self) -> pl.DataFrame:
        """What each user has taken, as pieces of the line: `user`, `start`, `size`."""
        if not self.plan.exclude_taken:
            return pl.DataFrame(schema={"user": pl.Null, "start": pl.Int64, "size": pl.Int64})
        line = self._items.lazy().select("item", "size", start=pl.col("size").cum_sum() - pl.col("size"))
        taken = self.state.lazy().select("user", "item").drop_nulls("user")
        return taken.join(line, on="item").select("user", "start", "size").sort("user", "start").collect()

    @cached_property
    def _users(self) -> pl.DataFrame:
        return spans(self._pieces["user"])

    @cached_property
    def _taken(self) -> _Taken:
        nothing = np.zeros(0, np.int64)
        total = np.concatenate([[0], np.cumsum(self._pieces["size"].to_numpy())])
        begin = np.repeat(self._users["start"].to_numpy(), (self._users["end"] - self._users["start"]).to_numpy())
        start = self._pieces["start"].to_numpy()
        return _Taken(start=start, short=start - (total[:-1] - total[begin]), total=total, begin=nothing, end=nothing)


@dataclass(frozen=True, eq=False)
class _Taken:
    """Pieces of the line, of each user in order, and from where to where those of each row's user are."""

    start: Ints
    short: Ints
    """Where a piece would start if the user's pieces before it were cut out."""
    total: Ints
    """The length of all pieces before one, of all users; and of all."""
    begin: Ints
    end: Ints

    def before(self, at: Ints) -> Ints:
        """The length of the pieces that start before a place on the line."""
        return self._length(bisect(self.begin, self.end, lambda places: self.start[places] < at))

    def inside(self, at: Ints) -> Ints:
        """The length of the pieces that were cut out before a place on what is left of the line."""
        return self._length(bisect(self.begin, self.end, lambda places: self.short[places] <= at))

    def has(self, at: Ints) -> NDArray[np.bool_]:
        """Whether a piece starts at a place on the line."""
        place = bisect(self.begin, self.end, lambda places: self.start[places] < at)
        there = place < self.end
        found: NDArray[np.bool_] = there.copy()
        found[there] = self.start[place[there]] == at[there]
        return found

    def _length(self, until: Ints) -> Ints:
        return self.total[until] - self.total[self.begin]


def _columns(values: Ints, order: Ints) -> NDArray[np.int64]:
    """The columns of a matrix, each row in its own order."""
    return np.take_along_axis(values, order, axis=1).T
