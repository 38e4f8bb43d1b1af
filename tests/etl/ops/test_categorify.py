"""Categorify: which value has which code, with every setting, for any cut of the data, and back."""

from __future__ import annotations

import datetime as dt
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import OrdinalEncoder

import falconet as fl
from falconet import ops
from falconet.errors import ColumnNotFoundError, ConfigError, DataError, SchemaError
from falconet.hashing import hash_tuple, stable_hash
from falconet.testing.contracts import StatOpContract, same, write_parts

MOVIES = pl.DataFrame({"movie": [10, 20, 30], "year": [1990, None, 2001]})


def fit(node: object, train: pl.DataFrame) -> fl.FittedWorkflow:
    return fl.Workflow(node).fit(fl.Dataset(train))


def apply(node: object, frame: pl.DataFrame, train: pl.DataFrame | None = None) -> pl.DataFrame:
    """A graph fitted on `train` (or the frame itself) and applied to the frame."""
    return fit(node, frame if train is None else train).transform(frame)


def vocabularies(fitted: fl.FittedWorkflow) -> dict[str, ops.Categories]:
    """The fitted vocabularies by name."""
    found = [op for bound in fitted._bound.values() for _, op in bound if isinstance(op, ops.Categories)]
    return {op.name: op for op in found}


class TestCategorify(StatOpContract):
    op = ops.Categorify()
    frame = pl.DataFrame({"name": ["b", "b", "a", "a", "c", "c", None, "z"], "size": [1, 5, 5, 5, None, 7, 1, 1]})


class TestCategorifyLists(StatOpContract):
    op = ops.Categorify(freq_threshold=2)
    frame = pl.DataFrame({"tags": [["a", "b"], [], None, ["a", None], ["c", "c"], ["a"]]})


class TestCategorifyGroup(StatOpContract):
    op = ops.Categorify()
    frame = pl.DataFrame({"user": [1, 2, 3, 1], "friend": [[3, 3], [9], None, []], "city": ["x", "y", "x", None]})
    columns = (["user", "friend"], "city")


WIDE = pl.DataFrame(
    {
        "name": ["b", "b", "a", "a", "c", "c", None, "z", "b"],
        "size": [1, 5, 5, 5, None, 7, 1, 1, 9],
        "rate": [0.5, 0.5, float("nan"), None, -1.0, 2.0, 2.0, 2.0, 7.5],
        "flag": [True, None, False, True, True, True, False, None, True],
        "day": [dt.date(2020, 1, 1), None, *[dt.date(2020, 1, 2)] * 3, *[dt.date(1969, 1, 1)] * 4],
        "tags": [["a", "b"], [], None, ["a", None], ["c", "c"], ["a"], ["q"], [None], ["b"]],
    }
)
SCALARS = ("name", "size", "rate", "flag", "day")


class TestCategorifyBuckets(StatOpContract):
    op = ops.Categorify(freq_threshold=2, num_buckets={"name": 7, "size": 3, "tags": 2, "day": 5})
    frame = WIDE


class TestCategorifyMaxSize(StatOpContract):
    op = ops.Categorify(max_size={"size": 5, "tags": 4}, freq_threshold={"tags": 2}, dtype="int64")
    frame = WIDE


class TestCategorifyGivenVocabularies(StatOpContract):
    op = ops.Categorify(vocabs={"name": ["z", "a"], "size": pl.Series([5, 1])}, num_buckets=4)
    frame = WIDE.select("name", "size", "rate")


class TestCategorifyCombinations(StatOpContract):
    op = ops.Categorify(encode_type="combo", num_buckets=3, freq_threshold={"name_size": 2}, max_size=9)
    frame = WIDE
    columns = (["name", "size"], ["rate", "flag", "day"], "tags")


class TestCategorifySingleTable(StatOpContract):
    op = ops.Categorify(single_table=True, num_buckets=3, freq_threshold=2)
    frame = WIDE
    columns = (["name", "tags"], "size", "rate")


class TestCategorifySingleTableOfCombinations(StatOpContract):
    op = ops.Categorify(single_table=True, encode_type="combo", name_sep="&")
    frame = WIDE
    columns = (["name", "size"], "flag", "tags")


def test_codes_go_by_count_and_ties_by_value() -> None:
    frame = pl.DataFrame({"x": ["b", "b", "a", "a", "c", "c", "d", None]})
    assert apply(["x"] >> ops.Categorify(), frame)["x"].to_list() == [4, 4, 3, 3, 5, 5, 6, 1]


def test_ties_of_strings_go_by_their_bytes() -> None:
    frame = pl.DataFrame({"x": ["é", "z", "Z", "a"]})
    assert apply(["x"] >> ops.Categorify(), frame)["x"].to_list() == [6, 5, 3, 4]


def test_rare_values_are_out_of_vocabulary() -> None:
    frame = pl.DataFrame({"x": [1, 1, 2, 3, 3], "y": [1, 1, 2, 3, 3]})
    got = apply(["x", "y"] >> ops.Categorify(freq_threshold={"x": 2}), frame)
    assert got["x"].to_list() == [3, 3, 2, 4, 4]
    assert got["y"].to_list() == [3, 3, 5, 4, 4]


def test_a_threshold_for_a_column_that_is_not_there_suggests_the_close_name() -> None:
    with pytest.raises(ColumnNotFoundError, match="did you mean `movie`"):
        fl.Workflow(["movie"] >> ops.Categorify(freq_threshold={"moovie": 2})).fit(fl.Dataset(MOVIES))


def test_null_nan_unknown_and_known_are_told_apart() -> None:
    train = pl.DataFrame({"x": ["a", "b", None]})
    new = pl.DataFrame({"x": [None, "c", "b", "a"]})
    assert apply(["x"] >> ops.Categorify(), new, train)["x"].to_list() == [1, 2, 4, 3]


def test_transform_of_all_null_and_of_no_rows() -> None:
    fitted = fl.Workflow(["x"] >> ops.Categorify()).fit(fl.Dataset(pl.DataFrame({"x": ["a", "b", None]})))
    assert fitted.transform(pl.DataFrame({"x": [None, None]}))["x"].to_list() == [1, 1]
    assert fitted.transform(pl.DataFrame({"x": []}, schema={"x": pl.String})).schema == {"x": pl.Int32}


def test_an_all_null_column_has_the_three_reserved_codes() -> None:
    data = fl.Dataset(pl.DataFrame({"x": [None, None]}, schema={"x": pl.String}))
    fitted = fl.Workflow(["x"] >> ops.Categorify()).fit(data)
    assert fitted.schema["x"].cardinality == 3
    assert fitted.transform(pl.DataFrame({"x": ["a", None]}))["x"].to_list() == [2, 1]


def test_fitting_on_no_rows_is_refused() -> None:
    data = fl.Dataset(pl.DataFrame({"x": []}, schema={"x": pl.String}))
    with pytest.raises(DataError, match="cannot fit on no rows: `Categorify` on `x`"):
        fl.Workflow(["x"] >> ops.Categorify()).fit(data)
    given = fl.Workflow(["x"] >> ops.Categorify(vocabs={"x": ["b", "a"]})).fit(data)
    assert given.transform(pl.DataFrame({"x": ["a", "b", "c", None]}))["x"].to_list() == [4, 3, 2, 1]


def test_the_index_of_a_pandas_frame_changes_nothing() -> None:
    frame = pd.DataFrame({"x": ["a", None, "b", "a"]}, index=[10, 0, 1, 2])
    fitted = fl.Workflow(["x"] >> ops.Categorify()).fit(fl.Dataset(frame))
    assert fitted.transform(frame)["x"].to_list() == [3, 1, 4, 3]
    more = pd.DataFrame({"x": ["z", "a", None, "b", "a"], "keep": [0, 1, 1, 1, 1]}, index=[7, 10, 0, 1, 2])
    kept = ["x", "keep"] >> ops.Filter(lambda row: row["keep"] == 1)
    assert apply(kept["x"] >> ops.Categorify(), more)["x"].to_list() == [3, 1, 4, 3]  # type: ignore[arg-type]


def test_lists_are_coded_element_by_element() -> None:
    frame = pl.DataFrame({"x": [["a", "b"], [], None, ["a", None]]})
    assert apply(["x"] >> ops.Categorify(), frame)["x"].to_list() == [[3, 4], [], [1], [3, 1]]


def test_a_part_with_only_empty_lists(tmp_path: Path) -> None:
    frame = pl.DataFrame({"x": [[], [], ["a", "b"], ["a"]]}, schema={"x": pl.List(pl.String)})
    data = write_parts(frame, (2,), tmp_path)
    fitted = fl.Workflow(["x"] >> ops.Categorify()).fit(data)
    assert fitted.transform(data).collect()["x"].to_list() == [[], [], [3, 4], [3]]
    assert fitted.transform(frame).schema == {"x": pl.List(pl.Int32)}


def test_a_group_shares_one_vocabulary() -> None:
    frame = pl.DataFrame({"user": [1, 2, 2], "friend": [2, 9, 1]})
    fitted = fl.Workflow([["user", "friend"]] >> ops.Categorify()).fit(fl.Dataset(frame))
    assert fitted.transform(frame).to_dict(as_series=False) == {"user": [4, 3, 3], "friend": [3, 5, 4]}
    assert [(c.domain, c.cardinality) for c in fitted.schema] == [("user_friend", 6)] * 2
    only = fitted.prune(["friend"])
    assert only.transform(frame)["friend"].to_list() == [3, 5, 4]


def test_integers_at_fit_and_floats_at_transform() -> None:
    train = pl.DataFrame({"x": pl.Series([1, 1, 2], dtype=pl.Int16)})
    fitted = fl.Workflow(["x"] >> ops.Categorify()).fit(fl.Dataset(train))
    new = pd.DataFrame({"x": [1.0, None, 2.0, 1.5, float("nan")]})
    assert fitted.transform(new)["x"].to_list() == [3, 1, 4, 2, 1]
    big = pl.DataFrame({"x": [2**40, 2, -1]})
    assert fitted.transform(big)["x"].to_list() == [2, 4, 2]


def test_floats_at_fit_and_integers_at_transform() -> None:
    train = pd.DataFrame({"x": [1.0, 1.0, None, 0.5, -0.0]})
    fitted = fl.Workflow(["x"] >> ops.Categorify()).fit(fl.Dataset(train))
    assert fitted.transform(pl.DataFrame({"x": [1, 0, 7]}))["x"].to_list() == [3, 4, 2]


@pytest.mark.parametrize("zeros", [[-0.0, 0.0], [0.0, -0.0], [-0.0, -0.0]])
def test_both_zeros_are_one_value_whichever_came_first(zeros: list[float]) -> None:
    for node, frame in (
        (["x"], pl.DataFrame({"x": zeros})),
        (["x"], pl.DataFrame({"x": [zeros]})),
        ([["x", "y"]], pl.DataFrame({"x": zeros[:1], "y": zeros[1:]})),
    ):
        value = fit(node >> ops.Categorify(), frame).vocabulary("x")["value"]
        assert [str(x) for x in value] == ["0.0"]


def test_strings_for_numbers_are_refused_before_data_is_read() -> None:
    fitted = fl.Workflow(["x"] >> ops.Categorify()).fit(fl.Dataset(pl.DataFrame({"x": [1, 2]})))
    with pytest.raises(SchemaError, match="no value could be equal"):
        fitted.transform(pl.DataFrame({"x": ["1"]}))


def test_inverse_gives_values_back() -> None:
    categorify = ops.Categorify()
    frame = pl.DataFrame({"x": ["a", "b", "b", None]})
    fitted = categorify.finish(categorify.partial(frame.lazy(), ("x",)).collect())
    codes = pl.DataFrame({"code": [0, 1, 2, 3, 4, 99]})
    assert codes.select(fitted.inverse(pl.col("code"))).to_series().to_list() == [None, None, None, "b", "a", None]


def test_columns_that_share_no_value_cannot_share_a_vocabulary() -> None:
    frame = pl.DataFrame({"a": [1, 2], "b": ["x", "y"], "nothing": [None, None]})
    with pytest.raises(SchemaError, match=r"cannot give `a` \(Int64\) and `b` \(String\) one vocabulary"):
        apply([["a", "b"]] >> ops.Categorify(), frame)
    assert apply([["nothing", "a"]] >> ops.Categorify(), frame)["nothing"].to_list() == [1, 1]


# buckets, sizes


def test_what_is_out_of_vocabulary_has_the_code_of_its_stable_hash() -> None:
    train = pl.DataFrame({"x": ["a", "a", "b", "c"]})
    new = pl.DataFrame({"x": ["a", "b", "c", "new", "b", None]})
    got = apply(["x"] >> ops.Categorify(num_buckets=50, freq_threshold=2), new, train)["x"].to_list()
    want = [52, *(2 + (stable_hash(x) or 0) % 50 for x in ("b", "c", "new", "b")), 1]
    assert got == want
    assert [want[1], want[2], want[3]] == [47, 41, 34]


def test_equal_values_of_other_types_are_in_equal_buckets() -> None:
    train = pl.DataFrame({"x": [1, 1]})
    node = ["x"] >> ops.Categorify(num_buckets=1000)
    fitted = fit(node, train)
    ints, floats = pl.DataFrame({"x": [7, -3, 1]}), pl.DataFrame({"x": [7.0, -3.0, 1.0]})
    assert fitted.transform(ints)["x"].to_list() == fitted.transform(floats)["x"].to_list()
    assert fitted.transform(ints)["x"].to_list() == [2 + (stable_hash(x) or 0) % 1000 for x in (7, -3)] + [1002]


def test_max_size_keeps_the_most_frequent() -> None:
    frame = pl.DataFrame({"x": ["a", "b", "b", "c", "c", "d"]})
    fitted = fit(["x"] >> ops.Categorify(max_size=6, num_buckets=2), frame)
    assert vocabularies(fitted)["x"].vocabulary().rows() == [(4, "b", 2), (5, "c", 2)]
    assert fitted.schema["x"].cardinality == 6
    assert fitted.schema["x"].oov == 2
    exactly = fit(["x"] >> ops.Categorify(max_size=3), frame)
    assert exactly.transform(frame)["x"].to_list() == [2] * 6


def test_frequent_first_is_what_sklearn_s_encoder_gives_for_values_in_that_order() -> None:
    values = (np.random.default_rng(0).zipf(1.5, 500) % 40).astype(str).astype(object)
    frame = pl.DataFrame({"x": values.tolist()})
    order = frame["x"].value_counts().sort(["count", "x"], descending=[True, False])["x"].to_numpy().astype(object)
    want = OrdinalEncoder(categories=[order]).fit_transform(values[:, None])[:, 0] + 3
    assert apply(["x"] >> ops.Categorify(), frame)["x"].to_list() == want.tolist()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_buckets": 0}, "num_buckets=0.*at least 1"),
        ({"num_buckets": True}, "num_buckets=True"),
        ({"freq_threshold": -1}, "freq_threshold=-1"),
        ({"max_size": {"x": -1}}, "max_size="),
        ({"max_size": 2}, "no room for the reserved codes.*need 3"),
        ({"max_size": 5, "num_buckets": {"x": 4}}, "max_size=5 of `x` has no room.*need 6"),
        ({"max_size": 4, "vocabs": {"x": [1, 2]}}, "reserved codes and 2 values of `vocabs`.*need 5"),
        ({"encode_type": "both"}, '"joint" or "combo"'),
        ({"dtype": "int8"}, "dtype='int8'"),
        ({"encode_type": "combo", "vocabs": {"x": [1]}}, "leave `vocabs` out"),
        ({"vocabs": {"x": [1]}, "freq_threshold": {"x": 2}}, "both `vocabs` and `freq_threshold` for `x`"),
        ({"vocabs": {"x": [1]}, "max_size": {"x": 9}}, "both `vocabs` and `max_size` for `x`"),
        ({"vocabs": {"x": [1, 2, None, 1]}}, "the vocabulary of `x` has 1 more than once"),
        ({"vocabs": {"x": [1, "a"]}}, "the vocabulary of `x` is no vocabulary"),
        ({"single_table": True, "num_buckets": {"x": 2}}, "num_buckets is a mapping.*give one number"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused_when_the_operator_is_made(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        ops.Categorify(**wrong)


@pytest.mark.parametrize("setting", ["freq_threshold", "max_size", "num_buckets", "vocabs"])
def test_a_setting_for_a_column_that_is_not_there_suggests_the_close_name(setting: str) -> None:
    value = [1] if setting == "vocabs" else 7
    with pytest.raises(ColumnNotFoundError, match=rf"(?s)Categorify \(`{setting}`\) has no.*did you mean `movie`"):
        fit(["movie"] >> ops.Categorify(**{setting: {"moovie": value}}), MOVIES)


# given vocabularies


def test_a_given_vocabulary_has_codes_in_its_own_order() -> None:
    frame = pl.DataFrame({"x": ["a", "a", "b", "c", None], "y": [1, 1, 1, 2, 2]})
    fitted = fit(["x", "y"] >> ops.Categorify(vocabs={"x": ["c", None, "b"]}), frame)
    assert fitted.transform(frame).to_dict(as_series=False) == {"x": [2, 2, 4, 3, 1], "y": [3, 3, 3, 4, 4]}
    assert fitted.schema["x"].cardinality == 5
    assert vocabularies(fitted)["x"].vocabulary().rows() == [(3, "c", None), (4, "b", None)]
    assert fitted.partial_fit(fl.Dataset(frame)).transform(frame)["x"].to_list() == [2, 2, 4, 3, 1]


def test_a_vocabulary_may_be_of_any_make_and_comes_back_as_it_was_given_out(tmp_path: Path) -> None:
    frame = pl.DataFrame({"x": [7, 8, 8, 9, 9, 9]})
    out = vocabularies(fit(["x"] >> ops.Categorify(), frame))["x"].vocabulary()
    assert out.rows() == [(3, 9, 3), (4, 8, 2), (5, 7, 1)]
    out.sample(fraction=1, shuffle=True, seed=1).write_parquet(tmp_path / "x.parquet")
    pl.DataFrame({"x": [9, 8, 7]}).write_parquet(tmp_path / "own.parquet")
    makes = [
        out, out.to_pandas(), tmp_path / "x.parquet", str(tmp_path / "own.parquet"), [9, 8, 7], np.array([9, 8, 7]),
        pd.Series([9, 8, 7]), pl.Series([9, 8, 7], dtype=pl.Int8), pl.DataFrame({"one": [9, 8, 7]}),
    ]  # fmt: skip
    for made in makes:
        assert apply(["x"] >> ops.Categorify(vocabs={"x": made}), frame)["x"].to_list() == [5, 4, 4, 3, 3, 3]
    with pytest.raises(ColumnNotFoundError, match="the vocabulary of `x` has no column `x`"):
        ops.Categorify(vocabs={"x": pl.DataFrame({"a": [1], "b": [2]})})


def test_a_vocabulary_of_another_type_is_refused_before_data_is_read() -> None:
    with pytest.raises(SchemaError, match="no value could be equal"):
        fit(["x"] >> ops.Categorify(vocabs={"x": ["1"]}), pl.DataFrame({"x": [1]}))


# combinations


def test_each_combination_is_a_category_and_null_only_where_all_are() -> None:
    frame = pl.DataFrame({"a": ["x", "y", "x", None, None, "x"], "b": [1, 2, 1, 3, None, None], "c": [1] * 6})
    fitted = fit([["a", "b"], "c"] >> ops.Categorify(encode_type="combo"), frame)
    assert fitted.transform(frame).to_dict(as_series=False) == {"a_b": [3, 6, 3, 4, 1, 5], "c": [3] * 6}
    assert fitted.schema["a_b"].cardinality == 7
    assert fitted.schema["a_b"].source == ("a", "b")
    new = pl.DataFrame({"a": ["y", "x", "new", None], "b": [1, 9, 1, 3], "c": [2] * 4})
    assert fitted.transform(new)["a_b"].to_list() == [2, 2, 2, 4]
    back = fitted.inverse(fitted.transform(frame))["a_b"].to_list()
    assert back[:2] == [{"a": "x", "b": 1}, {"a": "y", "b": 2}]
    assert back[3:] == [{"a": None, "b": 3}, None, {"a": "x", "b": None}]


def test_an_unknown_combination_is_in_the_bucket_of_its_hashes() -> None:
    train = pl.DataFrame({"a": ["x"], "b": [1]})
    new = pl.DataFrame({"a": ["x", None, "q"], "b": [2, 2, None]})
    got = apply([["a", "b"]] >> ops.Categorify(encode_type="combo", num_buckets=97), new, train)["a_b"].to_list()
    pairs = [(stable_hash("x"), stable_hash(2)), (0, stable_hash(2)), (stable_hash("q"), 0)]
    assert got == [2 + hash_tuple([x or 0 for x in pair]) % 97 for pair in pairs]


def test_combinations_of_three_are_those_of_a_group_by() -> None:
    rng = np.random.default_rng(1)
    frame = pl.DataFrame({name: rng.integers(0, 5, 300) for name in "abc"}).with_columns(
        b=pl.when(pl.col("b") > 0).then(pl.col("b").cast(pl.String)), c=pl.col("c") / 2
    )
    got = apply([["a", "b", "c"]] >> ops.Categorify(encode_type="combo"), frame)["a_b_c"]
    counted = frame.group_by("a", "b", "c").len().sort(["len", "a", "b", "c"], descending=[True, False, False, False])
    want = frame.join(counted.with_row_index("code", 3), on=["a", "b", "c"], nulls_equal=True, maintain_order="left")
    assert got.to_list() == want["code"].to_list()


@pytest.mark.parametrize("encode_type", ["joint", "combo"])
def test_groups_whose_joined_names_are_the_same_are_refused(encode_type: Any) -> None:
    frame = pl.DataFrame({name: [1] for name in ("a_b", "c", "a", "b_c")})
    with pytest.raises(
        ConfigError, match=r"`a_b_c`.*\['a_b', 'c'\] and.*\['a', 'b_c'\]|\['a_b', 'c'\] and \['a', 'b_c'\] `a_b_c`"
    ):
        fit([["a_b", "c"], ["a", "b_c"]] >> ops.Categorify(encode_type=encode_type), frame)
    node = [["a_b", "c"], ["a", "b_c"]] >> ops.Categorify(encode_type=encode_type, name_sep="+")
    domains = [column.domain for column in fit(node, frame).schema]
    assert sorted(set(domains)) == ["a+b_c", "a_b+c"]


def test_lists_cannot_be_combined() -> None:
    with pytest.raises(SchemaError, match="a combination of Categorify needs one value per row, `b` is List"):
        fit([["a", "b"]] >> ops.Categorify(encode_type="combo"), pl.DataFrame({"a": [1], "b": [[1]]}))


# one table


def test_columns_of_one_table_have_codes_one_behind_the_other() -> None:
    frame = pl.DataFrame({"c": ["p", "q", "p", None], "d": [5, 5, 6, 7]})
    fitted = fit(["c", "d"] >> ops.Categorify(single_table=True), frame)
    assert fitted.transform(frame).to_dict(as_series=False) == {"c": [3, 4, 3, 1], "d": [5, 5, 6, 7]}
    assert [(c.table, c.cardinality, c.oov) for c in fitted.schema] == [("c_d", 8, 1)] * 2
    assert fl.get_embedding_sizes(fitted) == {"c": (8, 16), "d": (8, 16)}
    assert fitted.inverse(fitted.transform(frame)).equals(frame)


def test_one_table_keeps_its_codes_when_pruned_and_saved(tmp_path: Path) -> None:
    frame = pl.DataFrame({"c": ["p", "q", "p", None], "d": [5, 5, 6, 7]})
    fitted = fit(["c", "d"] >> ops.Categorify(single_table=True), frame)
    only = fl.Workflow.load(fitted.prune(["d"]).save(tmp_path / "w"))
    assert only.transform(frame.select("d"))["d"].to_list() == [5, 5, 6, 7]
    assert only.schema["d"].cardinality == 8
    assert only.inverse(pl.DataFrame({"d": [5, 3, 7]}))["d"].to_list() == [5, None, 7]
    with pytest.raises(ConfigError, match="was pruned and cannot learn"):
        only.partial_fit(fl.Dataset(frame))


def test_renamed_columns_of_one_table_are_only_told_apart_where_types_are_the_same() -> None:
    frame = pl.DataFrame({"c": ["p", "q"], "d": [5, 6], "e": [7, 8]})
    node = ["c", "d"] >> ops.Categorify(single_table=True) >> ops.Rename(postfix="_code")
    with pytest.raises(SchemaError, match="`c_code` may hold codes of `c`, `d`"):
        fit(node, frame).inverse(pl.DataFrame({"c_code": [3]}))
    same_types = fit(["d", "e"] >> ops.Categorify(single_table=True) >> ops.Rename(postfix="_code"), frame)
    back = same_types.inverse(same_types.transform(frame))
    assert back.to_dict(as_series=False) == {"d_code": [5, 6], "e_code": [7, 8]}


# growing


def test_a_vocabulary_grows_at_its_end_and_old_codes_stay() -> None:
    first = pl.DataFrame({"x": ["a", "b", "b", "rare"]})
    more = pl.DataFrame({"x": ["new", "new", "new", "rare", "a", "a", "a", "a", "once"]})
    fitted = fit(["x"] >> ops.Categorify(freq_threshold=2), first)
    assert vocabularies(fitted)["x"].vocabulary().rows() == [(3, "b", 2)]
    grown = fitted.partial_fit(fl.Dataset(more))
    assert vocabularies(grown)["x"].vocabulary().rows() == [(3, "b", 2), (4, "a", 5), (5, "new", 3), (6, "rare", 2)]
    again = grown.partial_fit(fl.Dataset(pl.DataFrame({"x": ["once", "c", "c", "c"]})))
    assert vocabularies(again)["x"].vocabulary()["value"].to_list() == ["b", "a", "new", "rare", "c", "once"]
    assert again.schema["x"].cardinality == 9


def test_a_growing_vocabulary_stays_within_its_size_and_survives_saving(tmp_path: Path) -> None:
    fitted = fit(["x"] >> ops.Categorify(max_size=5), pl.DataFrame({"x": [1, 1]}))
    grown = fitted.partial_fit(fl.Dataset(pl.DataFrame({"x": [2, 3, 3, 3, 4, 4]})))
    assert vocabularies(grown)["x"].vocabulary()["value"].to_list() == [1, 3]
    loaded = fl.Workflow.load(grown.save(tmp_path / "w"))
    later = loaded.partial_fit(fl.Dataset(pl.DataFrame({"x": [4] * 9})))
    assert later.transform(pl.DataFrame({"x": [1, 2, 3, 4]}))["x"].to_list() == [3, 2, 4, 2]


def test_one_table_grows_at_its_end_whichever_columns_have_news() -> None:
    fitted = fit(["a", "b"] >> ops.Categorify(single_table=True), pl.DataFrame({"a": ["x"], "b": [None]}))
    only_b = fitted.partial_fit(fl.Dataset(pl.DataFrame({"a": ["x"], "b": ["q"]})))
    both = only_b.partial_fit(fl.Dataset(pl.DataFrame({"a": ["y"], "b": ["r"]})))
    assert [vocabularies(w)["b"].codes.to_list() for w in (fitted, only_b, both)] == [[], [4], [4, 6]]
    assert [vocabularies(w)["a"].codes.to_list() for w in (fitted, only_b, both)] == [[3], [3], [3, 5]]
    assert [w.schema["a"].cardinality for w in (fitted, only_b, both)] == [4, 5, 7]


@given(st.lists(st.sampled_from("abcdef"), max_size=12), st.lists(st.sampled_from("abcdefgh"), max_size=12))
@settings(max_examples=30, deadline=None)
def test_growing_counts_as_one_fit_does(first: list[str], second: list[str]) -> None:
    op = ops.Categorify(freq_threshold=2)
    frames = [pl.DataFrame({"x": pl.Series(x, dtype=pl.String)}) for x in (first, second)]
    states = [op.partial(frame.lazy(), ("x",)).collect() for frame in frames]
    grown, whole = op.grow(*states), op.merge(states)
    same(grown.select(whole.columns), whole)
    before, after = op.finish(states[0]).vocabulary(), op.finish(grown).vocabulary()
    assert after["value"].to_list()[: len(before)] == before["value"].to_list()
    assert set(after["value"]) == set(op.finish(whole).vocabulary()["value"])


@given(st.lists(st.tuples(st.sampled_from("ab"), st.none() | st.integers(0, 3)), min_size=1, max_size=20))
@settings(max_examples=20, deadline=None)
def test_slices_of_a_state_merge_apart(rows: list[tuple[str, int | None]]) -> None:
    frame = pl.DataFrame(rows, schema={"a": pl.String, "b": pl.Int64}, orient="row")
    for op, group in ((ops.Categorify(), ("b",)), (ops.Categorify(encode_type="combo"), ("a", "b"))):
        states = [op.partial(frame[i::2].lazy(), group).collect() for i in range(2)]
        by = list(op.slice_by(group))
        cut = pl.struct(by).hash() % 3
        merged = [op.merge([state.filter(cut == i) for state in states]) for i in range(3)]
        same(pl.concat(merged).sort(by), op.merge(states))


# all together

SETTINGS: dict[str, dict[str, Any]] = {
    "threshold": {"freq_threshold": 2},
    "size": {"max_size": 12},
    "buckets": {"num_buckets": 4},
    "combo": {"encode_type": "combo"},
    "vocabs": {"vocabs": {"word": ["b", "a", "zz"], "tags": ["e", "a"]}},
    "one table": {"single_table": True},
    "wide": {"dtype": "int64"},
}


def random_rows(seed: int) -> pl.DataFrame:
    """30 rows of words, numbers, floats and lists, some of them null."""
    rng = np.random.default_rng(seed)

    def some(values: list[Any]) -> list[Any]:
        return [None if rng.random() < 0.15 else x for x in values]

    letters = list("abcdefgh")
    return pl.DataFrame(
        {
            "word": some([letters[i] for i in rng.integers(0, 8, 30)]),
            "number": some(rng.integers(-3, 6, 30).tolist()),
            "rate": some([float("nan") if x == 0 else float(x) for x in rng.integers(0, 5, 30)]),
            "tags": some([some([letters[i] for i in rng.integers(0, 8, n)]) for n in rng.integers(0, 4, 30)]),
        },
        schema={"word": pl.String, "number": pl.Int64, "rate": pl.Float64, "tags": pl.List(pl.String)},
    )


@pytest.mark.parametrize("pair", list(combinations(SETTINGS, 2)), ids=" and ".join)
def test_every_pair_of_settings_gives_codes_that_fit_their_table_and_go_back(pair: tuple[str, str]) -> None:
    chosen = {key: value for name in pair for key, value in SETTINGS[name].items()}
    if chosen.get("encode_type") == "combo" and "vocabs" in chosen:
        with pytest.raises(ConfigError, match="combinations are learned"):
            ops.Categorify(**chosen)
        return
    group = "vocabs" not in chosen
    columns: list[Any] = [["word", "number"] if "encode_type" in chosen else "word", "rate", "tags"]
    train, new = random_rows(1), random_rows(2)
    fitted = fit((columns if group else ["word", "rate", "tags"]) >> ops.Categorify(**chosen), train)
    for frame in (train, new):
        made = fitted.transform(frame)
        assert fitted.online()(frame.to_dicts()) == made.to_dicts()
        back = fitted.inverse(made)
        for column in fitted.schema:
            codes, values = made[column.name], back[column.name]
            source = frame["word"] if column.name == "word" else None
            given = pl.Series(frame.select(pl.struct("word", "number"))) if column.name == "word_number" else source
            given = frame[column.name] if given is None else given
            if column.is_list:
                given = frame.select(pl.when(pl.col("tags").is_null()).then([None]).otherwise("tags")).to_series()
                codes, values, given = (x.explode(empty_as_null=False) for x in (codes, values, given))
            assert column.cardinality is not None and column.oov is not None
            assert codes.is_between(1, column.cardinality - 1).all()
            for code, value, was in zip(codes, values, given, strict=True):
                gone = was is None or was != was or (isinstance(was, dict) and set(was.values()) == {None})
                assert (code == 1) == gone
                assert value == (was if code >= 2 + column.oov else None)


def test_a_vocabulary_too_large_for_int32_codes_says_so() -> None:
    op = ops.Categorify(dtype="int32")
    with pytest.raises(SchemaError, match='dtype="int32" cannot hold the 2147483648 codes of `x`'):
        op._code_type("x", 2**31)
    assert ops.Categorify()._code_type("x", 2**31) == pl.Int64
    assert ops.Categorify()._code_type("x", 2**31 - 1) == pl.Int32
