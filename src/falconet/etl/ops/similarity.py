"""ColumnSimilarity: how alike the things are that two columns name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import polars as pl

from falconet.errors import ColumnNotFoundError, ConfigError, DataError, SchemaError
from falconet.etl.op import OPS, FrameOp, Group, float32, freeze
from falconet.etl.rowwise import OnRow, Row
from falconet.etl.table import as_frame, matching, one_zero, plain
from falconet.schema import Column

_ID, _FEATURE, _VALUE = "id", "feature", "value"


@OPS.register()
@dataclass(frozen=True, kw_only=True, eq=False)
class ColumnSimilarity(FrameOp):
    """How alike the two things of a row are by features of theirs: `[["a", "b"]] >> ColumnSimilarity(features)` gives
    the Float32 column `a_b_sim`; the columns of ids themselves are no outputs.

    Features of the first column's ids and of the second's (by default the same): a matrix (numpy, or scipy's sparse
    ones) whose row numbers are the ids, or a frame with the columns `id`, `feature` (one, or a list of them) and,
    unless all are 1, `value`. A null, an id out of range and one that the frame does not have give null.

    `metric`: "inner" is the sum of products; "cosine" that of the features scaled to length 1; "tfidf" the cosine after
    each value was multiplied by ln((1 + n) / (1 + df)) + 1, where n is the number of ids and df that of those with the
    feature (the smoothed weights of scikit-learn's TfidfTransformer). Without any feature the similarity is 0.
    Computed in Float64, in the order of the features.
    """

    grouped: ClassVar[bool] = True

    left_features: Any = field(kw_only=False, repr=False)
    right_features: Any = field(default=None, kw_only=False, repr=False)
    metric: Literal["tfidf", "cosine", "inner"] = "tfidf"

    def __post_init__(self) -> None:
        if self.metric not in ("tfidf", "cosine", "inner"):
            raise ConfigError(f"ColumnSimilarity metric={self.metric!r}", hint='"tfidf", "cosine" or "inner"')
        left = _features(self.left_features, "left_features")
        right = None if self.right_features is None else _features(self.right_features, "right_features")
        if right is not None and left.schema[_FEATURE] != right.schema[_FEATURE]:
            raise SchemaError(
                f"ColumnSimilarity's features are {left.schema[_FEATURE]} left, {right.schema[_FEATURE]} right",
                hint="features of both sides are compared by name: give them one type",
            )
        freeze(self, left_features=left, right_features=right)

    def sources(self, columns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        if len(columns) != 2:
            raise ConfigError(
                f"ColumnSimilarity compares two columns, not {', '.join(columns)}", hint='nest pairs: [["a", "b"]]'
            )
        return {"_".join((*columns, "sim")): columns}

    def apply(self, frame: pl.LazyFrame, columns: tuple[str, ...]) -> pl.LazyFrame:
        (name,) = self.sources(columns)
        types = frame.select(columns).collect_schema()
        pair = list(_PAIR)
        frame = frame.with_columns(
            matching(pl.col(x), types[x], side.ids.dtype, x).alias(place)
            for place, x, side in zip(pair, columns, self._sides, strict=True)
        )
        pairs = frame.select(pair).unique()
        for place, side in zip(pair, self._sides, strict=True):
            pairs = pairs.join(side.ids.to_frame(place).lazy(), on=place, how="semi")
        left, right = (side.weights.lazy().rename({_ID: x}) for x, side in zip(pair, self._sides, strict=True))
        shared = pairs.join(left, on=pair[0]).join(right, on=[pair[1], _FEATURE], suffix="_right")
        product = (pl.col(_VALUE) * pl.col(f"{_VALUE}_right")).alias(name)
        products = shared.sort(*pair, _FEATURE).group_by(pair, maintain_order=True).agg(product)
        total = pl.col(name).list.eval(pl.element().cum_sum()).list.last()  # one after the other, as in `on_row`
        total = one_zero(total.fill_null(0.0)).cast(pl.Float32).alias(name)
        found = pairs.join(products, on=pair, how="left").with_columns(total)
        return frame.join(found, on=pair, how="left", maintain_order="left").drop(pair)

    def describe(self, inputs: Mapping[str, Column], outputs: Mapping[str, Column]) -> Mapping[str, Column]:
        if self.metric == "inner":
            return outputs
        return {name: replace(column, min=-1.0, max=1.0) for name, column in outputs.items()}

    def on_row(self, names: Group, columns: Mapping[str, Column]) -> OnRow:
        (out,) = self.sources(names)
        left, right = (side.by_id for side in self._sides)

        def compare(values: Row) -> Row:
            a, b = left.get(values[names[0]]), right.get(values[names[1]])
            if a is None or b is None:
                return {out: None}
            total = 0.0
            for feature, value in a.items():
                if (other := b.get(feature)) is not None:
                    total += value * other
            return {out: float32(total)}

        return compare

    @cached_property
    def _sides(self) -> tuple[_Side, _Side]:
        left = _Side.of(self.left_features, self.metric)
        return left, left if self.right_features is None else _Side.of(self.right_features, self.metric)


@dataclass(frozen=True, eq=False)
class _Side:
    """The ids of one side, and the weights of their features in the order of ids and features."""

    ids: pl.Series
    weights: pl.DataFrame

    @classmethod
    def of(cls, features: pl.DataFrame, metric: str) -> _Side:
        ids = features[_ID].unique(maintain_order=True)
        known = features.drop_nulls(_FEATURE)
        if metric == "tfidf":
            df = pl.len().over(_FEATURE)
            known = known.with_columns(pl.col(_VALUE) * (((1 + len(ids)) / (1 + df)).log() + 1))
        if metric != "inner":
            place = (pl.col(_ID).rle_id()).alias("place")
            squares = known.select(place, pl.col(_VALUE) * pl.col(_VALUE))
            length = np.sqrt(np.bincount(squares["place"].to_numpy(), weights=squares[_VALUE].to_numpy()))
            known = known.with_columns(pl.col(_VALUE) / pl.Series(length).gather(squares["place"]))
        return cls(ids, known)

    @cached_property
    def by_id(self) -> dict[Any, dict[Any, float]]:
        """The same for one id at a time."""
        found: dict[Any, dict[Any, float]] = {one: {} for one in self.ids}
        for one, feature, value in self.weights.iter_rows():
            found[one][feature] = value
        return found


def _features(given: Any, where: str) -> pl.DataFrame:
    """Features as the columns `id`, `feature` (null where an id has none) and `value`, in order.

    Raises DataError for values that are no finite numbers, and for a feature that an id has twice.
    """
    if hasattr(given, "tocsr") or (isinstance(given, np.ndarray) and given.ndim == 2):
        ids, found = pl.Series(_ID, range(given.shape[0]), dtype=pl.Int64), _of_matrix(given)
    else:
        found = _of_frame(plain(as_frame(given).lazy()).collect(), where)
        ids = found[_ID].unique()
        if isinstance(found.schema[_FEATURE], pl.List):
            found = found.explode(_FEATURE)
    if not found[_VALUE].is_finite().all():
        raise DataError(f"ColumnSimilarity's {where} have a value that is no finite number")
    found = found.filter(pl.col(_FEATURE).is_not_null() & (pl.col(_VALUE) != 0))
    twice = found.filter(pl.struct(_ID, _FEATURE).is_duplicated())
    if len(twice):
        one, feature, _ = twice.row(0)
        raise DataError(
            f"ColumnSimilarity's {where} have the feature {feature!r} of {one!r} more than once",
            hint="sum them up first: frame.group_by('id', 'feature').agg(pl.col('value').sum())",
        )
    every = ids.to_frame().join(found, on=_ID, how="left").with_columns(pl.col(_VALUE).fill_null(1.0))
    return every.sort(_ID, _FEATURE)


def _of_matrix(matrix: Any) -> pl.DataFrame:
    """What is not zero, by the numbers of its row and column."""
    if isinstance(matrix, np.ndarray):
        row, column = np.nonzero(matrix)
        value = matrix[row, column]
    else:
        sparse = matrix.tocsr(copy=True)
        sparse.sum_duplicates()
        entries = sparse.tocoo()
        row, column, value = entries.row, entries.col, entries.data
    return pl.DataFrame(
        {_ID: row.astype(np.int64), _FEATURE: column.astype(np.int64), _VALUE: value.astype(np.float64)}
    )


def _of_frame(frame: pl.DataFrame, where: str) -> pl.DataFrame:
    for name in (_ID, _FEATURE):
        if name not in frame.columns:
            raise ColumnNotFoundError.of(name, frame.columns, where=f"ColumnSimilarity's {where}")
    value = pl.col(_VALUE).cast(pl.Float64) if _VALUE in frame.columns else pl.lit(1.0).alias(_VALUE)
    return frame.select(_ID, _FEATURE, value).drop_nulls(_ID)


_PAIR = ("__left__", "__right__")
