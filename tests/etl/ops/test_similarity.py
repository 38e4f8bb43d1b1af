"""ColumnSimilarity against scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import sparse
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.metrics.pairwise import cosine_similarity

import falconet as fl
from falconet import ops
from falconet.errors import ColumnNotFoundError, ConfigError, DataError, SchemaError
from falconet.testing.contracts import OpContract, same
from plain_rows import same_on_rows

GENRES = pl.DataFrame({"id": [10, 20, 30, 40], "feature": [["drama", "war"], ["war"], [], ["comedy", "drama"]]})
MATRIX = np.array([[1.0, 0, 2, 0], [0, 3.0, 1, 0], [0, 0, 0, 0], [0.5, 0, 0, -1.0]])
PAIRS = pl.DataFrame({"a": [10, 10, 30, 99, None, 40], "b": [20, 10, 10, 10, 10, None]})


class TestColumnSimilarity(OpContract):
    op = ops.ColumnSimilarity(GENRES)
    frame = PAIRS
    columns = (["a", "b"],)


class TestColumnSimilarityOfTwoSides(OpContract):
    op = ops.ColumnSimilarity(MATRIX, MATRIX[:, ::-1], metric="inner")
    frame = PAIRS // 10 - 1
    columns = (["a", "b"],)


def apply(op: ops.Op, frame: pl.DataFrame) -> list[float | None]:
    return fl.Workflow([["a", "b"]] >> op).fit(fl.Dataset(frame)).transform(frame)["a_b_sim"].to_list()


def reference(matrix: np.ndarray, metric: str) -> np.ndarray:
    if metric == "inner":
        return matrix @ matrix.T
    return cosine_similarity(TfidfTransformer().fit_transform(matrix) if metric == "tfidf" else matrix)


@pytest.mark.parametrize("metric", ["inner", "cosine", "tfidf"])
def test_it_is_scikit_learn_s(metric: str) -> None:
    rng = np.random.default_rng(1)
    matrix = rng.integers(0, 5, (12, 9)) * (rng.random((12, 9)) < 0.4)
    matrix[3] = 0
    frame = pl.DataFrame({"a": np.repeat(np.arange(12), 12), "b": np.tile(np.arange(12), 12)})
    op = ops.ColumnSimilarity(matrix, metric=metric)
    assert np.array(apply(op, frame)) == pytest.approx(reference(matrix, metric).ravel(), rel=1e-6, abs=1e-9)
    same_on_rows(op, frame)


def test_both_sides_may_have_features_of_their_own() -> None:
    rng = np.random.default_rng(2)
    left, right = rng.normal(size=(4, 6)), rng.normal(size=(5, 6))
    frame = pl.DataFrame({"a": [0, 3, 3, 0], "b": [4, 0, 4, 1]})
    op = ops.ColumnSimilarity(left, right, metric="cosine")
    want = cosine_similarity(left, right)
    assert apply(op, frame) == pytest.approx([want[0, 4], want[3, 0], want[3, 4], want[0, 1]], rel=1e-6)
    same_on_rows(op, frame)


def long(matrix: np.ndarray) -> pl.DataFrame:
    row, column = np.indices(matrix.shape)
    return pl.DataFrame({"id": row.ravel(), "feature": column.ravel(), "value": matrix.ravel()})


@pytest.mark.parametrize(
    "make", [sparse.csr_matrix, sparse.coo_array, long, lambda m: long(m).to_pandas(), lambda m: long(m).to_arrow()],
    ids=["csr", "coo", "frame", "pandas", "arrow"],
)  # fmt: skip
def test_features_may_be_of_any_make(make: Any) -> None:
    frame = pl.DataFrame({"a": [0, 1, 2, 3], "b": [1, 1, 0, 0]})
    for metric in ("inner", "cosine", "tfidf"):
        want = apply(ops.ColumnSimilarity(MATRIX, metric=metric), frame)
        assert apply(ops.ColumnSimilarity(make(MATRIX), metric=metric), frame) == want


def test_lists_of_features_and_ids_that_are_not_known() -> None:
    got = apply(ops.ColumnSimilarity(GENRES, metric="cosine"), PAIRS)
    assert got == [pytest.approx(0.5**0.5), pytest.approx(1.0), 0.0, None, None, None]


def test_ids_may_be_texts_and_the_columns_stay_outside() -> None:
    features = pl.DataFrame({"id": ["x", "y"], "feature": [1, 1], "value": [2.0, 3.0]})
    frame = pl.DataFrame({"a": ["x", "z"], "b": ["y", "y"], "c": [1, 2]})
    node = ["c", [["a", "b"]] >> ops.ColumnSimilarity(features, metric="inner")]
    got = fl.Workflow(node).fit(fl.Dataset(frame)).transform(frame)
    assert got.to_dict(as_series=False) == {"c": [1, 2], "a_b_sim": [6.0, None]}
    assert got.schema["a_b_sim"] == pl.Float32


def test_several_pairs_are_compared_at_once(tmp_path: Path) -> None:
    frame = PAIRS.with_columns(c=pl.col("b"))
    op = ops.ColumnSimilarity(GENRES)
    fitted = fl.Workflow([[["a", "b"]] >> op, [["a", "c"]] >> op]).fit(fl.Dataset(frame))
    got = fitted.transform(frame)
    assert got["a_b_sim"].to_list() == got["a_c_sim"].to_list() == apply(ops.ColumnSimilarity(GENRES), PAIRS)
    same(fl.Workflow.load(fitted.save(tmp_path / "w")).transform(frame), got)


def test_a_product_too_small_for_a_float_is_zero_without_a_sign() -> None:
    op = ops.ColumnSimilarity(np.array([[-1e-200], [1e-200]]), metric="inner")
    frame = pl.DataFrame({"a": [0, 1, 0], "b": [1, 0, 0]})
    assert str(apply(op, frame)) == "[0.0, 0.0, 0.0]"
    same_on_rows(op, frame)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"(?s)compares two columns, not a.*nest pairs"):
        ["a", "b"] >> ops.ColumnSimilarity(GENRES)
    with pytest.raises(ConfigError, match="ColumnSimilarity metric='cos'"):
        ops.ColumnSimilarity(GENRES, metric="cos")
    with pytest.raises(
        ColumnNotFoundError, match=r"(?s)left_features has no column `feature`.*did you mean `features`"
    ):
        ops.ColumnSimilarity(GENRES.rename({"feature": "features"}))
    with pytest.raises(SchemaError, match="features are String left, Int64 right"):
        ops.ColumnSimilarity(GENRES, MATRIX)
    with pytest.raises(SchemaError, match="no value could be equal"):
        apply(ops.ColumnSimilarity(GENRES), PAIRS.cast(pl.String))
    with pytest.raises(DataError, match="have the feature 'a' of 1 more than once"):
        ops.ColumnSimilarity(pl.DataFrame({"id": [1, 1], "feature": ["a", "a"]}))
    with pytest.raises(DataError, match="no finite number"):
        ops.ColumnSimilarity(np.array([[1.0, float("nan")]]))
