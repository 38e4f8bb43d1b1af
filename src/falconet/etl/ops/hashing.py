"""Codes without a vocabulary: HashBucket of one column, HashedCross of several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from falconet.errors import ColumnNotFoundError, ConfigError
from falconet.etl.codes import FIRST, NULL, code_type, coded, coded_value, describe_codes, shared_tags
from falconet.etl.hash_expr import hash_expr, with_hash
from falconet.etl.op import OPS, ColumnOp, FrameOp, freeze
from falconet.etl.table import one_value
from falconet.hashing import stable_hash
from falconet.schema import Column

_SIGN = "_X_"


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class HashBucket(ColumnOp):
    """2 + stable hash modulo `num_buckets`, as Int32; null and NaN are 1, so that 0 stays padding. Lists element by
    element: an empty list stays empty, a null list becomes [1].

    Equal values have equal codes in every file, process and version, also across types (3 and 3.0). `num_buckets` is a
    number, or a number for each column. Cardinality = 2 + `num_buckets`.
    """

    num_buckets: int | Mapping[str, int] = field(kw_only=False)

    def __post_init__(self) -> None:
        _check_buckets("HashBucket", self.num_buckets)

    def settled(self, columns: tuple[str, ...] | None) -> HashBucket:
        if columns is not None and isinstance(self.num_buckets, Mapping):
            for name in self.num_buckets:
                if name not in columns:
                    raise ColumnNotFoundError.of(name, columns, where="HashBucket (`num_buckets`)")
        return self

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        for name in columns:
            self._buckets(name)
        return super().sources(columns)

    def expr(self, x: pl.Expr, column: Column) -> pl.Expr:
        buckets = self._buckets(column.name)
        out = code_type(FIRST + buckets)
        return coded(x, column, lambda value, dtype: _bucket(hash_expr(value, dtype=dtype), buckets, out), out)

    def describe(self, column: Column) -> Column:
        return describe_codes(column, FIRST + self._buckets(column.name))

    def row(self, values: dict[str, Any], columns: Mapping[str, Column]) -> dict[str, Any]:
        return {name: coded_value(value, columns[name], self._bucket_of(name)) for name, value in values.items()}

    def _bucket_of(self, name: str) -> Callable[[Any], int]:
        buckets = self._buckets(name)
        return lambda value: FIRST + (stable_hash(value) or 0) % buckets

    def _buckets(self, name: str) -> int:
        return _buckets_of("HashBucket", self.num_buckets, name)


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class HashedCross(FrameOp):
    """The combination of the columns of each nested list as one column: 2 + stable hash of the values modulo
    `num_buckets`, as Int32; 1 where one of them is null or NaN.

    `[["a", "b"]] >> HashedCross(1000)` makes `a_X_b`. The order counts: (x, y) and (y, x) have codes of their own, and
    so has each (x, x). `num_buckets` is a number, or a mapping from the names of a list, `("a", "b")` or `a_X_b`.
    Cardinality = 2 + `num_buckets`. Lists of values cannot be crossed.
    """

    grouped = True

    num_buckets: int | Mapping[Any, int] = field(kw_only=False)

    def __post_init__(self) -> None:
        if isinstance(self.num_buckets, Mapping):
            named = {key if isinstance(key, str) else _crossed(key): n for key, n in self.num_buckets.items()}
            freeze(self, num_buckets=named)
        _check_buckets("HashedCross", self.num_buckets)

    def settled(self, columns: tuple[str, ...] | None) -> HashedCross:
        if columns is not None and isinstance(self.num_buckets, Mapping):
            for key in self.num_buckets:
                names = key.split(_SIGN)
                if not set(names) <= set(columns) and not any(_SIGN in name for name in columns):
                    unknown = next(name for name in names if name not in columns)
                    raise ColumnNotFoundError.of(unknown, columns, where=f"HashedCross (`num_buckets` of `{key}`)")
        return self

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        if len(columns) < 2:
            raise ConfigError(
                f"HashedCross has nothing to cross `{columns[0]}` with", hint='nest the lists: [["user", "city"]]'
            )
        self._buckets(columns)
        return {_crossed(columns): columns}

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        one_value(frame, columns, "HashedCross")
        types = frame.select(columns).collect_schema()
        buckets = self._buckets(columns)
        out = code_type(FIRST + buckets)
        name = _crossed(columns)
        frame = with_hash(frame, [hash_expr(pl.col(x), dtype=types[x]) for x in columns], name)
        return frame.with_columns(_bucket(pl.col(name), buckets, out).fill_null(pl.lit(NULL, dtype=out)))

    def describe(self, inputs: Mapping[str, Column], outputs: Mapping[str, Column]) -> Mapping[str, Column]:
        name = _crossed(tuple(inputs))
        column = replace(outputs[name], tags=shared_tags(inputs))
        return {name: describe_codes(column, FIRST + self._buckets(tuple(inputs)))}

    def row(self, values: dict[str, Any], columns: Mapping[str, Column]) -> dict[str, Any]:
        hashed = stable_hash(tuple(values.values()))
        return {
            _crossed(tuple(values)): NULL if hashed is None else FIRST + hashed % self._buckets(tuple(values)),
        }

    def _buckets(self, columns: tuple[str, ...]) -> int:
        return _buckets_of("HashedCross", self.num_buckets, _crossed(columns))


def _crossed(columns: tuple[str, ...]) -> str:
    return _SIGN.join(columns)


def _bucket(hashed: pl.Expr, buckets: int, out: pl.DataType) -> pl.Expr:
    return (hashed % buckets + FIRST).cast(out)


def _check_buckets(op: str, given: Any) -> None:
    for n in given.values() if isinstance(given, Mapping) else [given]:
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n < 2**62:
            raise ConfigError(f"{op} num_buckets={given!r}", hint="at least 1, or one such number per column")


def _buckets_of(op: str, given: int | Mapping[str, int], name: str) -> int:
    if not isinstance(given, Mapping):
        return given
    if name not in given:
        raise ColumnNotFoundError.of(name, given, where=f"`num_buckets` of {op}")
    return given[name]
