"""A bundle with what a store says of items: other titles and columns, and items that are newer than the bundle.

A new item has no code of its own: models see the code of what is unknown, and its features. Where a retriever reads
those it is found from the next answer on. In the catalogue and the indexes it has a number above all codes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import polars as pl
import pyarrow as pa
import torch
from torch import Tensor

from falconet.batch import Batch, Ragged
from falconet.errors import DataError, SchemaError
from falconet.etl.rejoin import joined_table, without_joins
from falconet.etl.workflow import FittedWorkflow
from falconet.progress import note
from falconet.retrieval.beside import BesideIndex
from falconet.retrieval.exact import ExactIndex
from falconet.retrieval.scores import ScoreIndex
from falconet.retrieval.sources import Source, Sources
from falconet.schema import Tag
from falconet.serve.bundle import Bundle
from falconet.serve.events import Id
from falconet.serve.grown_tables import GrownCatalogue, SaidItems
from falconet.serve.nearness import Apart, Directions, Nearness
from falconet.serve.said import as_values, fits
from falconet.serve.store import Store
from falconet.serve.tables import SHOW, UNKNOWN

_VECTOR = "vector of "  # a retriever
_SOME = 64  # items by which a retriever is tried
_BLOCK = 16  # items whose vectors are made at once
_LARGEST = 1e12  # what a model may read of an item: above that products of numbers are soon infinite
_AGAIN, _LATEST = 1.0, 60.0  # seconds until what failed is tried again: at first, and at most


class GrownBundle:
    """Follows what a store says of the items of a bundle; `now` is the bundle as it is with that."""

    def __init__(self, bundle: Bundle, store: Store) -> None:
        self._base, self._store, self._now = bundle, store, bundle
        self._catalogue = bundle.engine.catalogue
        self._lock = threading.Lock()
        self._number = 0
        self._said: dict[Id, Mapping[str, Any]] = {}
        self._rows = _frame_of(self._catalogue.table.slice(0, 0))  # of what is said, where answers can have it
        self._failed: _Failed | None = None

    def now(self, number: int) -> Bundle:
        """The bundle with all that was said up to the last change, `number`; the same object where nothing was since.

        Where what is new cannot be worked in the bundle stays as it was, which a note says. It is tried again a second
        later, then after twice as long each time, up to a minute. Raises what the store does.
        """
        if number == self._number or self._waits():
            return self._now
        with self._lock:
            if self._waits():
                return self._now
            said, changed, number = dict(self._said), dict[Id, Mapping[str, Any]](), self._number
            for change in self._store.items_changed_since(self._number):
                item, features = self._catalogue.ids.normal(change.item_id), change.features or {}
                if features != said.pop(item, {}):
                    changed[item] = features
                if features:
                    said[item] = features
                number = change.number
            try:
                rows = self._rows_with(changed) if changed else self._rows
                now = self._now if rows is self._rows else self._made(rows) if len(rows) else self._base
            except Exception as error:  # noqa: BLE001 - it is said, and answers without what is new are better than none
                self._failed = _Failed.after(self._failed, error)
                note(f"what was said of items is not in the answers yet: {self._failed.why}")
                return self._now
            self._said, self._rows, self._now, self._failed = said, rows, now, None
            self._number = number  # last: whoever finds it does not wait for the lock
            return now

    def _waits(self) -> bool:
        """Whether what failed is not tried again yet."""
        return (failed := self._failed) is not None and time.monotonic() < failed.until

    @cached_property
    def columns(self) -> dict[str, pl.DataType]:
        """What may be said of an item, and of which type it is."""
        names = {name: name.removeprefix(SHOW) for name in self._frame.columns if name.startswith(SHOW)}
        return {"title": pl.String(), **{shown: self._frame.schema[name] for name, shown in names.items()}}

    def why_unknown(self, item: Id) -> str:
        """Why answers cannot have an item that the bundle does not know."""
        if (failed := self._failed) is not None:
            return failed.why
        if self.why_not is not None:
            return self.why_not
        if not self._catalogue.ids.can_be(item):
            return "the ids of this bundle's items are whole numbers of 64 bits"
        if item in self._said:
            return f"what is said of it gives models numbers beyond {_LARGEST:g}"
        return "nothing is said of it: with `features` it can be found"

    def check(self, item: Id, features: Mapping[str, Any]) -> None:
        """Refuse what no model can read: DataError where a number is, or becomes, too large."""
        if self._workflow is not None and features and self._catalogue.ids.can_be(item):
            row = self._changed({item: features})
            if not self._readable(row)[0]:
                raise DataError(
                    f"`features` of item {item!r} give models numbers beyond {_LARGEST:g}",
                    hint="values of about the size that training had",
                )

    @cached_property
    def why_not(self) -> str | None:
        """Why no item that is newer than the bundle can be found; None where a retriever can."""
        sources = self._base.engine.sources.sources
        if any(source.weight and self._finds[source.name] for source in sources):
            return None
        return "; ".join(map(_why_not, sources))

    @cached_property
    def _finds(self) -> dict[str, bool]:
        """Which retrievers tell items of one id apart by their features, and so find new ones."""
        items = self._catalogue.features[:_SOME]
        name = self._base.config.item
        unknown = torch.full_like(torch.as_tensor(items.features[name]), UNKNOWN)
        alike = replace(items, features={**items.features, name: unknown})
        found = {}
        for source in self._base.engine.sources.sources:
            can = isinstance(source.index, ExactIndex) and self._workflow is not None and alike.rows > 0
            vectors = source.retriever.vectors(alike) if can else None  # type: ignore[attr-defined]
            found[source.name] = vectors is not None and bool((vectors != vectors[0]).any())
        return found

    @cached_property
    def _frame(self) -> pl.DataFrame:
        return _frame_of(self._catalogue.table)

    @cached_property
    def _workflow(self) -> tuple[FittedWorkflow, pl.DataFrame] | None:
        """The item side of the workflow with what is joined given, and what was joined; None without a join."""
        fitted = self._base.workflow
        key = fitted.plan.input_columns
        side = fitted.prune(tags=[Tag.ITEM])
        name = next((n for n in side.input_columns if n in key and joined_table(side, n) is not None), None)
        if name is None:
            return None
        joined = joined_table(side, name)
        assert joined is not None
        try:
            return without_joins(side, name), joined.rename({name: "item_id"})
        except SchemaError:
            return None

    def _rows_with(self, changed: Mapping[Id, Mapping[str, Any]]) -> pl.DataFrame:
        """The rows of what is said, after it has changed for some items; `{}`: what was said is taken back.

        Beside the catalogue's columns there is one for each retriever that has vectors, of these.
        """
        item, frame = self._base.config.item, self._frame
        ids = pl.Series(list(changed), dtype=frame.schema["item_id"], strict=False)
        rows = self._rows.filter(~pl.col("item_id").is_in(ids.implode()))
        can_be = self._catalogue.ids.can_be if self.why_not is None else self._is_known
        if said := {one: values for one, values in changed.items() if values and can_be(one)}:
            new = self._changed(said)
            new = new.filter(self._readable(new))  # else it was said to another bundle, which could
            if len(new):
                rows = pl.concat([rows, self._with_vectors(new)], how="diagonal")
        known = self._cardinality
        newer = pl.col(item) >= known
        rows = rows.sort("item_id")  # new items have codes in this order, whatever was said first: ties fall by codes
        code = pl.when(newer).then(newer.cum_sum().cast(pl.Int64) + known - 1).otherwise(pl.col(item))
        return rows.with_columns(code.cast(frame.schema[item])).sort(item)

    def _with_vectors(self, rows: pl.DataFrame) -> pl.DataFrame:
        """With what retrievers make of the items."""
        items = self._items(rows.sort(self._base.config.item)).features
        vectors = {
            source.name: _in_blocks(source.retriever.vectors, items).numpy()  # type: ignore[attr-defined]
            for source in self._base.engine.sources.sources
            if isinstance(source.index, ExactIndex)
        }
        return rows.sort(self._base.config.item).with_columns(
            pl.Series(_VECTOR + name, values, dtype=pl.Array(pl.Float32, values.shape[1]))
            for name, values in vectors.items()
        )

    def _items(self, rows: pl.DataFrame) -> SaidItems:
        table = rows.select(self._frame.columns).to_arrow(compat_level=pl.CompatLevel.oldest())
        schema, item = self._catalogue.schema, self._base.config.item
        return SaidItems(table.cast(self._catalogue.table.schema), schema, item, known=self._cardinality)

    def _made(self, rows: pl.DataFrame) -> Bundle:
        """The bundle with the rows of what is said, by ascending code."""
        engine, said = self._base.engine, self._items(rows)
        catalogue = GrownCatalogue(engine.catalogue, said)
        first = engine.sources.first
        near: Nearness = Apart(engine.nearness, catalogue.overlay)
        if isinstance(engine.nearness, Directions) and self._finds[first.name]:
            near = engine.nearness.over(_vectors(rows, first.name), catalogue.overlay)
        grown = replace(
            engine,
            catalogue=catalogue,
            sources=Sources([self._source(source, said, rows) for source in engine.sources.sources]),
            rows=engine.rows and engine.rows.over(said.features, catalogue.overlay),
            nearness=near,
            newer=catalogue.newer,
        )
        return replace(self._base, engine=grown)

    def _source(self, source: Source, said: SaidItems, rows: pl.DataFrame) -> Source:
        """A retriever with the items that it may find, or has to score, beside its index."""
        finds, changed = self._finds[source.name], said.changed
        assert isinstance(source.index, ExactIndex | ScoreIndex)
        if not finds and len(changed) == len(said):
            return source
        vectors = _vectors(rows, source.name) if isinstance(source.index, ExactIndex) else None
        if finds:
            index = BesideIndex(source.index, said.codes, vectors, changed)
        else:
            new = vectors if vectors is None else vectors[len(changed) :]
            index = BesideIndex(source.index, said.codes[len(changed) :], new, changed[:0], finds=False)
        return replace(source, index=index)

    def _readable(self, changed: pl.DataFrame) -> pl.Series:
        """Which rows models can read: none of their numbers is infinite or very large."""
        names = [c.name for c in self._catalogue.features_schema if c.dtype.startswith("float")]
        numbers = (
            pl.col(name).list.eval(pl.element().abs()).list.max()
            if isinstance(changed.schema[name], pl.List)
            else pl.col(name).abs()
            for name in names
        )
        fine = ((number <= _LARGEST).fill_null(True) for number in numbers)  # NaN is above all numbers
        return changed.select(pl.all_horizontal(pl.repeat(True, pl.len()), *fine)).to_series()

    def _is_known(self, item: Id) -> bool:
        return self._catalogue.ids.row(item) is not None

    @cached_property
    def _cardinality(self) -> int:
        cardinality = self._catalogue.schema[self._base.config.item].cardinality
        assert cardinality is not None
        return cardinality

    def _changed(self, said: Mapping[Id, Mapping[str, Any]]) -> pl.DataFrame:
        """The rows of the items of which something is said, with the columns and types of the catalogue's table."""
        item = self._base.config.item
        ids = pl.DataFrame({"item_id": pl.Series(list(said), dtype=self._frame.schema["item_id"], strict=False)})
        new = pl.int_range(pl.len()) + self._cardinality
        rows = _rows_of(ids, self._frame).with_columns(
            pl.col(item).fill_null(new), pl.col("count", "log_popularity").fill_null(0)
        )
        shown = {name: name.removeprefix(SHOW) for name in rows.columns if name.startswith(SHOW) or name == "title"}
        rows = _with_said(rows, shown, said)
        rows = rows.with_columns(pl.col("title").fill_null(pl.col("item_id").cast(pl.String)))
        if self._workflow is not None:
            fitted, joined = self._workflow
            raw = _rows_of(ids, joined)
            raw = _with_said(raw, {name: name for name in raw.columns if name != "item_id"}, said)
            key = next(n for n in fitted.input_columns if n not in raw.columns)
            made = fitted.transform(raw.rename({"item_id": key}))
            rows = rows.with_columns(made[name] for name in made.columns if name != item and name in rows.columns)
        return rows.select(pl.col(name).cast(dtype) for name, dtype in self._frame.schema.items())


@dataclass(frozen=True)
class _Failed:
    """The catalogue could not be made anew: why, for how many seconds that is left alone, and until when."""

    why: str
    seconds: float
    until: float

    @classmethod
    def after(cls, before: _Failed | None, error: Exception) -> _Failed:
        seconds = _AGAIN if before is None else min(2 * before.seconds, _LATEST)
        why = f"it could not be worked into the catalogue, which is tried again: {type(error).__name__}: {error}"
        return cls(why, seconds, time.monotonic() + seconds)


def _with_said(rows: pl.DataFrame, names: Mapping[str, str], said: Mapping[Id, Mapping[str, Any]]) -> pl.DataFrame:
    """Rows in the order of `said`, with what is said in place of what they have. `names`: what columns are called.

    What a column cannot hold, which was said to a bundle with other types, is as not said.
    """
    made = []
    for column, name in names.items():
        dtype = rows.schema[column]
        values = [one.get(name) for one in said.values()]
        there = pl.Series([name in one and fits(one[name], dtype) for one in said.values()], dtype=pl.Boolean)
        if there.any():
            values = [value if fitting else None for value, fitting in zip(values, there, strict=True)]
            new = as_values(values, dtype)
            made.append(new.zip_with(there, rows[column]).alias(column))
    return rows.with_columns(made)


def _frame_of(table: pa.Table) -> pl.DataFrame:
    found = pl.from_arrow(table)
    assert isinstance(found, pl.DataFrame)
    return found


def _rows_of(ids: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """The rows of a table with the given `item_id`s, in their order, without what it takes to join all of it."""
    few = table.filter(pl.col("item_id").is_in(ids["item_id"].implode()))
    return ids.join(few, on="item_id", how="left", maintain_order="left")


def _vectors(rows: pl.DataFrame, name: str) -> torch.Tensor:
    return torch.from_numpy(rows[_VECTOR + name].to_numpy(writable=True))


def _in_blocks(vectors: Callable[[Batch], Tensor], items: Batch) -> Tensor:
    """The vectors of items, made so many at a time: the same bits whatever is said along with an item."""
    made = []
    for start in range(0, items.rows, _BLOCK):
        rows = torch.arange(start, start + _BLOCK).clamp_(max=items.rows - 1)  # the last one fills the last block
        block = {name: x.take(rows) if isinstance(x, Ragged) else x[rows] for name, x in items.features.items()}
        made.append(vectors(Batch.of(block))[: items.rows - start])
    return torch.cat(made)


def _why_not(source: Source) -> str:
    kind = type(source.retriever).__name__
    if isinstance(source.index, ScoreIndex):
        return f"the index of `{source.name}` ({kind}) holds the items of its training alone"
    return f"`{source.name}` ({kind}) knows items by their ids alone"
