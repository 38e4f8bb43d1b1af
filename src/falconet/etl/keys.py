"""Statistics of a key: what the operators that make them share, and values looked up by a key.

Inside a state the columns of a key are `key0`, `key1` and so on. A key that is null or NaN, in one of its columns, is
nobody's: it has no statistics.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from falconet.errors import SchemaError
from falconet.etl.op import FrameOp, Group, StatOp
from falconet.etl.rowwise import OnRow
from falconet.etl.table import canonical, matching, one_value
from falconet.schema import Column, Tag

PART = "part"
_COMPARED = (pl.String, pl.Boolean, pl.Binary, pl.Null)
_SIDES = {Tag.USER, Tag.ITEM, Tag.SESSION, Tag.CONTEXT}


@dataclass(frozen=True, kw_only=True)
class KeyedStatistic(StatOp):
    """A statistic of the rows of each key: of a column, or of a nested list of columns."""

    grouped = True

    @abstractmethod
    def made(self, group: Group) -> dict[str, str]:
        """The outputs of a key, each with the column of the fitted table that it is."""

    def groups(self, columns: Sequence[Group]) -> list[Group]:
        return list(columns)

    def slice_by(self, group: Group) -> tuple[str, ...]:
        return tuple(key_names(group))

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        return dict.fromkeys(self.made(columns), columns)


@dataclass(frozen=True, kw_only=True, eq=False)
class KeyTable(FrameOp):
    """A statistic of keys, fitted: a row of `table` beside each row whose key it has, `missing` beside others.

    Outputs carry the tags user, item, session and context that all columns of their key have.
    """

    plan: KeyedStatistic
    table: pl.DataFrame
    missing: Mapping[str, Any]
    """What a row without statistics gets, by the column of the table; null for those not named."""

    grouped = True

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        return self.plan.sources(columns)

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        made = self.plan.made(columns)
        beside = look_up(frame, columns, self.table.select(*key_names(columns), *made.values()))
        values = {name: pl.col(f"__{column}__") for name, column in made.items()}
        return beside.with_columns(
            (x.fill_null(self.missing[made[name]]) if made[name] in self.missing else x).alias(name)
            for name, x in values.items()
        )

    def describe(self, inputs: Mapping[str, Column], outputs: Mapping[str, Column]) -> Mapping[str, Column]:
        sides = _SIDES.intersection(*(column.tags for column in inputs.values()))
        described = {}
        for name, column in self.plan.made(tuple(inputs)).items():
            made = outputs[name]
            tags = sides | ({Tag.CONTINUOUS} if made.dtype.startswith(("int", "uint", "float")) else set())
            described[name] = replace(made, tags=made.tags | tags, nullable=column not in self.missing)
        return described

    def on_row(self, names: Group, columns: Mapping[str, Column]) -> OnRow:
        made = self.plan.made(names)
        keys = self.table.select(key_names(names)).rows()
        found = dict(zip(keys, self.table.select(pl.col(c).alias(n) for n, c in made.items()).to_dicts(), strict=True))
        unknown = {name: self.missing.get(column) for name, column in made.items()}
        return lambda values: found.get(tuple(values[name] for name in names), unknown)


def key_names(columns: Sequence[str]) -> list[str]:
    """What the columns of a key are called inside a state."""
    return [f"key{i}" for i in range(len(columns))]


def keys_of(state: pl.DataFrame) -> list[str]:
    """The columns of the key in a state."""
    return [name for name in state.columns if name.startswith("key")]


def by_key(frame: pl.LazyFrame, columns: Sequence[str], where: str, **others: pl.Expr) -> pl.LazyFrame:
    """The key of each row, as `key0`, `key1`, ... in the widest type of their kind, and `others`.

    Raises SchemaError for columns that cannot be compared.
    """
    one_value(frame, columns, where)
    types = frame.select(columns).collect_schema()
    for name, dtype in types.items():
        if not (dtype.is_integer() or dtype.is_float() or dtype.is_temporal() or dtype in _COMPARED):
            raise SchemaError(f"{where} needs keys that can be compared, `{name}` is {dtype}", hint="cast it")
    keys = [
        canonical(pl.col(name), dtype).alias(key)
        for (name, dtype), key in zip(types.items(), key_names(columns), strict=True)
    ]
    return frame.select(*keys, **others)


def look_up(frame: pl.LazyFrame, columns: Sequence[str], table: pl.DataFrame) -> pl.LazyFrame:
    """The columns of a row of `table` beside each row whose key it has, else nulls; in order. `x` comes as `__x__`."""
    types = frame.select(columns).collect_schema()
    asked = {
        f"__{key}__": matching(pl.col(name), types[name], table.schema[key], name)
        for name, key in zip(columns, key_names(columns), strict=True)
    }
    known = table.lazy().rename({name: f"__{name}__" for name in table.columns})
    return frame.with_columns(**asked).join(known, on=list(asked), how="left", maintain_order="left")


def bundle(states: Sequence[pl.LazyFrame], by: Sequence[str] = ()) -> pl.LazyFrame:
    """Several states as one frame, sorted by the key that they share; `part` says whose a row is."""
    marked = [state.with_columns(pl.lit(i, dtype=pl.Int16).alias(PART)) for i, state in enumerate(states)]
    bundled = pl.concat(marked, how="diagonal")
    return bundled.sort(by, maintain_order=True) if by else bundled


def part_of(state: pl.DataFrame, part: int, columns: Sequence[str]) -> pl.DataFrame:
    """One of the states of a bundle: the columns that it has."""
    return state.select(PART, *columns).filter(pl.col(PART) == part).drop(PART)
