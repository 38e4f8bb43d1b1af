"""JoinExternal: columns of a table, looked up by a key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import polars as pl

from falconet.compute.executor import ROW
from falconet.errors import ColumnNotFoundError, ConfigError, DataError
from falconet.etl.lookup import Lookup
from falconet.etl.op import OPS, Group, Rows, TableOp, as_tuple, freeze
from falconet.etl.rowwise import OnRow, Row
from falconet.etl.table import as_frame, matching, one_value, plain
from falconet.etl.types import column_of
from falconet.schema import Column

_PLACE = "__found__"


@OPS.register()
@dataclass(frozen=True, kw_only=True, eq=False)
class JoinExternal(TableOp):
    """Columns of a table beside the rows whose key they have; the order of rows stays.

    `df_ext` is a frame (Polars, pandas, Arrow), a Dataset or a path; it is read when the operator is made and saved
    with the workflow. `how="left"` keeps rows without a match, with nulls (integers stay integers); `"inner"` drops
    them. `columns_ext`: what to add, by default all but the key. A key that the table has twice raises DataError, since
    it would multiply rows; `drop_duplicates_ext=True` keeps the first, `multiply_rows=True` gives a row for each match,
    in the order of the table. A null key matches nothing.
    """

    df_ext: Any = field(kw_only=False, repr=False)
    on: str | Sequence[str]
    how: Literal["left", "inner"] = "left"
    on_ext: str | Sequence[str] | None = None
    columns_ext: Sequence[str] | None = None
    drop_duplicates_ext: bool = False
    multiply_rows: bool = False

    def __post_init__(self) -> None:
        on = as_tuple(self.on)
        keys = as_tuple(self.on_ext) or on
        if self.how not in ("left", "inner"):
            raise ConfigError(f"JoinExternal how={self.how!r}", hint='"left" or "inner"')
        if not on or len(on) != len(keys):
            raise ConfigError(f"JoinExternal joins {len(on)} columns `on` with {len(keys)} `on_ext`")
        if self.drop_duplicates_ext and self.multiply_rows:
            raise ConfigError("JoinExternal cannot keep the first of equal keys and all of them", hint="choose one")
        where = f"the table of JoinExternal (`{self.df_ext}`)" if isinstance(self.df_ext, (str, Path)) else "the table"
        table = plain(as_frame(self.df_ext).lazy()).collect()
        added = [n for n in table.columns if n not in keys] if self.columns_ext is None else as_tuple(self.columns_ext)
        for name in (*keys, *added):
            if name not in table.columns:
                raise ColumnNotFoundError.of(name, table.columns, where=where)
        table = table.select(*keys, *(name for name in added if name not in keys)).drop_nulls(keys)
        one_value(table.lazy(), keys, "a key of JoinExternal")
        unique = table if self.multiply_rows else table.unique(keys, keep="first", maintain_order=True)
        if len(unique) != len(table) and not self.drop_duplicates_ext:
            row = table.filter(table.select(pl.struct(keys).is_duplicated()).to_series()).select(keys).row(0)
            twice = row if len(keys) > 1 else repr(row[0])
            raise DataError(
                f"{where} has the key {twice} of `{', '.join(keys)}` more than once",
                hint="drop_duplicates_ext=True keeps the first, multiply_rows=True gives a row for each match",
            )
        freeze(self, df_ext=unique.rechunk(), on=on, on_ext=keys, columns_ext=tuple(added))
        if self.multiply_rows:
            freeze(self, needs=frozenset({"row"}))

    @property
    def rows(self) -> Rows:
        if self.multiply_rows:
            return "other"
        return "same" if self.how == "left" else "fewer"

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        for name in self.on:
            if name not in columns:
                raise ColumnNotFoundError.of(name, columns, where="JoinExternal")
        if clash := set(columns) & set(self.columns_ext or ()):
            raise ConfigError(
                f"JoinExternal would add a second column `{min(clash)}`", hint="leave it out with `columns_ext`"
            )
        return {name: (name,) for name in columns} | {name: tuple(self.on) for name in self.columns_ext or ()}

    def untouched(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        return columns if self.rows == "same" else ()

    def reads(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(self.on)

    @property
    def table(self) -> pl.DataFrame:
        found: pl.DataFrame = self.df_ext
        return found

    @property
    def added(self) -> tuple[str, ...]:
        return tuple(self.columns_ext or ())

    def find(self, frame: pl.LazyFrame, name: str) -> pl.LazyFrame:
        types = frame.select(self.on).collect_schema()
        keys = {key: matching(pl.col(x), types[x], self._types[key], x) for _, x, key in self._keys}
        if len(keys) == 1:
            ((_, x),) = keys.items()
            return frame.with_columns(self._places.expr(x).alias(name))
        labels = {f"__key{i}__": keys[key] for i, _, key in self._keys}
        table = self.df_ext.lazy().select(
            *(pl.col(key).alias(f"__key{i}__") for i, _, key in self._keys),
            pl.int_range(pl.len(), dtype=pl.Int32).alias(name),
        )
        return frame.with_columns(**labels).join(table, on=list(labels), how="left", maintain_order="left").drop(labels)

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        if self.multiply_rows:
            return self._multiplied(frame)
        placed = self.find(frame, _PLACE)
        if self.how == "inner":
            placed = placed.filter(pl.col(_PLACE).is_not_null())
        found = (pl.lit(self.df_ext[name]).gather(_PLACE).alias(name) for name in self.added)
        return placed.with_columns(found).drop(_PLACE)

    def _multiplied(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        """A row for each match; row r becomes r M, r M + 1, ..., where M is how often a key can be there."""
        types = frame.select(self.on).collect_schema()
        labels = [f"__key{i}__" for i, _, _ in self._keys]
        asked = (matching(pl.col(x), types[x], self._types[key], x) for _, x, key in self._keys)
        keyed = self.df_ext.select(
            *(pl.col(key).alias(label) for label, (_, _, key) in zip(labels, self._keys, strict=True)),
            *self.added,
            pl.int_range(pl.len(), dtype=pl.UInt64).over(self.on_ext).alias(_PLACE),
        )
        most = int(keyed[_PLACE].max() or 0) + 1
        frame = frame.with_columns(x.alias(label) for label, x in zip(labels, asked, strict=True))
        joined = frame.join(keyed.lazy(), on=labels, how=self.how, maintain_order="left_right")
        return joined.with_columns(pl.col(ROW) * most + pl.col(_PLACE).fill_null(0)).drop(*labels, _PLACE)

    def describe(self, inputs: Mapping[str, Column], outputs: Mapping[str, Column]) -> Mapping[str, Column]:
        return {
            n: c if n in inputs else replace(column_of(n, self._types[n]), source=c.source) for n, c in outputs.items()
        }

    def on_row(self, names: Group, columns: Mapping[str, Column]) -> OnRow | None:
        if self.multiply_rows:
            return None
        found_by, missing = self._rows, dict.fromkeys(self.added) if self.how == "left" else None
        on = self.on[0] if len(self.on) == 1 else tuple(self.on)

        def join(values: Row) -> Row | None:
            key = values[on] if isinstance(on, str) else tuple(values[name] for name in on)
            found = found_by.get(key, missing)
            return None if found is None else {**values, **found}

        return join

    @property
    def _keys(self) -> list[tuple[int, str, str]]:
        return [(i, a, b) for i, (a, b) in enumerate(zip(self.on, self.on_ext or (), strict=True))]

    @cached_property
    def _places(self) -> Lookup:
        """The places of the values of the one key."""
        ((_, _, name),) = self._keys
        keys = self.df_ext[name]
        return Lookup(keys, pl.int_range(len(keys), dtype=pl.Int32, eager=True))

    @cached_property
    def _types(self) -> dict[str, pl.DataType]:
        return dict(self.df_ext.schema)

    @cached_property
    def _rows(self) -> dict[Any, dict[str, Any]]:
        keys = self.df_ext.select(self.on_ext).rows()
        rows = self.df_ext.select(self.columns_ext).to_dicts()
        return {(key[0] if len(key) == 1 else key): row for key, row in zip(keys, rows, strict=True)}
