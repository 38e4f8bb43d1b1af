"""A bundle with what a store says of items: other titles and columns, and items that are newer than the bundle.

A new item has no code of its own: models see the code of what is unknown, and its features. Where a retriever reads
those it is found from the next answer on. In the catalogue and the indexes it has a number above all codes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import polars as pl
import torch

from falconet.batch import Batch
from falconet.errors import DataError, SchemaError
from falconet.etl.rejoin import joined_table, without_joins
from falconet.etl.workflow import FittedWorkflow
from falconet.progress import note
from falconet.retrieval.exact import ExactIndex
from falconet.retrieval.sources import Source, Sources
from falconet.schema import Tag
from falconet.serve.bundle import Bundle
from falconet.serve.events import Id
from falconet.serve.nearness import Directions
from falconet.serve.said import as_values, fits
from falconet.serve.store import Store
from falconet.serve.tables import SHOW, UNKNOWN, Catalogue

_SOME = 64  # items by which a retriever is tried
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
        self._failed: _Failed | None = None

    def now(self) -> Bundle:
        """The bundle with all that was said up to now; the same object where nothing has been since.

        Where the catalogue cannot be made anew the one before stays, which a note says. It is tried again a second
        later, then after twice as long each time, up to a minute. Raises what the store does.
        """
        if self._store.change_number() == self._number or self._waits():
            return self._now
        with self._lock:
            if self._waits():
                return self._now
            said, number = dict(self._said), self._number
            for change in self._store.items_changed_since(self._number):
                item = self._catalogue.ids.normal(change.item_id)
                said.pop(item, None)
                if change.features:
                    said[item] = change.features
                number = change.number
            try:
                now = self._now if said == self._said else self._made(said) if said else self._base
            except Exception as error:  # noqa: BLE001 - it is said, and answers without what is new are better than none
                self._failed = _Failed.after(self._failed, error)
                note(f"what was said of items is not in the answers yet: {self._failed.why}")
                return self._now
            self._said, self._now, self._failed = said, now, None
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
        return "nothing is said of it: with `features` it can be found" if item not in self._said else "it is hidden"

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
        """Why no item that is newer than the bundle can be found; None where it can."""
        for source in self._base.engine.sources.sources:
            if type(source.index) is not ExactIndex:
                kind = type(source.retriever).__name__
                return f"the index of `{source.name}` ({kind}) holds the items of its training alone"
            if not self._reads_features(source):
                return f"`{source.name}` ({type(source.retriever).__name__}) knows items by their ids alone"
        return None

    def _reads_features(self, source: Source) -> bool:
        """Whether items of one id have other vectors where their features are others."""
        items = self._catalogue.features[:_SOME]
        name = self._base.config.item
        unknown = torch.full_like(torch.as_tensor(items.features[name]), UNKNOWN)
        vectors = source.retriever.vectors(replace(items, features={**items.features, name: unknown}))  # type: ignore[attr-defined]
        return len(vectors) > 0 and self._workflow is not None and bool((vectors != vectors[0]).any())

    @cached_property
    def _frame(self) -> pl.DataFrame:
        found = pl.from_arrow(self._catalogue.table)
        assert isinstance(found, pl.DataFrame)
        return found

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

    def _made(self, said: Mapping[Id, Mapping[str, Any]]) -> Bundle:
        can_be = self._catalogue.ids.can_be if self.why_not is None else self._is_known
        said = {item: values for item, values in said.items() if can_be(item)}
        if not said:
            return self._base
        engine, config = self._base.engine, self._base.config
        changed = self._changed(said)
        if not (readable := self._readable(changed)).all():  # it was said to another bundle, which could
            said = {item: values for (item, values), fine in zip(said.items(), readable, strict=True) if fine}
            if not said:
                return self._base
            changed = self._changed(said)
        codes = changed[config.item]
        both = pl.concat([self._frame.filter(~pl.col(config.item).is_in(codes.implode())), changed]).sort(config.item)
        table = both.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(self._catalogue.table.schema)
        catalogue = Catalogue.of(table, self._catalogue.schema, config.item, known=self._cardinality)
        rows = catalogue.rows(torch.tensor(sorted(codes.to_list()), dtype=torch.int64))
        sources = Sources([self._source(source, catalogue, rows) for source in engine.sources.sources])
        first = sources.first
        near = engine.nearness
        if isinstance(near, Directions):
            assert isinstance(first.index, ExactIndex)
            near = Directions(first.index.vectors, bias=config.bias)
        known = set(engine.popular)
        grown = replace(
            engine,
            catalogue=catalogue,
            sources=sources,
            rows=engine.rows and engine.rows.over(catalogue.features, catalogue.codes),
            popular=[*engine.popular, *(code for code in codes.to_list() if code not in known)],
            nearness=near,
        )
        return replace(self._base, engine=grown)

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

    def _source(self, source: Source, catalogue: Catalogue, rows: torch.Tensor) -> Source:
        """A retriever whose index has the vectors of the items that changed."""
        if type(source.index) is not ExactIndex:
            return source
        vectors = torch.zeros(len(catalogue), source.index.dim)
        vectors[catalogue.rows(source.index.codes)] = source.index.vectors
        some = Batch(
            {name: _take(x, rows) for name, x in catalogue.features.features.items()}, {}, len(rows), len(rows)
        )
        vectors[rows] = source.retriever.vectors(some)  # type: ignore[attr-defined]
        index = ExactIndex(vectors, catalogue.codes)
        index.search(vectors[:1], 1)  # what the first search prepares, so that no answer waits for it
        return replace(source, index=index)

    def _changed(self, said: Mapping[Id, Mapping[str, Any]]) -> pl.DataFrame:
        """The rows of the items of which something is said, with the columns and types of the catalogue's table."""
        item = self._base.config.item
        ids = pl.DataFrame({"item_id": pl.Series(list(said), dtype=self._frame.schema["item_id"], strict=False)})
        new = pl.int_range(pl.len()) + self._cardinality
        rows = ids.join(self._frame, on="item_id", how="left", maintain_order="left").with_columns(
            pl.col(item).fill_null(new), pl.col("count", "log_popularity").fill_null(0)
        )
        shown = {name: name.removeprefix(SHOW) for name in rows.columns if name.startswith(SHOW) or name == "title"}
        rows = _with_said(rows, shown, said)
        rows = rows.with_columns(pl.col("title").fill_null(pl.col("item_id").cast(pl.String)))
        if self._workflow is not None:
            fitted, joined = self._workflow
            raw = ids.join(joined, on="item_id", how="left", maintain_order="left")
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
        why = f"the catalogue could not be made anew, which is tried again: {type(error).__name__}: {error}"
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


def _take(feature: Any, rows: torch.Tensor) -> Any:
    return feature[rows] if isinstance(feature, torch.Tensor) else feature.take(rows)
