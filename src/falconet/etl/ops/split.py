"""Split: which rows are for training, validation and test."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import polars as pl

from falconet.compute.executor import ROW
from falconet.errors import ConfigError
from falconet.etl.hash_expr import hash_expr
from falconet.etl.op import OPS, KeyedOp
from falconet.etl.table import one_value
from falconet.schema import Column

Kind = Literal["random", "stratified", "leave_last", "time"]


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class Split(KeyedOp):
    """Adds a column `split` of "train", "valid" and "test"; every row is in exactly one.

    "random": of a user's n rows round(n * `ratio`), at least one, are for training, round(n * `valid_ratio`) for
    validation, the rest for test, at least one where n > 1 and the ratios leave something; which ones follows from the
    stable hash of (seed, row number).
    "stratified": as "random", but round(n * `ratio`), a half to the even number, and all n where that rounds up to it;
    with items as `user` it is the stratified split of Microsoft Recommenders.
    "leave_last": a user's `last` rows by time are for test (and with a `valid_ratio` above 0 as many before them for
    validation), ties in file order; a user's first row is always for training.
    "time": rows before the `ratio` quantile of all times are for training, from the `ratio + valid_ratio` quantile on
    for test; or rows from the time `cutoff` on are for test. Rows of one time stay together.

    Without a `user` column all rows count as one user's. Rows whose time is null come first.
    """

    kind: Kind = "random"
    user: str | None = None
    time: str | None = None
    ratio: float = 0.8
    valid_ratio: float = 0.0
    seed: int = 0
    cutoff: int | float | dt.datetime | dt.date | None = None
    last: int = 1

    def __post_init__(self) -> None:
        if self.kind not in ("random", "stratified", "leave_last", "time"):
            raise ConfigError(f"Split kind={self.kind!r}", hint='"random", "stratified", "leave_last" or "time"')
        if not 0 < self.ratio < 1:
            raise ConfigError(f"Split ratio={self.ratio}", hint="the share of training rows, between 0 and 1")
        if not 0 <= self.valid_ratio < 1 or self.ratio + self.valid_ratio > 1:
            raise ConfigError(f"Split valid_ratio={self.valid_ratio}", hint="at least 0, and with `ratio` at most 1")
        if isinstance(self.last, bool) or not isinstance(self.last, int) or self.last < 1:
            raise ConfigError(f"Split last={self.last!r}", hint="rows of each user, at least 1")
        if self.last > 1 and self.kind != "leave_last":
            raise ConfigError(f'Split last={self.last} is for kind="leave_last", not "{self.kind}"')
        if self.kind == "time" and self.time is None:
            raise ConfigError('Split kind="time" needs `time`', hint="name the column of times")
        if self.cutoff is not None and (self.kind != "time" or self.valid_ratio):
            raise ConfigError('Split `cutoff` is for kind="time" without a `valid_ratio`')

    @property
    def key(self) -> tuple[str, ...]:
        return () if self.kind == "time" or self.user is None else (self.user,)

    @property
    def order(self) -> tuple[str, ...]:
        return () if self.kind in ("random", "stratified") or self.time is None else (self.time,)

    @property
    def also(self) -> tuple[str, ...]:
        """The user and the time, which need not be selected."""
        return tuple(dict.fromkeys((*self.key, *self.order)))

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        if "split" in columns or "split" in self.also:
            raise ConfigError("Split would add a second column `split`", hint="rename yours first")
        # A step is run for what it was given: one selected column at least.
        given = () if set(columns) & set(self.also) else columns[:1]
        return {name: (name,) for name in columns} | {"split": (*given, *self.also)}

    def untouched(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        return columns

    def describe(self, inputs: Mapping[str, Column], outputs: Mapping[str, Column]) -> Mapping[str, Column]:
        return {**outputs, "split": replace(outputs["split"], nullable=False)}

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        one_value(frame, (*self.key, *self.order), "Split")
        if self.kind == "time":
            return frame.with_columns(self._by_time().alias("split"))
        n = self._of_user(pl.len()).cast(pl.Int64)
        if self.kind == "leave_last":
            left = n - self._of_user(pl.int_range(pl.len()))  # 1 for the last row
            test, valid = ((left <= rows) & (left < n) for rows in (self.last, 2 * self.last))
            return frame.with_columns(_named(test, valid & pl.lit(self.valid_ratio > 0)).alias("split"))
        place = self._of_user(hash_expr(pl.col(ROW), self.seed).rank("ordinal")).cast(pl.Int64)
        if self.kind == "stratified":
            train, last = (
                (n * share).round(mode="half_to_even").cast(pl.Int64)
                for share in (self.ratio, self.ratio + self.valid_ratio)
            )
            return frame.with_columns(_named(place > last, place > train).alias("split"))
        train = pl.max_horizontal((n * self.ratio + 0.5).floor().cast(pl.Int64), pl.lit(1, dtype=pl.Int64))
        last = train + (n * self.valid_ratio + 0.5).floor().cast(pl.Int64)
        if self.ratio + self.valid_ratio < 1:
            most = pl.max_horizontal(n - 1, pl.lit(1, dtype=pl.Int64))
            train, last = pl.min_horizontal(train, most), pl.min_horizontal(last, most)
        return frame.with_columns(_named(place > last, place > train).alias("split"))

    def _of_user(self, x: pl.Expr) -> pl.Expr:
        return x if self.user is None else x.over(self.user)

    def _by_time(self) -> pl.Expr:
        time = pl.col(self.time or "")
        if self.cutoff is not None:
            return _named((time >= self.cutoff).fill_null(False), pl.lit(False))
        places = [(pl.len() * share).floor().cast(pl.Int64) for share in (self.ratio, self.ratio + self.valid_ratio)]
        # The frame is sorted by time, so the exact quantiles are the values at these places.
        first, second = (time.get(pl.min_horizontal(place, pl.len() - 1), null_on_oob=True) for place in places)
        beyond = pl.lit(self.ratio + self.valid_ratio < 1)
        return _named((time >= second).fill_null(False) & beyond, (time >= first).fill_null(False))


def _named(test: pl.Expr, valid: pl.Expr) -> pl.Expr:
    return pl.when(test).then(pl.lit("test")).when(valid).then(pl.lit("valid")).otherwise(pl.lit("train"))
