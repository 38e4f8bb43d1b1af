"""TargetEncoding: the mean of a target over the rows of a key."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import polars as pl

from falconet.compute.executor import ROW
from falconet.errors import ColumnNotFoundError, ConfigError, SchemaError
from falconet.etl import keys, moments
from falconet.etl.hash_expr import hash_expr
from falconet.etl.op import OPS, Group, as_tuple, freeze
from falconet.etl.selector import Node, names_of
from falconet.etl.table import one_value

_FOLD = "fold"
_TYPES: dict[str, pl.DataType] = {"float32": pl.Float32(), "float64": pl.Float64()}


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class TargetEncoding(keys.KeyedStatistic):
    """The smoothed mean of each target over the rows of a key, a column or a nested list, as `TE_<key>_<target>`.

    (sum + p_smooth * mean) / (count + p_smooth) as `out_dtype`, never null, where `mean` is that of the target over all
    rows, or `target_mean` (one for all targets, or by target). That is an m-estimate: a key counts as if it had
    `p_smooth` more rows of average target (Micci-Barreca, SIGKDD Explorations 3(1), 2001). A target that is null, NaN
    or infinite is left out. Keys that the fit did not see, or that are null or NaN in one of their columns, get `mean`.
    Only the fit needs the targets. `out_col` names the outputs, one for each target.

    The rows of the very data that was fitted get no information about themselves: rows are dealt to `kfold` folds by
    the hash of `fold_seed` and their number, and a row is encoded by sums, count and `mean` of the other folds. With
    `kfold=1` there are no folds, and every row is in its own encoding. Sums are exact: the same bits for any cut.
    """

    target: str | Node | Sequence[str | Node]
    target_mean: float | Mapping[str, float] | None = None
    kfold: int = 3
    fold_seed: int = 42
    p_smooth: float = 20
    out_col: str | Sequence[str] | None = None
    out_dtype: Literal["float32", "float64"] = "float32"
    name_sep: str = "_"

    needs = frozenset({"row"})

    def __post_init__(self) -> None:
        freeze(self, out_col=as_tuple(self.out_col))
        if not self.targets:
            raise ConfigError("TargetEncoding has no target", hint='for example target="label"')
        if isinstance(self.kfold, bool) or not isinstance(self.kfold, int) or self.kfold < 1:
            raise ConfigError(f"TargetEncoding kfold={self.kfold!r}", hint="a whole number of folds; 1: none")
        if not 0 <= self.p_smooth < math.inf:
            raise ConfigError(f"TargetEncoding p_smooth={self.p_smooth!r}", hint="a number of rows, at least 0")
        if self.out_dtype not in _TYPES:
            raise ConfigError(f"TargetEncoding out_dtype={self.out_dtype!r}", hint='"float32" or "float64"')
        if self.out_col and len(self.out_col) != len(self.targets):
            raise ConfigError(
                f"TargetEncoding has {len(self.out_col)} names in `out_col` for {len(self.targets)} targets",
                hint="one name for each target",
            )
        if isinstance(self.target_mean, Mapping):
            for name in self.targets:
                if name not in self.target_mean:
                    raise ColumnNotFoundError.of(name, self.target_mean, where="TargetEncoding (`target_mean`)")

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the targets."""
        return names_of(self.target)

    @property
    def learns(self) -> tuple[str | Node, ...]:
        return (self.target,) if isinstance(self.target, (str, Node)) else tuple(self.target)

    @property
    def is_out_of_fold(self) -> bool:
        return self.kfold > 1

    def made(self, group: Group) -> dict[str, str]:
        key = self.name_sep.join(group)
        names = self.out_col or [self.name_sep.join(("TE", key, target)) for target in self.targets]
        return {name: _column(i) for i, name in enumerate(names)}

    def partial(self, frame: pl.LazyFrame, group: Group) -> pl.LazyFrame:
        one_value(frame, self.targets, "TargetEncoding")
        for name, dtype in frame.select(self.targets).collect_schema().items():
            if not moments.is_summable(dtype):
                raise SchemaError(f"TargetEncoding needs a number as target, `{name}` is {dtype}", hint="cast it")
        targets = {f"target{i}": pl.col(name) for i, name in enumerate(self.targets)}
        fold = _fold(self.kfold, self.fold_seed)
        rows, by = keys.by_key(frame, group, "TargetEncoding", **targets, fold=fold), keys.key_names(group)
        return keys.bundle([moments.finite(moments.sums(rows, name, [*by, _FOLD])) for name in targets], by)

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        by = keys.keys_of(states[0])
        merged = [moments.merge([_sums(state, i) for state in states], [*by, _FOLD]) for i in range(len(self.targets))]
        return keys.bundle([state.lazy() for state in merged], by).collect()

    def finish(self, state: pl.DataFrame) -> keys.KeyTable:
        return self._finish(state, None)

    def finish_fitted(self, state: pl.DataFrame) -> keys.KeyTable:
        if self.kfold == 1:
            return self.finish(state)
        folds = tuple(self._finish(state, fold) for fold in range(self.kfold))
        return OutOfFold(plan=self, table=folds[0].table, missing=folds[0].missing, folds=folds)

    def _finish(self, state: pl.DataFrame, left_out: int | None) -> keys.KeyTable:
        """The encoding from all folds but one."""
        by = keys.keys_of(state)
        table = state.select(by).drop_nulls().unique(maintain_order=True)
        missing: dict[str, float] = {}
        for i, target in enumerate(self.targets):
            sums = _sums(state, i)
            if left_out is not None:
                sums = sums.filter(pl.col(_FOLD) != left_out)
            mean = self._mean(target, sums.drop(by))
            found = moments.finish(moments.merge([sums.drop(_FOLD)], by).drop_nulls(by), by)
            smooth = (pl.col("sum") + self.p_smooth * mean) / (pl.col("count") + self.p_smooth)
            values = found.select(*by, smooth.cast(_TYPES[self.out_dtype]).alias(_column(i)))
            missing[_column(i)] = pl.Series([mean], dtype=_TYPES[self.out_dtype]).item()
            table = table.join(values, on=by, how="left", maintain_order="left")
        filled = table.with_columns(pl.col(name).fill_null(value) for name, value in missing.items())
        return keys.KeyTable(plan=self, table=filled, missing=missing)

    def _mean(self, target: str, sums: pl.DataFrame) -> float:
        """What a key without rows gets; 0 where no row has a target."""
        given = self.target_mean[target] if isinstance(self.target_mean, Mapping) else self.target_mean
        if given is not None:
            return float(given)
        found = moments.finish(moments.merge([sums.drop(_FOLD)]))
        return 0.0 if found.is_empty() else float(found["mean"].item())


@dataclass(frozen=True, kw_only=True, eq=False)
class OutOfFold(keys.KeyTable):
    """`TargetEncoding` of the rows that it was fitted on: for each fold what the other folds say."""

    plan: TargetEncoding
    folds: tuple[keys.KeyTable, ...]

    needs = frozenset({"row"})

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        made = self.plan.made(columns)
        by = keys.key_names(columns)
        table = self.table.select(by)
        for number, fold in enumerate(self.folds):
            named = {column: f"{column}/{number}" for column in made.values()}
            table = table.join(fold.table.rename(named), on=by, how="left", maintain_order="left")
        own, chosen = _fold(self.plan.kfold, self.plan.fold_seed), {}
        for name, column in made.items():
            of_fold = [pl.col(f"__{column}/{i}__").fill_null(f.missing[column]) for i, f in enumerate(self.folds)]
            chosen[name] = pl.coalesce(pl.when(own == i).then(x) for i, x in enumerate(of_fold))
        return keys.look_up(frame, columns, table).with_columns(**chosen)


def _fold(kfold: int, seed: int) -> pl.Expr:
    return (hash_expr(pl.col(ROW), seed=seed) % kfold).cast(pl.Int32)


def _column(i: int) -> str:
    return f"encoding{i}"


def _sums(state: pl.DataFrame, i: int) -> pl.DataFrame:
    return keys.part_of(state, i, [*keys.keys_of(state), _FOLD, *moments.columns()])
