"""`Categorify`, fitted: which value has which code, and what becomes of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import polars as pl

from falconet.etl.codes import FIRST, NULL, coded, coded_value, describe_codes, missing, shared_tags
from falconet.etl.hash_expr import hash_expr, with_hash
from falconet.etl.lookup import Lookup
from falconet.etl.op import ColumnOp, FrameOp, Op
from falconet.etl.table import matching, one_value
from falconet.hashing import hash_tuple, stable_hash
from falconet.schema import Column

_FOUND, _HASH = "__found__", "__hash__"


@dataclass(frozen=True, kw_only=True, eq=False)
class Categories(Op):
    """A vocabulary: `values`, none of them null, and the code of each. Other values have one of the `oov` codes from 2.

    `counts` says how often each was seen, None where the vocabulary was given. `name` is that of the column, or of the
    columns that have it together; `domain` names the embedding table and `cardinality` is the number of its rows, which
    are of other vocabularies, too, where `single_table` was asked for.
    """

    name: str
    domain: str
    values: pl.Series
    codes: pl.Series
    counts: pl.Series | None
    oov: int
    cardinality: int

    def vocabulary(self) -> pl.DataFrame:
        """`code`, `value` (a struct for combinations) and `count` (null where not counted), ascending by code."""
        count = pl.Series([None], dtype=pl.Int64).new_from_index(0, len(self.codes))
        counts = count if self.counts is None else self.counts
        return pl.DataFrame([self.codes.alias("code"), self.values.alias("value"), counts.alias("count")])

    def inverse(self, x: pl.Expr) -> pl.Expr:
        """The values of a column of codes; null for padding, null, out of vocabulary and codes there are not."""
        return pl.lit(self.values).gather(self._places.expr(x.cast(self.codes.dtype, strict=False)))

    @cached_property
    def _places(self) -> Lookup:
        return Lookup(self.codes, pl.int_range(len(self.codes), dtype=pl.Int64, eager=True))

    @cached_property
    def _code_of(self) -> dict[Any, int]:
        values = self.values.struct.unnest().rows() if self.values.dtype == pl.Struct else self.values.to_list()
        return dict(zip(values, self.codes.to_list(), strict=True))

    def _bucket(self, hashed: pl.Expr) -> pl.Expr:
        """The code of what is out of vocabulary and has this hash."""
        return (hashed % self.oov + FIRST).cast(self.codes.dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class ColumnCategories(Categories, ColumnOp):
    """The codes of each column by itself."""

    def expr(self, x: pl.Expr, column: Column) -> pl.Expr:
        return coded(x, column, lambda value, dtype: self._code(value, dtype, column.name), self.codes.dtype)

    def _code(self, x: pl.Expr, dtype: pl.DataType, name: str) -> pl.Expr:
        matched = matching(x, dtype, self.values.dtype, name) if len(self.values) else x
        known = self._lookup.expr(matched)
        if self.oov == 1:
            return known.fill_null(pl.lit(FIRST, dtype=self.codes.dtype))
        hashed = hash_expr(x, dtype=dtype)
        if len(self.values) and dtype.is_temporal():
            hashed = hash_expr(matched, dtype=self.values.dtype)
        return known.fill_null(self._bucket(hashed))

    def describe(self, column: Column) -> Column:
        return describe_codes(column, self.cardinality, oov=self.oov, domain=self.domain)

    def row(self, values: dict[str, Any], columns: Mapping[str, Column]) -> dict[str, Any]:
        return {name: coded_value(value, columns[name], self._code_value) for name, value in values.items()}

    def _code_value(self, value: Any) -> int:
        code = self._code_of.get(value)
        if code is not None:
            return code
        return FIRST if self.oov == 1 else FIRST + (stable_hash(value) or 0) % self.oov

    @cached_property
    def _lookup(self) -> Lookup:
        return Lookup(self.values, self.codes)


@dataclass(frozen=True, kw_only=True, eq=False)
class CombinedCategories(Categories, FrameOp):
    """The codes of the values that several columns have together, as the column `name`.

    Each member's value becomes its place among the member's values (0: null). Places of the first two members are
    paired to one number, whose place among the pairs is paired with that of the third, and so on; the last has a code.
    """

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.values.dtype.fields)  # type: ignore[attr-defined]

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        return {self.name: self.members}

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        one_value(frame, columns, "a combination of Categorify")
        types = frame.select(columns).collect_schema()
        gone = [missing(pl.col(name), types[name]) for name in columns]
        places = []
        for name, lookup, is_gone in zip(columns, self._members, gone, strict=True):
            x = pl.col(name)
            known = matching(x, types[name], lookup.values.dtype, name) if len(lookup.values) else x
            places.append(pl.when(is_gone).then(0).otherwise(lookup.expr(known)).cast(pl.Int64))
        # Each step is a column of the frame: as one expression, which has its parts several times, it would explode.
        frame = frame.with_columns(places[0].alias(_FOUND))
        for place, lookup, size in zip(places[1:], self._pairs, self._sizes[1:], strict=True):
            frame = frame.with_columns((pl.col(_FOUND) * size + place).alias(_FOUND))
            frame = frame.with_columns(lookup.expr(pl.col(_FOUND)).alias(_FOUND))
        other = pl.lit(FIRST, dtype=self.codes.dtype)
        if self.oov > 1:
            frame = with_hash(frame, [self._hash(name, types[name]) for name in columns], _HASH)
            other = self._bucket(pl.col(_HASH))
        null = pl.lit(NULL, dtype=self.codes.dtype)
        code = pl.when(pl.all_horizontal(gone)).then(null).otherwise(pl.col(_FOUND).fill_null(other))
        return frame.with_columns(code.alias(self.name)).drop(_FOUND, _HASH, strict=False)

    def _hash(self, name: str, dtype: pl.DataType) -> pl.Expr:
        """The hash of a member, as the type that the vocabulary has it in; 0 for null."""
        known = self.values.struct.field(name).dtype
        if dtype.is_temporal() and known.is_temporal():
            return hash_expr(pl.col(name).cast(known), dtype=known).fill_null(0)
        return hash_expr(pl.col(name), dtype=dtype).fill_null(0)

    def describe(self, inputs: Mapping[str, Column], outputs: Mapping[str, Column]) -> Mapping[str, Column]:
        column = replace(outputs[self.name], tags=shared_tags(inputs))
        return {self.name: describe_codes(column, self.cardinality, oov=self.oov, domain=self.domain)}

    def row(self, values: dict[str, Any], columns: Mapping[str, Column]) -> dict[str, Any]:
        one = tuple(None if (x := values[name]) is None or x != x else x for name in self.members)
        code = self._code_of.get(one)
        if code is None:
            bucket = hash_tuple([stable_hash(x) or 0 for x in one]) % self.oov if self.oov > 1 else 0
            code = NULL if all(x is None for x in one) else FIRST + bucket
        return {self.name: code}

    @cached_property
    def _members(self) -> list[Lookup]:
        """Each member's values, with their places from 1 on."""
        values = [self.values.struct.field(name).drop_nulls().unique().sort() for name in self.members]
        return [Lookup(x, pl.int_range(1, len(x) + 1, dtype=pl.Int64, eager=True)) for x in values]

    @property
    def _sizes(self) -> list[int]:
        return [len(lookup.values) + 1 for lookup in self._members]

    @cached_property
    def _pairs(self) -> list[Lookup]:
        """For every member but the first: pairs to their places, the last time to the codes."""
        rows = self.values.struct.unnest()
        found, *others = (
            rows.select(lookup.expr(pl.col(name)).fill_null(0)).to_series()
            for name, lookup in zip(self.members, self._members, strict=True)
        )
        lookups = []
        for place, size in zip(others, self._sizes[1:], strict=True):
            pairs = found * size + place
            distinct = pairs.unique().sort()
            lookups.append(Lookup(distinct, pl.int_range(len(distinct), dtype=pl.Int64, eager=True)))
            found = pairs.to_frame("x").select(lookups[-1].expr(pl.col("x"))).to_series()
        return [*lookups[:-1], Lookup(pairs, self.codes)]
