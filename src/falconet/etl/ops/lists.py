"""Operators of lists: ListSlice, ValueCount."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from falconet.errors import ConfigError, DataError, SchemaError
from falconet.etl.op import OPS, ColumnOp, Group, StatOp
from falconet.etl.rowwise import OnRow
from falconet.etl.types import element, polars_type, value_of
from falconet.schema import Column


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class ListSlice(ColumnOp):
    """A piece of every list: `ListSlice(10)` the first ten, `ListSlice(-10)` the last ten, `ListSlice(1, 11)` from
    the second to the eleventh; negative ends count from the end, as in Python.

    With `pad` every list gets one length, the largest a piece can have, by `pad_value` at its end; the column is then
    of fixed length. The type of the elements stays. A null list stays null, with `pad` it becomes padding alone; null
    elements stay.

    >>> ListSlice(1, 11).length
    10
    """

    start: int = field(kw_only=False)
    end: int | None = field(default=None, kw_only=False)
    pad: bool = False
    pad_value: int | float | str | bool = 0

    def __post_init__(self) -> None:
        length = self.length
        if length is not None and length <= 0:
            raise ConfigError(f"{self._said} leaves nothing of any list")
        if self.pad and length is None:
            raise ConfigError(
                f"{self._said} with pad: such a piece has no largest length",
                hint="start and end on the same side: (0, 10), (-10, -1)",
            )

    @property
    def length(self) -> int | None:
        """The largest length of a piece; None where it depends on the list."""
        start, end = self._range
        if end is None:
            return -start if start < 0 else None
        if start < 0 <= end:
            return min(end, -start)
        return end - start if (start < 0) == (end < 0) else None

    def expr(self, x: pl.Expr, column: Column) -> pl.Expr:
        dtype = polars_type(column)
        if not dtype.is_nested():
            raise SchemaError(f"ListSlice needs lists, `{column.name}` is {dtype}")
        inner = element(dtype)
        x = x.arr.to_list() if isinstance(dtype, pl.Array) else x
        piece = self._piece(x)
        if not self.pad:
            return piece
        assert self.length is not None
        value = value_of(self.pad_value, inner, what="ListSlice pad_value", name=column.name)
        padding = pl.lit([value] * self.length, dtype=pl.List(inner))
        nothing = pl.lit([], dtype=pl.List(inner))
        padded = pl.concat_list(piece.fill_null(nothing), padding).list.head(self.length)
        return padded.list.to_array(self.length)

    def _piece(self, x: pl.Expr) -> pl.Expr:
        start, end = self._range
        if start == 0 and end is not None and end >= 0:
            return x.list.head(end)
        if start < 0 and end is None:
            return x.list.tail(-start)
        size = x.list.len().cast(pl.Int64)
        first, last = (pl.lit(n, dtype=pl.Int64) if n >= 0 else (size + n).clip(0) for n in (start, end or 0))
        return x.list.slice(first, ((size if end is None else last) - first).clip(0))

    def describe(self, column: Column) -> Column:
        return replace(column, nullable=column.nullable and not self.pad)

    def on_row(self, names: Group, columns: Mapping[str, Column]) -> OnRow:
        made = {name: self._plain(column) for name, column in columns.items()}
        return lambda values: {name: cut(values[name]) for name, cut in made.items()}

    def _plain(self, column: Column) -> Callable[[Any], Any]:
        piece = slice(*self._range)
        if not self.pad:
            return lambda value: None if value is None else value[piece]
        value = value_of(self.pad_value, element(polars_type(column)), what="ListSlice pad_value", name=column.name)
        padding = [value] * (self.length or 0)
        return lambda value: padding[:] if value is None else (kept := value[piece]) + padding[len(kept) :]

    @property
    def _range(self) -> tuple[int, int | None]:
        if self.end is None and self.start >= 0:
            return 0, self.start
        return self.start, self.end

    @property
    def _said(self) -> str:
        return f"ListSlice({self.start})" if self.end is None else f"ListSlice({self.start}, {self.end})"


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class ValueCount(StatOp):
    """Learns how long lists are. Where all that the fit saw have one length, the column is of that length from then on.

    A schema has a place for one length and none for a range, so columns whose lists differ stay as they are; the state
    has their shortest and longest. Null lists are not counted and stay null. A later list of another length raises
    DataError where the length was fixed.
    """

    def partial(self, frame: pl.LazyFrame, group: Group) -> pl.LazyFrame:
        name = group[0]
        dtype = frame.select(name).collect_schema()[name]
        if not dtype.is_nested():
            raise SchemaError(f"ValueCount needs lists, `{name}` is {dtype}")
        x = pl.col(name).arr.to_list() if isinstance(dtype, pl.Array) else pl.col(name)
        length = x.list.len().cast(pl.Int64)
        return frame.select(length.alias("n")).select(pl.col("n").min().alias("least"), pl.col("n").max().alias("most"))

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        return pl.concat(states).select(pl.col("least").min(), pl.col("most").max())

    def finish(self, state: pl.DataFrame) -> ColumnOp:
        least, most = state.row(0)
        return Counted(least=least, most=most)


@dataclass(frozen=True, kw_only=True)
class Counted(ColumnOp):
    """`ValueCount`, fitted: the shortest and the longest list; None where there was none."""

    least: int | None
    most: int | None

    @property
    def length(self) -> int | None:
        """The one length of all lists, if they have one."""
        return self.most if self.least == self.most and self.most else None

    def expr(self, x: pl.Expr, column: Column) -> pl.Expr:
        return x if self.length is None or column.list != "ragged" else x.list.to_array(self.length)

    def on_row(self, names: Group, columns: Mapping[str, Column]) -> OnRow:
        length = self.length
        if length is None:
            return lambda values: values

        def check(values: dict[str, Any]) -> dict[str, Any]:
            for name, value in values.items():
                if value is not None and len(value) != length:
                    raise DataError(
                        f"`{name}` has a list of {len(value)} values, all lists of the fit have {length}",
                        hint="`ListSlice` with padding makes lists of one length",
                    )
            return values

        return check
