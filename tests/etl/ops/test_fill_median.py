"""FillMedian."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer

import falconet as fl
from falconet import ops
from falconet.errors import ConfigError, SchemaError
from falconet.testing.contracts import StatOpContract, cut


def apply(node: object, frame: pl.DataFrame, train: pl.DataFrame | None = None) -> pl.DataFrame:
    """A graph fitted on `train` (or the frame itself) and applied to the frame."""
    return fl.Workflow(node).fit(fl.Dataset(frame if train is None else train)).transform(frame)


class TestFillMedian(StatOpContract):
    op = ops.FillMedian(add_binary_cols=True)
    frame = pl.DataFrame(
        {
            "price": [1.0, None, float("nan"), 7.5, -0.0, 1e300],
            "size": pl.Series([100, 127, None, 126, 127, -128], dtype=pl.Int8),
            "single": pl.Series([0.1, None, 0.2, 0.3, 0.7, 0.9], dtype=pl.Float32),
            "is_new": [True, None, False, True, False, True],
            "lists": [[1, None], [], None, [4], [5, 6], [None]],
            "nothing": pl.Series([None] * 6, dtype=pl.Int32),
        }
    )


@pytest.mark.parametrize("parts", [1, 2, 7, 50])
def test_the_median_is_that_of_numpy_for_any_cut(parts: int) -> None:
    random = np.random.default_rng(0)
    x = random.permutation(np.concatenate([random.exponential(size=900), random.normal(1000, 1, 100)]))
    op, frame = ops.FillMedian(), pl.DataFrame({"x": x})
    states = [op.partial(part.lazy(), ("x",)).collect() for part in cut(frame, range(0, 1000, 1000 // parts))]
    assert op.finish(op.merge(states)).fill_val == np.median(x)


@given(st.lists(st.none() | st.floats(-1e9, 1e9) | st.just(math.nan), min_size=1, max_size=20))
@settings(max_examples=25, deadline=None)
def test_it_fills_as_scikit_learn_does(values: list[float | None]) -> None:
    frame = pl.DataFrame({"x": values}, schema={"x": pl.Float64})
    given = frame["x"].to_numpy()[:, None]
    want = SimpleImputer(strategy="median", keep_empty_features=True).fit_transform(given)[:, 0]
    assert apply(["x"] >> ops.FillMedian(), frame)["x"].to_list() == want.tolist()


def test_integers_become_floats_and_floats_keep_their_type() -> None:
    frame = pl.DataFrame({"i": [1, None, 2], "f": pl.Series([1.5, None, 2.5], dtype=pl.Float32)})
    got = apply(["i", "f"] >> ops.FillMedian(), frame)
    assert got.to_dict(as_series=False) == {"i": [1.0, 1.5, 2.0], "f": [1.5, 2.0, 2.5]}
    assert got.schema == {"i": pl.Float64, "f": pl.Float32}


def test_new_data_gets_the_median_of_the_fit() -> None:
    train, new = pl.DataFrame({"x": [1, 2, 9]}), pl.DataFrame({"x": [None, 100, None]})
    node = ["x"] >> ops.FillMedian(add_binary_cols=True)
    got = apply(node, new, train)
    assert got.to_dict(as_series=False) == {"x": [2.0, 100.0, 2.0], "x_filled": [True, False, True]}


def test_elements_of_lists_are_filled() -> None:
    frame = pl.DataFrame({"x": [[1, None], None, [4, 9], []]})
    assert apply(["x"] >> ops.FillMedian(), frame)["x"].to_list() == [[1.0, 4.0], [], [4.0, 9.0], []]


def test_a_column_without_values_gets_zero() -> None:
    frame = pl.DataFrame({"x": [None, float("nan")]})
    assert apply(["x"] >> ops.FillMedian(), frame)["x"].to_list() == [0.0, 0.0]


def test_what_does_not_fit_says_so() -> None:
    with pytest.raises(SchemaError, match="FillMissing fills other types"):
        apply(["x"] >> ops.FillMedian(), pl.DataFrame({"x": ["a"]}))
    with pytest.raises(ConfigError, match="a second column `x_filled`"):
        ["x", "x_filled"] >> ops.FillMedian(add_binary_cols=True)
