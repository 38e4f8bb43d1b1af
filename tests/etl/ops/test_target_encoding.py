"""TargetEncoding."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import TargetEncoder

import falconet as fl
from falconet import ops
from falconet.errors import ColumnNotFoundError, ConfigError, SchemaError
from falconet.hashing import stable_hash
from falconet.schema import Column
from falconet.testing.contracts import StatOpContract, cut, same, write_parts

FRAME = pl.DataFrame(
    {
        "shop": ["a", "b", "a", None, "c", "a", "b", "a"],
        "size": [1, 1, 1, 2, 2, None, 1, 1],
        "label": [1, 0, 1, 1, None, 0, 1, 1],
        "amount": [1.5, -2.0, float("nan"), 0.1, 7.0, float("inf"), 0.1, 0.3],
    }
)


class TestTargetEncoding(StatOpContract):
    op = ops.TargetEncoding(target=["label", "amount"], kfold=4)
    frame = FRAME
    columns = ("shop", "size")


class TestTargetEncodingOfTwo(StatOpContract):
    op = ops.TargetEncoding(target="label", target_mean=0.25, p_smooth=2, out_col="chance", out_dtype="float64")
    frame = FRAME
    columns = (["shop", "size"],)


class TestTargetEncodingWithoutFolds(StatOpContract):
    op = ops.TargetEncoding(target="amount", kfold=1, p_smooth=0)
    frame = FRAME
    columns = ("shop",)


def fit(node: object, frame: pl.DataFrame) -> fl.FittedWorkflow:
    return fl.Workflow(node).fit(fl.Dataset(frame))


def random_frame(rows: int = 300) -> pl.DataFrame:
    random = np.random.default_rng(0)
    return pl.DataFrame({"k": random.integers(0, 20, rows), "y": random.integers(0, 2, rows)})


def test_the_encoding_is_the_smoothed_mean() -> None:
    frame = pl.DataFrame({"k": ["a", "a", "b"], "y": [1.0, 0.0, 1.0]})
    fitted = fit(["k"] >> ops.TargetEncoding(target="y", p_smooth=2, out_dtype="float64"), frame)
    mean = 2 / 3
    want = [(1 + 2 * mean) / (2 + 2), (1 + 2 * mean) / (1 + 2), mean, mean]
    got = fitted.transform(pl.DataFrame({"k": ["a", "b", "new", None]}))
    assert got["TE_k_y"].to_list() == pytest.approx(want, rel=1e-15)


def test_the_smoothing_is_that_of_scikit_learn() -> None:
    frame = random_frame()
    fitted = fit(["k"] >> ops.TargetEncoding(target="y", p_smooth=5, out_dtype="float64"), frame)
    encoder = TargetEncoder(smooth=5.0, target_type="continuous").fit(frame[["k"]].to_numpy(), frame["y"].to_numpy())
    want = encoder.transform(frame[["k"]].to_numpy())[:, 0]
    np.testing.assert_allclose(fitted.transform(frame)["TE_k_y"].to_numpy(), want, rtol=1e-12)


def test_the_rows_of_the_fit_are_encoded_by_the_other_folds() -> None:
    frame, p = random_frame(), 20
    fitted = fit(["k"] >> ops.TargetEncoding(target="y", kfold=4, fold_seed=7, out_dtype="float64"), frame)
    folds = [(stable_hash(row, seed=7) or 0) % 4 for row in range(len(frame))]
    rows = list(zip(frame["k"], frame["y"], folds, strict=True))
    want = []
    for key, _, fold in rows:
        others = [(k, y) for k, y, f in rows if f != fold]
        mean = sum(y for _, y in others) / len(others)
        own = [y for k, y in others if k == key]
        want.append((sum(own) + p * mean) / (len(own) + p))
    got = fitted.transform(fl.Dataset(frame)).collect()["TE_k_y"]
    np.testing.assert_allclose(got.to_numpy(), want, rtol=1e-14)
    whole = fitted.transform(fl.Dataset(frame), out_of_fold=False).collect()
    same(whole, fitted.transform(frame))
    assert not whole["TE_k_y"].equals(got)


@pytest.mark.parametrize("mean", [None, 0.5])
def test_a_row_never_sees_its_own_target(mean: float | None) -> None:
    frame = random_frame(40)
    node = ["k"] >> ops.TargetEncoding(target="y", kfold=4, target_mean=mean, out_dtype="float64")
    before = fit(node, frame).transform(fl.Dataset(frame)).collect()["TE_k_y"]
    changed = 0
    for row in range(0, 40, 7):
        flipped = frame.with_columns(y=pl.when(pl.int_range(pl.len()) == row).then(1 - pl.col("y")).otherwise("y"))
        after = fit(node, flipped).transform(fl.Dataset(flipped)).collect()["TE_k_y"]
        assert after[row] == before[row]
        changed += not after.equals(before)
    assert changed >= 3


def test_a_transform_needs_no_target_and_equal_rows_get_one_value() -> None:
    frame = random_frame()
    fitted = fit(["k"] >> ops.TargetEncoding(target="y", kfold=4), frame)
    assert fitted.input_columns == ("k",)
    got = fitted.transform(fl.Dataset(pl.DataFrame({"k": [3] * 6}))).collect()["TE_k_y"]
    assert got.n_unique() == 1
    assert got[0] == fitted.online()({"k": 3})["TE_k_y"]


def test_fitted_in_one_part_and_transformed_in_four(tmp_path: Path) -> None:
    frame = random_frame()
    fitted = fit(["k"] >> ops.TargetEncoding(target="y", kfold=4), frame)
    parts = write_parts(frame.drop("y"), (10, 100, 101), tmp_path)
    same(fitted.transform(parts).collect(), fitted.transform(frame))


def test_out_of_fold_encodings_do_not_depend_on_the_parts(tmp_path: Path) -> None:
    frame = random_frame()
    node = ["k"] >> ops.TargetEncoding(target="y", kfold=4)
    one, four = write_parts(frame, (), tmp_path / "1"), write_parts(frame, (10, 100, 101), tmp_path / "4")
    want = fl.Workflow(node).fit_transform(one).collect()
    same(fl.Workflow(node).fit_transform(four).collect(), want)


def test_targets_keep_their_names_whatever_their_order() -> None:
    frame = pl.DataFrame({"k": ["x", "x"], "b": [1.0, 1.0], "a": [0.0, 0.0]})
    got = fit(["k"] >> ops.TargetEncoding(target=["b", "a"]), frame).transform(frame)
    assert got.to_dict(as_series=False) == {"TE_k_b": [1.0, 1.0], "TE_k_a": [0.0, 0.0]}
    named = ops.TargetEncoding(target=["b", "a"], out_col=["second", "first"])
    got = fit(["k"] >> named, frame).transform(frame)
    assert got.to_dict(as_series=False) == {"second": [1.0, 1.0], "first": [0.0, 0.0]}


def test_several_groups_have_an_encoding_each() -> None:
    frame = pl.DataFrame({"a": [1, 1], "b": [1, 2], "y": [1.0, 0.0]})
    op = ops.TargetEncoding(target="y", p_smooth=0, name_sep="-")
    got = fit([["a"], ["b"]] >> op, frame).transform(frame)
    assert got.to_dict(as_series=False) == {"TE-a-y": [0.5, 0.5], "TE-b-y": [1.0, 0.0]}
    got = fit([["a", "b"]] >> op, frame).transform(frame)
    assert got.to_dict(as_series=False) == {"TE-a-b-y": [1.0, 0.0]}


def test_a_target_may_be_derived_and_is_saved_by_name(tmp_path: Path) -> None:
    frame = pl.DataFrame({"k": ["x", "x", "y"], "rating": [5, 1, 4]})
    liked = ["rating"] >> ops.LambdaOp(lambda col: (col >= 4).cast(pl.Int8)) >> ops.Rename(name="liked")
    fitted = fit(["k"] >> ops.TargetEncoding(target=liked, p_smooth=0), frame)
    want = {"TE_k_liked": [0.5, 0.5, 1.0]}
    assert fitted.transform(frame).to_dict(as_series=False) == want
    loaded = fl.Workflow.load(fitted.save(tmp_path / "workflow"))
    assert loaded.transform(frame.drop("rating")).to_dict(as_series=False) == want


def test_a_given_mean_takes_the_place_of_that_of_the_data() -> None:
    frame = pl.DataFrame({"k": ["x", "x"], "y": [1.0, 1.0], "z": [1, 0]})
    op = ops.TargetEncoding(target=["y", "z"], target_mean={"y": 0.25, "z": 0.75}, p_smooth=2)
    got = fit(["k"] >> op, frame).transform(pl.DataFrame({"k": ["x", "new"]}))
    assert got["TE_k_y"].to_list() == [(2 + 2 * 0.25) / 4, 0.25]
    assert got["TE_k_z"].to_list() == [(1 + 2 * 0.75) / 4, 0.75]


def test_without_any_target_all_is_zero() -> None:
    frame = pl.DataFrame({"k": ["x", "y"], "y": pl.Series([None, None], dtype=pl.Int8)})
    fitted = fit(["k"] >> ops.TargetEncoding(target="y"), frame)
    assert fitted.transform(fl.Dataset(frame)).collect()["TE_k_y"].to_list() == [0.0, 0.0]


def test_an_encoding_is_a_continuous_feature_of_whom_it_is_about() -> None:
    tagged = ["k"] >> ops.AddTags(["item", "id"])
    fitted = fit(tagged >> ops.TargetEncoding(target="y"), random_frame())
    assert fitted.schema["TE_k_y"] == Column(
        name="TE_k_y", dtype="float32", nullable=False, tags=frozenset({"item", "continuous"}), source=("k",)
    )


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.floats(-1e12, 1e12) | st.just(math.nan)),
        min_size=1,
        max_size=20,
    ),
    st.lists(st.integers(0, 20), max_size=3),
)
@settings(max_examples=25, deadline=None)
def test_any_cut_gives_the_same_bits(rows: list[tuple[str | None, float | None]], edges: list[int]) -> None:
    frame = pl.DataFrame(rows, schema={"k": pl.String, "y": pl.Float64}, orient="row")
    numbered = frame.with_columns(__row__=pl.int_range(pl.len(), dtype=pl.UInt64))
    op = ops.TargetEncoding(target="y", kfold=2)
    states = [op.partial(part.lazy(), ("k",)).collect() for part in cut(numbered, sorted(edges))]
    whole = op.merge([op.partial(numbered.lazy(), ("k",)).collect()])
    same(op.merge(states), whole)
    made = op.finish_fitted(whole).apply(numbered.lazy(), ("k",)).collect()["TE_k_y"]
    assert made.is_not_null().all()
    assert made.is_not_nan().all()


def test_what_does_not_fit_says_so() -> None:
    with pytest.raises(ConfigError, match='for example target="label"'):
        ops.TargetEncoding(target=[])
    with pytest.raises(ConfigError, match="a whole number of folds"):
        ops.TargetEncoding(target="y", kfold=0)
    with pytest.raises(ConfigError, match="at least 0"):
        ops.TargetEncoding(target="y", p_smooth=-1)
    with pytest.raises(ConfigError, match='"float32" or "float64"'):
        ops.TargetEncoding(target="y", out_dtype="int8")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="one name for each target"):
        ops.TargetEncoding(target=["y", "z"], out_col="one")
    with pytest.raises(ColumnNotFoundError, match="did you mean `label`"):
        ops.TargetEncoding(target="lable", target_mean={"label": 0.5})
    with pytest.raises(ConfigError, match="makes two columns `both`"):
        ["a", "b"] >> ops.TargetEncoding(target="y", out_col="both")
    with pytest.raises(SchemaError, match="needs a number as target, `y` is String"):
        fit(["k"] >> ops.TargetEncoding(target="y"), pl.DataFrame({"k": [1], "y": ["a"]}))
