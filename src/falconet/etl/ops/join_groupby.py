"""JoinGroupby: statistics of a key, beside each row that has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from falconet.errors import ConfigError, SchemaError, suggest
from falconet.etl import keys, moments, quantiles
from falconet.etl.op import OPS, Group, as_tuple, freeze
from falconet.etl.selector import Node, names_of
from falconet.etl.table import one_value, one_zero

STATS = ("count", "nunique", "sum", "mean", "std", "var", "min", "max", "median")
_SQUARES = {"std", "var"}
_SUMS = {"sum", "mean"} | _SQUARES


@OPS.register()
@dataclass(frozen=True, kw_only=True)
class JoinGroupby(keys.KeyedStatistic):
    """Statistics of all rows of a key beside each row that has it: of a column, or of a nested list of columns.

    `<key>_count` (Int64) is the number of rows. For each of `cont_cols`, which only the fit needs, there is
    `<key>_<cont>_<stat>`:

    nunique   Int64    how many different values
    sum       Int64 for integers and Booleans (DataError where it does not fit), Float64 for floats
    mean, std, var   Float32; std and var have ddof 1 and are null for a single value
    median, q25, q99.5, ...   Float32: what half, or so many percent, of the values are below (as numpy's quantiles)
    min, max  of the column's own type

    Nulls and NaN in `cont_cols` are no values; a key that has none gets nulls (nunique 0). A key that the fit did not
    see, or that is null or NaN in one of its columns, has the count (and nunique) 0 and nulls. Sums are exact: the same
    bits however the data was cut. Of a key with more than a million different values quantiles are at most 0.1 % off.
    The key itself does not come out.
    """

    cont_cols: str | Node | Sequence[str | Node] = ()
    stats: str | Sequence[str] = ("count",)
    name_sep: str = "_"

    def __post_init__(self) -> None:
        freeze(self, stats=as_tuple(self.stats))
        for stat in self.stats:
            if stat not in STATS and quantiles.share_of(stat) is None:
                raise ConfigError(
                    f"JoinGroupby has no statistic `{stat}`", hint=suggest(stat, [*STATS, "q25", "q99.5"])
                )
        if not self.stats or len(set(self.stats)) < len(self.stats):
            raise ConfigError(f"JoinGroupby stats={list(self.stats)}", hint="name each statistic once")
        asked = [stat for stat in self.stats if stat != "count"]
        if bool(asked) != bool(self.conts):
            wrong = f"no `cont_cols` for {', '.join(asked)}" if asked else "`cont_cols` but counts rows only"
            raise ConfigError(f"JoinGroupby has {wrong}", hint='for example cont_cols=["price"], stats=["mean"]')

    @property
    def conts(self) -> tuple[str, ...]:
        """The names of `cont_cols`."""
        return names_of(self.cont_cols)

    @property
    def learns(self) -> tuple[str | Node, ...]:
        return (self.cont_cols,) if isinstance(self.cont_cols, (str, Node)) else tuple(self.cont_cols)

    def made(self, group: Group) -> dict[str, str]:
        key = self.name_sep.join(group)
        made = {self.name_sep.join((key, "count")): "count"} if "count" in self.stats else {}
        for i, cont in enumerate(self.conts):
            made |= {self.name_sep.join((key, cont, stat)): f"{stat}_{i}" for stat in self.stats if stat != "count"}
        return made

    def partial(self, frame: pl.LazyFrame, group: Group) -> pl.LazyFrame:
        one_value(frame, self.conts, "JoinGroupby")
        types = frame.select(self.conts).collect_schema()
        for name, dtype in types.items():
            if (asked := _SUMS & set(self.stats) | set(self._shares)) and not moments.is_summable(dtype):
                raise SchemaError(
                    f"JoinGroupby cannot make the {min(asked)} of `{name}`, which is {dtype}", hint="cast it to numbers"
                )
        values = {f"value{i}": _value(name, types[name]) for i, name in enumerate(self.conts)}
        by = keys.key_names(group)
        known = keys.by_key(frame, group, "JoinGroupby", **values).drop_nulls(by)
        return keys.bundle([self._part(kind, i, known, by) for kind, i in self._parts], by)

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        by = keys.keys_of(states[0])
        merged = []
        for number, (kind, i) in enumerate(self._parts):
            own = [keys.part_of(state, number, self._columns(kind, i, by)) for state in states]
            if kind == "rows":
                ends = [_ends(f"min{j}", f"max{j}", j) for j in range(len(self.conts))]
                rows = pl.concat(own).group_by(by).agg(pl.col("count").sum(), *(end for pair in ends for end in pair))
                merged.append(rows.sort(by))
            elif kind == "sums":
                merged.append(moments.merge(own, by))
            elif kind == "counts":
                merged.append(quantiles.merge(own, by))
            else:
                merged.append(pl.concat(own).unique().sort(pl.all()))
        return keys.bundle([state.lazy() for state in merged], by).collect()

    def finish(self, state: pl.DataFrame) -> keys.KeyTable:
        by, table = keys.keys_of(state), pl.DataFrame()
        for number, (kind, i) in enumerate(self._parts):
            own = keys.part_of(state, number, self._columns(kind, i, by))
            if kind == "rows":
                table = own.rename(
                    {f"{end}{j}": f"{end}_{j}" for j in range(len(self.conts)) for end in ("min", "max")}
                )
                continue
            if kind == "sums":
                integer = "sum" in self.stats and moments.is_integer(state.schema[f"min{i}"])
                made = moments.finish(own, by, integer=integer, where=f"the sum of `{self.conts[i]}`").drop("count")
            elif kind == "counts":
                made = quantiles.of_keys(own, self._shares, by)
            else:
                made = own.group_by(by).agg(pl.len().cast(pl.Int64).alias("nunique"))
            named = made.rename({name: f"{name}_{i}" for name in made.columns if name not in by})
            table = table.join(named, on=by, how="left", maintain_order="left")
        table = table.with_columns(
            pl.col(r"^(mean|std|var|median|q[\d.]+)_\d+$").cast(pl.Float32), pl.col(r"^nunique_\d+$").fill_null(0)
        )
        counts = [name for name in table.columns if name == "count" or name.startswith("nunique")]
        return keys.KeyTable(plan=self, table=table, missing=dict.fromkeys(counts, 0))

    @property
    def _shares(self) -> dict[str, float]:
        """The quantiles among the statistics, the median too."""
        shares = {stat: quantiles.share_of(stat) for stat in self.stats}
        return {stat: share for stat, share in shares.items() if share is not None}

    @property
    def _parts(self) -> list[tuple[str, int]]:
        """The states in a state, each with the number of its column."""
        asked = set(self.stats)
        wanted = {"sums": _SUMS, "counts": set(self._shares), "values": {"nunique"}}
        kinds = [kind for kind, stats in wanted.items() if stats & asked]
        return [("rows", 0), *((kind, i) for i in range(len(self.conts)) for kind in kinds)]

    def _part(self, kind: str, i: int, known: pl.LazyFrame, by: Sequence[str]) -> pl.LazyFrame:
        value = f"value{i}"
        if kind == "rows":
            ends = [_ends(f"value{j}", f"value{j}", j) for j in range(len(self.conts))]
            count = pl.len().cast(pl.Int64).alias("count")
            return known.group_by(by).agg(count, *(end for pair in ends for end in pair)).sort(by)
        if kind == "sums":
            return moments.sums(known, value, by, squares=bool(_SQUARES & set(self.stats)))
        if kind == "counts":
            return quantiles.counts(known, value, by)
        return known.select(*by, value).drop_nulls().unique().sort(pl.all())

    def _columns(self, kind: str, i: int, by: Sequence[str]) -> list[str]:
        """The columns of one of the states."""
        if kind == "rows":
            return [*by, "count", *(f"{end}{j}" for j in range(len(self.conts)) for end in ("min", "max"))]
        if kind == "sums":
            return [*by, *moments.columns(squares=bool(_SQUARES & set(self.stats)))]
        return [*by, *quantiles.COLUMNS] if kind == "counts" else [*by, f"value{i}"]


def _value(name: str, dtype: pl.DataType) -> pl.Expr:
    """A column with null for NaN and 0.0 for -0.0."""
    return one_zero(pl.col(name).fill_nan(None)) if dtype.is_float() else pl.col(name)


def _ends(low: str, high: str, i: int) -> tuple[pl.Expr, pl.Expr]:
    return pl.col(low).min().alias(f"min{i}"), pl.col(high).max().alias(f"max{i}")
