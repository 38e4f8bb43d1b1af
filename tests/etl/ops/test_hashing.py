"""HashBucket and HashedCross: equal values, equal bucket, on every row, part, process and platform."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from typing import Any

import polars as pl
import pytest

import falconet as fl
from falconet import ops
from falconet.errors import ColumnNotFoundError, ConfigError, SchemaError
from falconet.hashing import stable_hash
from falconet.testing.contracts import OpContract

FRAME = pl.DataFrame(
    {
        "name": ["a", "b", None, "", "é", "a"],
        "size": [1, -1, None, 2**62, 0, 1],
        "rate": [1.0, float("nan"), None, 0.5, -0.0, float("inf")],
        "tags": [["a", None], [], None, ["b"], ["a", "a"], ["é"]],
        "day": [dt.date(2020, 1, 1), None, dt.date(1960, 5, 5), *[dt.date(2020, 1, 2)] * 3],
    }
)


def apply(node: object, frame: pl.DataFrame) -> pl.DataFrame:
    return fl.Workflow(node).fit(fl.Dataset(frame)).transform(frame)


class TestHashBucket(OpContract):
    op = ops.HashBucket(5)
    frame = FRAME


class TestHashBucketPerColumn(OpContract):
    op = ops.HashBucket({"name": 1000, "size": 3})
    frame = FRAME.select("name", "size")


class TestHashedCross(OpContract):
    op = ops.HashedCross({("name", "size"): 10, "rate_X_day": 7})
    frame = FRAME
    columns = (["name", "size"], ["rate", "day"])


def test_a_bucket_is_the_stable_hash_and_null_has_a_code_of_its_own() -> None:
    got = apply(["name", "size", "tags"] >> ops.HashBucket(1000), FRAME)
    assert got["name"].to_list() == [1 if x is None else 2 + (stable_hash(x) or 0) % 1000 for x in FRAME["name"]]
    assert got["size"].to_list() == [1 if x is None else 2 + (stable_hash(x) or 0) % 1000 for x in FRAME["size"]]
    assert got["tags"].to_list()[:3] == [[got["name"][0], 1], [], [1]]
    assert got.dtypes == [pl.Int32, pl.Int32, pl.List(pl.Int32)]


GOLDEN = {"x": [983, 983, 747, 983], "y": [432, 859, 531, 663]}


def test_golden_buckets() -> None:
    frame = pl.DataFrame({"x": ["a", "a", "b", "a"], "y": [1, 2, 3, 4]})
    assert apply(["x", "y"] >> ops.HashBucket(1000), frame).to_dict(as_series=False) == GOLDEN


def test_equal_values_are_in_equal_buckets_whatever_their_order() -> None:
    frame = pl.DataFrame({"x": [f"v{i % 20}" for i in range(200)]})
    fitted = fl.Workflow(["x"] >> ops.HashBucket(50)).fit(fl.Dataset(frame))
    shuffled = frame.sample(fraction=1, shuffle=True, seed=3)
    both = pl.concat([shuffled.with_columns(code=fitted.transform(shuffled)["x"]) for _ in range(2)])
    assert both.group_by("x").agg(pl.col("code").n_unique())["code"].to_list() == [1] * 20


def test_the_schema_has_a_table_large_enough() -> None:
    fitted = fl.Workflow(["name", "tags"] >> ops.HashBucket(7)).fit(fl.Dataset(FRAME))
    assert [(c.cardinality, c.tags) for c in fitted.schema] == [(9, {"categorical"})] * 2
    assert fl.get_embedding_sizes(fitted) == {"name": (9, 16), "tags": (9, 16)}


PROCESS = """
import polars as pl, falconet as fl
from falconet import ops
frame = pl.DataFrame({"x": ["a", "é", None], "y": [1, 2, 3]})
node = (["x", "y"] >> ops.HashBucket(997)) + ([["x", "y"]] >> ops.HashedCross(997))
print(fl.Workflow(node).fit(fl.Dataset(frame)).transform(frame).rows())
"""


def test_another_process_has_the_same_buckets() -> None:
    frame = pl.DataFrame({"x": ["a", "é", None], "y": [1, 2, 3]})
    node = (["x", "y"] >> ops.HashBucket(997)) + ([["x", "y"]] >> ops.HashedCross(997))
    command = [sys.executable, "-W", "error", "-c", PROCESS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == str(apply(node, frame).rows()), done.stderr


def test_a_cross_keeps_the_order_of_its_columns() -> None:
    frame = pl.DataFrame({"a": ["x", "y", "x", "y", None], "b": ["y", "x", "x", "y", "x"]})
    got = apply([["a", "b"]] >> ops.HashedCross(10_000), frame)["a_X_b"].to_list()
    assert got[:4] == [
        2 + (stable_hash(pair) or 0) % 10_000 for pair in ("xy", "yx", "xx", "yy") for pair in [tuple(pair)]
    ]
    assert len(set(got)) == 5
    assert got[4] == 1


def test_a_cross_has_the_tags_that_its_columns_share() -> None:
    tagged = (["a"] >> ops.AddTags(["user", "id"])) + (["b"] >> ops.AddTags(["user"]))
    frame = pl.DataFrame({"a": [1], "b": [2]})
    crossed = fl.Workflow(tagged[[["a", "b"]]] >> ops.HashedCross(5)).fit(fl.Dataset(frame)).schema
    assert crossed["a_X_b"].tags == {"user", "categorical"}
    assert crossed["a_X_b"].cardinality == 7


@pytest.mark.parametrize("wrong", [0, -3, True, 2.5, {"a": 0}], ids=str)
@pytest.mark.parametrize("op", [ops.HashBucket, ops.HashedCross], ids=["HashBucket", "HashedCross"])
def test_a_number_of_buckets_is_at_least_one(op: Any, wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"(?s)num_buckets=.*at least 1"):
        op(wrong)


def test_names_that_are_no_columns_suggest_the_close_one() -> None:
    with pytest.raises(ColumnNotFoundError, match=r"(?s)HashBucket \(`num_buckets`\).*did you mean `name`"):
        ["name"] >> ops.HashBucket({"name": 3, "nane": 3})  # type: ignore[operator]
    with pytest.raises(ColumnNotFoundError, match=r"`num_buckets` of HashBucket has no column `size`"):
        ["name", "size"] >> ops.HashBucket({"name": 3})  # type: ignore[operator]
    with pytest.raises(ColumnNotFoundError, match=r"(?s)HashedCross.*did you mean `size`"):
        [["name", "size"]] >> ops.HashedCross({("name", "size"): 3, ("name", "sise"): 3})  # type: ignore[operator]
    with pytest.raises(ConfigError, match="has nothing to cross `name` with"):
        ["name", "size"] >> ops.HashedCross(3)  # type: ignore[operator]


def test_what_cannot_be_hashed_is_refused_before_data_is_read() -> None:
    with pytest.raises(SchemaError, match="HashedCross needs one value per row, `tags` is List"):
        apply([["name", "tags"]] >> ops.HashedCross(3), FRAME)
    with pytest.raises(SchemaError, match="have no stable hash"):
        apply(["x"] >> ops.HashBucket(3), pl.DataFrame({"x": [dt.timedelta(1)]}))
