"""Normalize and NormalizeMinMax."""

from __future__ import annotations

import math
import statistics

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import MinMaxScaler, StandardScaler

import falconet as fl
from falconet import ops
from falconet.errors import SchemaError
from falconet.testing.contracts import StatOpContract, cut


def apply(node: object, frame: pl.DataFrame, train: pl.DataFrame | None = None) -> pl.DataFrame:
    """A graph fitted on `train` (or the frame itself) and applied to the frame."""
    return fl.Workflow(node).fit(fl.Dataset(frame if train is None else train)).transform(frame)


class TestNormalize(StatOpContract):
    op = ops.Normalize()
    frame = pl.DataFrame(
        {
            "price": [1.0, 2.5, None, 1e300, -8.0, float("nan"), 0.1],
            "time": [1_600_000_000 + i for i in range(7)],
            "wide": [2**63 - 1, -(2**63), 5, None, 0, 1, -1],
            "lists": [[1.5], [], None, [None, 2.0], [3.0, 4.0], [0.1], [7.0]],
        }
    )


class TestNormalizeMinMax(StatOpContract):
    op = ops.NormalizeMinMax()
    frame = pl.DataFrame(
        {
            "price": [1.0, 2.5, None, 1e300, -8.0, float("nan"), float("inf")],
            "small": pl.Series([-128, 127, 0, None, 1, 2, 3], dtype=pl.Int8),
            "zero": [0.0, -0.0, 0.0, None, 0.0, 0.0, 0.0],
            "lists": [[1.5], [], None, [None, 2.0], [3.0, 4.0], [0.1], [7.0]],
        }
    )


def test_normalize_is_the_sample_standard_score() -> None:
    x = np.random.default_rng(0).normal(1e3, 5.0, 500)
    got = apply(["x"] >> ops.Normalize(), pl.DataFrame({"x": x}))["x"].to_numpy()
    want = StandardScaler().fit_transform(x[:, None])[:, 0] * np.sqrt(499 / 500)
    assert got == pytest.approx(want, abs=1e-5)


def test_digits_of_large_numbers_do_not_cancel() -> None:
    times = pl.DataFrame({"t": [1_600_000_000_000_000_000 + i for i in range(4)]})
    fitted = ops.Normalize().finish(ops.Normalize().partial(times.lazy(), ("t",)).collect())
    assert fitted.mean == 1_600_000_000_000_000_001.5
    assert fitted.std == pytest.approx(1.2909944487358056, rel=1e-15)


def test_small_integers_do_not_overflow() -> None:
    op = ops.Normalize()
    bytes_ = pl.DataFrame({"x": pl.Series([100] * 4, dtype=pl.Int8)})
    assert op.finish(op.partial(bytes_.lazy(), ("x",)).collect()) == type(
        op.finish(op.partial(bytes_.lazy(), ("x",)).collect())
    )(mean=100.0, std=0.0)
    ints = pl.DataFrame({"x": pl.Series([60000, 60001, 60002, 60003], dtype=pl.Int32)})
    assert op.finish(op.partial(ints.lazy(), ("x",)).collect()).std ** 2 == pytest.approx(5 / 3, rel=1e-15)


def test_a_constant_becomes_zero_and_nulls_stay() -> None:
    frame = pl.DataFrame({"x": [5.0, 5.0, None]})
    assert apply(["x"] >> ops.Normalize(), frame)["x"].to_list() == [0.0, 0.0, None]
    nothing = pl.DataFrame({"x": [None, None]}, schema={"x": pl.Float32})
    assert apply(["x"] >> ops.Normalize(), nothing)["x"].to_list() == [None, None]


def test_normalize_of_strings_is_refused() -> None:
    with pytest.raises(SchemaError, match="Normalize needs numbers, `x` is String"):
        apply(["x"] >> ops.Normalize(), pl.DataFrame({"x": ["a"]}))


@given(
    st.lists(st.none() | st.floats(-1e150, 1e150) | st.integers(-5, 5).map(float), min_size=2, max_size=40),
    st.lists(st.integers(0, 40), max_size=4),
)
@settings(max_examples=60, deadline=None)
def test_moments_are_exact_for_any_cut(values: list[float | None], edges: list[int]) -> None:
    op, frame = ops.Normalize(), pl.DataFrame({"x": values}, schema={"x": pl.Float64})
    states = [op.partial(part.lazy(), ("x",)).collect() for part in cut(frame, sorted(edges))]
    fitted = op.finish(op.merge(states))
    known = [x for x in values if x is not None]
    if len(known) > 1:
        assert fitted.mean == statistics.mean(known)
        assert fitted.std == pytest.approx(statistics.stdev(known), rel=1e-15)


# NormalizeMinMax


def test_min_max_is_that_of_scikit_learn_and_does_not_clip() -> None:
    x = np.random.default_rng(0).normal(1e3, 5.0, 200)
    train, new = pl.DataFrame({"x": x}), pl.DataFrame({"x": [900.0, 1000.0, 1100.0]})
    want = MinMaxScaler().fit(x[:, None]).transform(new.to_numpy())[:, 0]
    assert apply(["x"] >> ops.NormalizeMinMax(), new, train)["x"].to_numpy() == pytest.approx(want, rel=1e-6)
    assert want[0] < 0
    assert want[2] > 1


def test_min_max_of_constants_is_zero() -> None:
    frame = pl.DataFrame({"five": [5.0, 5.0, None], "zero": [0, 0, 0], "none": [None, None, float("nan")]})
    got = apply(["five", "zero", "none"] >> ops.NormalizeMinMax(), frame)
    assert got.to_dict(as_series=False) == {
        "five": [0.0, 0.0, None],
        "zero": [0.0, 0.0, 0.0],
        "none": [None, None, None],
    }


def test_min_max_of_small_integers_does_not_overflow() -> None:
    frame = pl.DataFrame({"x": pl.Series([-128, 127, 0], dtype=pl.Int8)})
    assert apply(["x"] >> ops.NormalizeMinMax(), frame)["x"].to_list() == [0.0, 1.0, pytest.approx(128 / 255)]


def test_min_max_of_a_range_too_large_for_a_float() -> None:
    frame = pl.DataFrame({"x": [-1.7e308, 1.7e308, 0.0, None]})
    fitted = fl.Workflow(["x"] >> ops.NormalizeMinMax()).fit(fl.Dataset(frame))
    assert fitted.transform(frame)["x"].to_list() == [0.0, 1.0, 0.5, None]
    assert [row["x"] for row in fitted.online()(frame.to_dicts())] == [0.0, 1.0, 0.5, None]


def test_min_max_of_strings_is_refused() -> None:
    with pytest.raises(SchemaError, match="NormalizeMinMax needs numbers, `x` is String"):
        apply(["x"] >> ops.NormalizeMinMax(), pl.DataFrame({"x": ["a"]}))


@pytest.mark.parametrize("op", [ops.Normalize(), ops.NormalizeMinMax()])
def test_infinities_are_left_out_of_the_statistics(op: ops.StatOp) -> None:
    frame = pl.DataFrame({"x": [1.0, 3.0, math.inf, -math.inf]})
    got = apply(["x"] >> op, frame)["x"].to_list()
    assert got[:2] == apply(["x"] >> op, frame[:2])["x"].to_list()
    assert got[2:] == [math.inf, -math.inf]
