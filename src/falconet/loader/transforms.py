"""What a loader does to each batch before it hands it out.

A transform sees the rows of one process and the place of the batch in the epoch. What it makes of a row must not
depend on the other rows, nor on how rows were shared out: then batches are the same on any number of processes.

Shapes: R rows of this process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from falconet.arguments import explained_class
from falconet.batch import Batch, Feature, Ragged
from falconet.config import with_types
from falconet.errors import ColumnNotFoundError, ConfigError, DataError, SchemaError
from falconet.schema import Column, Schema, Tag

FIRST = 2
"""The least code of a column without codes for the unknown: 0 is padding, 1 null."""


@dataclass(frozen=True)
class Place:
    """Which batch this is, and that its rows are those of the global batch from row `first` on."""

    seed: int
    epoch: int
    step: int
    first: int
    global_rows: int

    def draw(self, rows: int, count: int, stream: int) -> npt.NDArray[np.uint64]:
        """Random words [rows, count] for this process's rows, those of a row the same whoever has it.

        They are raw 64-bit words of Philox4x64-10 with key (seed, stream) and counter (0, 0, epoch, step); the order
        of rows has stream 0.
        """
        key, counter = np.array([self.seed, stream], np.uint64), np.array([0, 0, self.epoch, self.step], np.uint64)
        words = np.random.Philox(key=key, counter=counter).random_raw((self.first + rows) * count)
        return words[self.first * count :].reshape(rows, count)


class Transform(ABC):
    """One change to every batch, rows apart: their number and order stay."""

    @abstractmethod
    def __call__(self, batch: Batch, place: Place) -> Batch: ...

    def settled(self, schema: Schema) -> Transform:
        """The transform for batches of a schema. Raises SchemaError for columns that do not fit."""
        return self

    def describe(self, schema: Schema) -> Schema:
        """The schema of what comes out."""
        return schema


@dataclass(frozen=True)
class Function(Transform):
    """Any function of a batch that looks at each row alone."""

    function: Callable[[Batch], Batch]

    def __call__(self, batch: Batch, place: Place) -> Batch:
        made = self.function(batch)
        if not isinstance(made, Batch) or made.rows != batch.rows:
            rows = f"{made.rows} rows" if isinstance(made, Batch) else f"a {type(made).__name__}"
            raise DataError(f"a transform made {rows} of a batch of {batch.rows} rows", hint="one row of each row")
        return made


@explained_class
@dataclass(frozen=True)
class SampleWeights(Transform):
    """Weights of rows for the loss, from `function(batch)`: finite numbers [R] of at least 0.

    They multiply those of a column tagged `weight`.
    """

    function: Callable[[Batch], Tensor]

    def __call__(self, batch: Batch, place: Place) -> Batch:
        weights_R = self.function(batch).float()
        if weights_R.shape != (batch.rows,) or not bool(((weights_R >= 0) & weights_R.isfinite()).all()):
            raise DataError(
                f"the weights of step {place.step} are not {batch.rows} finite numbers of at least 0 "
                f"(shape {list(weights_R.shape)})",
                hint="SampleWeights needs a function that gives one number for each row",
            )
        return replace(batch, weights=weights_R if batch.weights is None else weights_R * batch.weights)


@with_types
@dataclass(frozen=True, kw_only=True)
class Padding(Transform):
    """Lists of any length to one length, `lengths` by column.

    Short ones end in `value`; of long ones the first elements stay, with `keep="last"` the last.
    """

    lengths: Mapping[str, int]
    value: int = 0
    keep: Literal["first", "last"] = "first"

    def __post_init__(self) -> None:
        for name, length in self.lengths.items():
            if length < 1:
                raise ConfigError(f"the length of `{name}` is {length}", hint="at least 1")

    def __call__(self, batch: Batch, place: Place) -> Batch:
        padded = {name: self._pad(batch.features[name], length) for name, length in self.lengths.items()}
        return replace(batch, features={**batch.features, **padded})

    def _pad(self, lists: Feature, length: int) -> Tensor:
        assert isinstance(lists, Ragged)  # `settled` saw to it
        starts_R = lists.offsets[:-1]
        if self.keep == "last":
            starts_R = starts_R + (lists.lengths - length).clamp(min=0)
        steps = torch.arange(length, device=starts_R.device)
        inside = steps < lists.lengths[:, None]
        padded = lists.values.new_full((len(lists), length), self.value)
        padded[inside] = lists.values[(starts_R[:, None] + steps)[inside]]
        return padded

    def settled(self, schema: Schema) -> Padding:
        for name in self.lengths:
            if feature(schema, name).list != "ragged":
                raise SchemaError(f"column `{name}` does not hold lists of any length", hint="Padding is for those")
        return self

    def describe(self, schema: Schema) -> Schema:
        return Schema(tuple(replace(c, list=self.lengths[c.name]) if c.name in self.lengths else c for c in schema))


@explained_class
@dataclass(frozen=True, kw_only=True)
class Negatives(Transform):
    """`count` other values of an id column for every row, equally likely, as the feature `name` [R, count].

    Codes that stand for a value are drawn, not those of padding, null and the unknown, and never the row's own. They
    are a function of the loader's seed, epoch, step, and row. Two of these differ where their `stream` does.
    """

    column: str
    count: int
    name: str = "negatives"
    stream: int = 1
    codes: range | None = None  # from which to draw; by default those the schema tells

    def __post_init__(self) -> None:
        for name in ("count", "stream"):
            if type(getattr(self, name)) is not int:
                raise ConfigError(f"Negatives `{name}` is {getattr(self, name)!r}", hint="a whole number")
        if self.count < 1 or self.stream < 1:
            raise ConfigError(f"Negatives with `count` {self.count} and `stream` {self.stream}", hint="both at least 1")

    def __call__(self, batch: Batch, place: Place) -> Batch:
        assert self.codes is not None  # `settled` saw to it
        own = batch.features[self.column]
        assert isinstance(own, Tensor)
        own_R1 = own.cpu().numpy().astype(np.int64)[:, None]
        is_code = (own_R1 >= self.codes.start) & (own_R1 < self.codes.stop)
        words = place.draw(batch.rows, self.count, self.stream) >> np.uint64(32)
        others = (len(self.codes) - is_code).astype(np.uint64)
        drawn = self.codes.start + ((words * others) >> np.uint64(32)).astype(np.int64)
        drawn += is_code & (drawn >= own_R1)  # past the row's own
        negatives = torch.from_numpy(drawn).to(own)
        return replace(batch, features={**batch.features, self.name: negatives})

    def settled(self, schema: Schema) -> Negatives:
        column = feature(schema, self.column)
        if column.is_list or not column.dtype.startswith(("int", "uint")):
            raise SchemaError(f"column `{self.column}` does not hold one code a row", hint="Negatives needs codes")
        if self.name in schema:
            raise SchemaError(f"there is a column `{self.name}` already", hint="another `name` for the negatives")
        codes = self.codes
        if codes is None:
            if column.cardinality is None:
                raise SchemaError(f"`{self.column}` has no cardinality", hint="`codes=range(first, last + 1)`")
            codes = range(FIRST + (column.oov or 0), column.cardinality)
        if not 2 <= len(codes) < 2**32 or codes.step != 1:
            raise ConfigError(f"Negatives of `{self.column}` cannot be drawn from {codes}", hint="two codes or more")
        return replace(self, codes=codes)

    def describe(self, schema: Schema) -> Schema:
        own = schema[self.column]  # no tags: it is for the loss, not an input
        return schema + Schema((replace(own, name=self.name, list=self.count, domain=own.table, tags=frozenset()),))


@explained_class
@dataclass(frozen=True, kw_only=True)
class Unknown(Transform):
    """Makes a random `share` of the rows look as if training did not know their user or item: they get `values`.

    `values`, by column: what the workflow makes of an id that it has not seen, that is its code and all that follows
    from the id (a count of 0, the mean of all). Otherwise no row teaches a model what those mean. Which rows it is, is
    a function of the loader's seed, epoch, step, and row. Two of these choose apart where their `stream` differs.
    """

    values: Mapping[str, float]
    share: float = 0.1
    stream: int = 2

    def __post_init__(self) -> None:
        if not self.values:
            raise ConfigError("Unknown has no `values`", hint="by column, what an unknown user or item has")
        if not 0 < self.share < 1:
            raise ConfigError(f"Unknown `share` is {self.share!r}", hint="above 0 and below 1, such as 0.1")
        if type(self.stream) is not int or self.stream < 1:
            raise ConfigError(f"Unknown `stream` is {self.stream!r}", hint="a whole number of at least 1")

    def __call__(self, batch: Batch, place: Place) -> Batch:
        words = place.draw(batch.rows, 1, self.stream)[:, 0] >> np.uint64(11)
        chosen_R = torch.from_numpy(words < np.uint64(self.share * 2**53))
        hidden: dict[str, Feature] = {}
        for name, value in self.values.items():
            column = batch.features[name]
            assert isinstance(column, Tensor)  # `settled` saw to it
            hidden[name] = column.masked_fill(chosen_R.to(column.device), value)
        return replace(batch, features={**batch.features, **hidden})

    def settled(self, schema: Schema) -> Unknown:
        for name, value in self.values.items():
            column = feature(schema, name)
            if column.is_list:
                raise SchemaError(f"column `{name}` holds lists", hint="Unknown is for columns of one value a row")
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
                raise ConfigError(f"Unknown gives `{name}` the value {value!r}", hint="a finite number")
            many = column.cardinality
            if column.dtype.startswith(("int", "uint")) and value != int(value):
                raise ConfigError(f"Unknown gives `{name}` the value {value!r}", hint="it holds whole numbers")
            if many is not None and not 0 <= value < many:
                raise ConfigError(f"Unknown gives `{name}` the value {value!r}", hint=f"a code, from 0 on below {many}")
        return self


def feature(schema: Schema, name: str) -> Column:
    """A column that batches have among their features. Raises ColumnNotFoundError."""
    features = schema.without_tags(Tag.TARGET, Tag.WEIGHT)
    if name not in features:
        raise ColumnNotFoundError.of(name, features.names, where="the batch")
    return features[name]
