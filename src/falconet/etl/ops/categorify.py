"""Categorify: values to codes, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import polars as pl

from falconet.errors import ColumnNotFoundError, ConfigError, SchemaError
from falconet.etl.categories import Categories, ColumnCategories, CombinedCategories
from falconet.etl.codes import FIRST, by_count, code_type
from falconet.etl.names import repeated
from falconet.etl.op import OPS, Group, Op, StatOp, freeze
from falconet.etl.table import as_frame, canonical, flatten, one_value, plain
from falconet.etl.types import element

_SIZE, _PLACE, _SINCE = "_size", "_place", "_since_"
"""What the columns of a state are called, behind the domain. A grown state has the places in the vocabulary, and after
how many growths a value joined; the number in the last name says how many there were, whatever rows there are."""
_at_first = pl.lit(0, dtype=pl.Int32)
Setting = int | Mapping[str, int] | None


@OPS.register()
@dataclass(frozen=True, kw_only=True, eq=False)
class Categorify(StatOp):
    """Values to codes: 0 padding (never emitted), 1 null or NaN, from 2 on out of vocabulary, then the most frequent
    first.

    Ties go by ascending value (strings by their UTF-8 bytes). Lists are coded element by element: a null element is 1,
    an empty list stays empty, a null list becomes [1]. Cardinality = 2 + `num_buckets` (1 if not set) + values.

    A nested list, `[["user", "friend"]]`, shares one vocabulary and one domain, `user_friend` (`encode_type="joint"`);
    or each combination of its values is a category of the new column `user_friend` (`"combo"`, no lists): 1 where all
    members are null. `name_sep` joins the names. A mapping gives a setting per domain: a single column's name, or the
    joined name; columns that it does not name have none.

    `freq_threshold`: values seen fewer times are out of vocabulary. `max_size`: at most so many codes, the reserved
    ones included. `num_buckets`: what is out of vocabulary has the code 2 + stable hash modulo this number, so that
    one value always has one code (strings, numbers, Booleans, dates, datetimes; of a combination with a null, the
    null's hash is 0). `vocabs`: the vocabulary of some domains, in the order of the codes, which is then not learned:
    values, a frame or a Parquet file with a column of the domain's name, or `value`, as `vocabulary()` gives it
    (`code` then orders it); nulls are dropped. `single_table`: all columns have one domain and one embedding table;
    they share the codes below 2 + `num_buckets`, then come the first column's values, then the second's, and so on;
    the cardinality of each is that of the table, `max_size` is of each column's own codes. `dtype`: "int32" or "int64";
    by default Int32, Int64 from 2^31 codes on.

    With more data (`partial_fit`) codes stay: values that now are frequent enough join at the end, the most frequent
    first.

    `finish` gives `Categories`, whose `inverse` turns codes into values.
    """

    grouped = True

    freq_threshold: int | Mapping[str, int] = 0
    max_size: int | Mapping[str, int] = 0
    num_buckets: int | Mapping[str, int] | None = None
    vocabs: Mapping[str, Any] | None = field(default=None, repr=False)
    encode_type: Literal["joint", "combo"] = "joint"
    name_sep: str = "_"
    single_table: bool = False
    dtype: Literal["int32", "int64"] | None = None

    def __post_init__(self) -> None:
        _check_numbers("freq_threshold", self.freq_threshold, 0, "a number of rows, or one per column; 0: all values")
        _check_numbers("max_size", self.max_size, 0, "a number of codes, or one per column; 0: no limit")
        _check_numbers("num_buckets", self.num_buckets, 1, "at least 1, or one per column; None: one code for all")
        if self.encode_type not in ("joint", "combo"):
            raise ConfigError(f"Categorify encode_type={self.encode_type!r}", hint='"joint" or "combo"')
        if self.dtype not in (None, "int32", "int64"):
            raise ConfigError(f"Categorify dtype={self.dtype!r}", hint='"int32", "int64" or None')
        if self.single_table and isinstance(self.num_buckets, Mapping):
            raise ConfigError(
                "Categorify num_buckets is a mapping, but single_table=True",
                hint="the columns of one table share the codes of what is out of vocabulary: give one number",
            )
        if self.vocabs and self.encode_type == "combo":
            raise ConfigError(
                'Categorify vocabs with encode_type="combo"', hint="combinations are learned; leave `vocabs` out"
            )
        freeze(self, vocabs={name: _vocabulary(name, given) for name, given in (self.vocabs or {}).items()})
        for name in self.vocabs or {}:
            for setting, value in (("freq_threshold", self.freq_threshold), ("max_size", self.max_size)):
                if isinstance(value, Mapping) and name in value:
                    raise ConfigError(
                        f"Categorify has both `vocabs` and `{setting}` for `{name}`",
                        hint="a given vocabulary is taken whole; leave one of them out",
                    )
        self._check_room(None)
        for name in self._named:
            self._check_room(name)

    def _check_room(self, name: str | None) -> None:
        """Raise ConfigError where the reserved codes and a given vocabulary are more than the size allows."""
        size = _of(self.max_size, name)
        given = 0 if name not in (self.vocabs or {}) else len(self._given[name])
        least = FIRST + self._oov(name) + given
        if size and size < least:
            of = f" and {given} values of `vocabs`" if given else ""
            raise ConfigError(
                f"Categorify max_size={size}{f' of `{name}`' if name else ''} has no room for the reserved codes{of}",
                hint=f"padding, null and {self._oov(name)} out of vocabulary{of} need {least}",
            )

    @property
    def _given(self) -> Mapping[Any, pl.DataFrame]:
        return self.vocabs or {}

    @property
    def _named(self) -> list[str]:
        """The domains that some setting names."""
        settings = (self.freq_threshold, self.max_size, self.num_buckets, self.vocabs)
        return list(dict.fromkeys(name for value in settings if isinstance(value, Mapping) for name in value))

    def _oov(self, domain: str | None) -> int:
        return _of(self.num_buckets, domain) or 1

    def groups(self, columns: Sequence[Group]) -> list[Group]:
        names: dict[str, Group] = {}
        for group in columns:
            name = self.name_sep.join(group)
            if (other := names.setdefault(name, group)) != group:
                raise ConfigError(
                    f"Categorify would name both {list(other)} and {list(group)} `{name}`",
                    hint="choose another `name_sep`, or rename a column first",
                )
        if self.encode_type == "joint" and (twice := repeated(name for group in columns for name in group)):
            raise ConfigError(
                f"Categorify would give `{twice}` the codes of two vocabularies",
                hint='a column is in one joint group only; encode_type="combo" takes it into several',
            )
        for setting in ("freq_threshold", "max_size", "num_buckets", "vocabs"):
            value = getattr(self, setting)
            for name in value if isinstance(value, Mapping) else ():
                if name not in names:
                    raise ColumnNotFoundError.of(name, names, where=f"Categorify (`{setting}`)")
        return list(columns)

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        if self.encode_type == "combo" and len(columns) > 1:
            return {self.name_sep.join(columns): columns}
        return super().sources(columns)

    def is_given(self, group: Group) -> bool:
        return self.name_sep.join(group) in self._given

    def partial(self, frame: pl.LazyFrame, group: Group) -> pl.LazyFrame:
        domain = self.name_sep.join(group)
        types = frame.select(group).collect_schema()
        if self.is_given(group):
            return pl.LazyFrame(schema={domain: self._given[domain].dtypes[0], domain + _SIZE: pl.Int64})
        if self.encode_type == "combo" and len(group) > 1:
            one_value(frame, group, "a combination of Categorify")
            keys = list(group)
            values = frame.select(_value(pl.col(name), types[name]).alias(name) for name in group)
            values = values.filter(pl.any_horizontal(pl.all().is_not_null()))
        else:
            self._check_types(types)
            keys = [domain]
            flat = [flatten(pl.col(name), types[name]) for name in group]
            if len(group) == 1 and _family(types[group[0]]) == "integer":  # narrow keys are counted faster
                counts = (
                    frame.select(flat[0].alias(domain))
                    .drop_nulls()
                    .group_by(domain)
                    .agg(pl.len().cast(pl.Int64).alias(domain + _SIZE))
                )
                return counts.with_columns(_value(pl.col(domain), types[group[0]])).sort(domain)
            flat = [_value(x, types[name]).alias(domain) for x, name in zip(flat, group, strict=True)]
            values = pl.concat([frame.select(x) for x in flat], how="vertical_relaxed").drop_nulls()
        return values.group_by(keys).agg(pl.len().cast(pl.Int64).alias(domain + _SIZE)).sort(keys)

    def partial_counted(self, frame: pl.LazyFrame, group: Group, count: str) -> pl.LazyFrame:
        (name,) = group
        dtype = frame.collect_schema()[name]
        if self.is_given(group):
            return self.partial(frame, group)
        self._check_types(pl.Schema({name: dtype}))
        if isinstance(dtype, pl.Array):
            frame = frame.with_columns(pl.col(name).arr.to_list())
        values = frame.explode(name) if dtype.is_nested() else frame
        counted = values.select(_value(pl.col(name), dtype).alias(name), pl.col(count).alias(name + _SIZE))
        return counted.drop_nulls(name).group_by(name).agg(pl.col(name + _SIZE).sum()).sort(name)

    def _check_types(self, types: pl.Schema) -> None:
        """Raise SchemaError where values of one vocabulary could not be equal."""
        first: dict[str, str] = {}
        for name, dtype in types.items():
            if (family := _family(dtype)) != "Null":
                first.setdefault(family, name)
        if len(first) > 1:
            (_, a), (_, b), *_ = first.items()
            raise SchemaError(
                f"Categorify cannot give `{a}` ({types[a]}) and `{b}` ({types[b]}) one vocabulary",
                hint="cast one of them, or take them out of the nested list",
            )

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        *keys, size = states[0].columns
        return pl.concat(states, how="vertical_relaxed").group_by(keys).agg(pl.col(size).sum()).sort(keys)

    def slice_by(self, group: Group) -> tuple[str, ...]:
        return group if self.encode_type == "combo" and len(group) > 1 else (self.name_sep.join(group),)

    def grow(self, state: pl.DataFrame, fresh: pl.DataFrame) -> pl.DataFrame:
        *keys, size = fresh.columns
        domain = size.removesuffix(_SIZE)
        place, since = domain + _PLACE, f"{domain}{_SINCE}{self._growths(state) + 1}"
        merged = self.merge([state.select(*keys, size), fresh])
        old = self._learned(state).rows.with_row_index(place)
        old = old.with_columns(*(pl.col(key).cast(merged.schema[key]) for key in keys), pl.col(place).cast(pl.Int64))
        merged = merged.join(old.drop(size), on=keys, how="left", nulls_equal=True).sort(keys)
        fits = pl.col(place).is_null() & (pl.col(size) >= _of(self.freq_threshold, domain))
        new = (
            merged.filter(fits).sort(size, descending=True, maintain_order=True).slice(0, self._room(domain, len(old)))
        )
        new = new.select(*keys, pl.int_range(len(old), len(old) + pl.len(), dtype=pl.Int64).alias("new"))
        merged = merged.join(new, on=keys, how="left", nulls_equal=True).sort(keys)
        now = pl.lit(self._growths(state) + 1, dtype=pl.Int32)
        joined = pl.when(pl.col("new").is_not_null()).then(now).otherwise("since").alias(since)
        return merged.select(*keys, size, pl.coalesce(place, "new").alias(place), joined)

    def finish(self, state: pl.DataFrame) -> Categories:
        return self._fitted([self._learned(state)])[0]

    def finish_all(self, states: Mapping[Group, pl.DataFrame]) -> dict[Group, Op]:
        learned = [self._learned(state) for state in states.values()]
        found = self._fitted(learned) if self.single_table else [self._fitted([one])[0] for one in learned]
        return dict(zip(states, found, strict=True))

    @property
    def is_joint(self) -> bool:
        return self.single_table

    def _learned(self, state: pl.DataFrame) -> _Learned:
        """The vocabulary of a state, in the order of its codes."""
        keys = self._keys(state)
        size = state.columns[len(keys)]
        domain = size.removesuffix(_SIZE)
        if domain in self._given:
            rows = self._given[domain].select(
                pl.first().alias(domain), pl.lit(None, dtype=pl.Int64).alias(size), since=0
            )
        elif len(state.columns) > len(keys) + 1:
            place, since = state.columns[-2:]
            rows = state.drop_nulls(place).sort(place).select(*keys, size, pl.col(since).alias("since"))
        else:
            least = _of(self.freq_threshold, domain)
            enough = state if least <= 1 else state.filter(pl.col(size) >= least)
            # The state is sorted by value, so ties, which stay in their order, are in that of their values.
            kept = enough[by_count(enough[size]).slice(0, self._room(domain))]
            rows = kept.with_columns(since=_at_first)
        return _Learned(domain, keys, rows)

    def _fitted(self, learned: Sequence[_Learned]) -> list[Categories]:
        """The vocabularies of one table: what joined later has codes behind all that was there before."""
        domain = self.name_sep.join(one.domain for one in learned)
        oov = self._oov(learned[0].domain)
        sizes = [one.sizes for one in learned]
        spans: list[list[tuple[int, int]]] = [[] for _ in learned]
        total = FIRST + oov
        for growth in range(max(len(own) for own in sizes)):
            for own, span in zip(sizes, spans, strict=True):
                span.append((total, total + (own[growth] if growth < len(own) else 0)))
                total = span[-1][1]
        dtype = self._code_type(domain, total)
        fitted: list[Categories] = []
        for one, span in zip(learned, spans, strict=True):
            codes = pl.concat([pl.int_range(start, end, dtype=dtype, eager=True) for start, end in span])
            made: type[ColumnCategories] | type[CombinedCategories] = ColumnCategories
            if len(one.keys) > 1:
                made = CombinedCategories
            counts = None if one.domain in self._given else one.counts
            fitted.append(
                made(
                    name=one.domain,
                    domain=domain,
                    values=one.values,
                    codes=codes,
                    counts=counts,
                    oov=oov,
                    cardinality=total,
                )
            )
        return fitted

    def _code_type(self, domain: str, cardinality: int) -> pl.Int32 | pl.Int64:
        least = code_type(cardinality)
        if self.dtype == "int32" and least != pl.Int32:
            raise SchemaError(
                f'Categorify dtype="int32" cannot hold the {cardinality} codes of `{domain}`', hint="int64"
            )
        return pl.Int64() if self.dtype == "int64" else least

    def _keys(self, state: pl.DataFrame) -> list[str]:
        """The columns of a state that hold values: those before the one that counts them."""
        names = state.columns
        ends = (i for i in range(1, len(names)) if names[i] == self.name_sep.join(names[:i]) + _SIZE)
        return names[: next(ends)]

    def _growths(self, state: pl.DataFrame) -> int:
        """How many times a state has grown, which the name of its last column says."""
        keys = self._keys(state)
        since = f"{self.name_sep.join(keys)}{_SINCE}"
        return int(state.columns[-1].removeprefix(since)) if len(state.columns) > len(keys) + 1 else 0

    def _room(self, domain: str, known: int = 0) -> int | None:
        """How many values may still join; None: any number."""
        size = _of(self.max_size, domain)
        return max(0, size - FIRST - self._oov(domain) - known) if size else None


@dataclass(frozen=True)
class _Learned:
    """A vocabulary in the order of its codes: `keys` hold the values, then their count, then when they joined."""

    domain: str
    keys: list[str]
    rows: pl.DataFrame

    @property
    def values(self) -> pl.Series:
        return self.rows.select(pl.struct(self.keys)).to_series() if len(self.keys) > 1 else self.rows[self.keys[0]]

    @property
    def counts(self) -> pl.Series:
        return self.rows[self.domain + _SIZE]

    @property
    def sizes(self) -> list[int]:
        """How many values joined at the fit, at the first growth, and so on."""
        counted = dict(self.rows["since"].value_counts().rows())
        return [counted.get(growth, 0) for growth in range(max(counted, default=0) + 1)]


def _of(setting: Setting, domain: str | None) -> int:
    """The setting of one domain, 0 where there is none."""
    value = setting.get(domain or "", 0) if isinstance(setting, Mapping) else setting
    return value or 0


def _check_numbers(name: str, value: Setting, least: int, hint: str) -> None:
    numbers: Iterable[Any] = value.values() if isinstance(value, Mapping) else () if value is None else (value,)
    if any(isinstance(n, bool) or not isinstance(n, int) or n < least for n in numbers):
        raise ConfigError(f"Categorify {name}={value!r}", hint=hint)


def _vocabulary(name: str, given: Any) -> pl.DataFrame:
    """The values of a given vocabulary in the order of their codes, as the only column, `value`."""
    where = f"the vocabulary of `{name}`"
    try:
        if isinstance(given, (str, Path)) or hasattr(given, "columns"):
            frame = as_frame(given)
            column = next((x for x in (name, "value") if x in frame.columns), frame.columns[0])
            if len(frame.columns) > 1 and column not in (name, "value"):
                raise ColumnNotFoundError.of(name, frame.columns, where=where)
            frame = frame.sort("code") if {"code", "value"} <= set(frame.columns) and column == "value" else frame
            values = frame[column].alias("value")
        else:
            values = pl.Series("value", given if isinstance(given, (pl.Series, Sequence)) else list(given))
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise ConfigError(
            f"{where} is no vocabulary: {str(error).partition(chr(10))[0]}",
            hint="values of one type: a list, a series, a frame or a Parquet file",
        ) from error
    flat = plain(values.to_frame().lazy())
    known = flat.select(_value(pl.col("value"), flat.collect_schema()["value"]).alias("value")).drop_nulls().collect()
    twice = known.filter(pl.col("value").is_duplicated())
    if len(twice):
        raise ConfigError(f"{where} has {twice['value'][0]!r} more than once", hint="each value has one code")
    return known


def _family(dtype: pl.DataType) -> str:
    kind = element(dtype)
    return "integer" if kind.is_integer() else "float" if kind.is_float() else str(kind)


def _value(x: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Values (elements, for lists) as the vocabulary has them. Raises SchemaError for types that have no code."""
    kind = element(dtype)
    if not (kind.is_integer() or kind.is_float() or kind.is_temporal() or kind in (pl.Boolean, pl.String, pl.Null)):
        raise SchemaError(f"Categorify cannot code values of type {kind}", hint="strings, numbers, Booleans and times")
    return canonical(x, kind)
