"""Operators that only say what columns are."""

from __future__ import annotations

import polars as pl
import pytest

import falconet as fl
from falconet import ops
from falconet.errors import ConfigError
from falconet.schema import Column, Schema
from falconet.testing.contracts import OpContract

FRAME = pl.DataFrame({"x": [1, None, 3], "y": [["a"], [], None]})


class TestAddTags(OpContract):
    op = ops.AddTags(["user", "id"])
    frame = FRAME


class TestAddProperties(OpContract):
    op = ops.AddProperties({"min": 0, "max": 9, "dim": 8})
    frame = FRAME


class TestAddMetadata(OpContract):
    op = ops.AddMetadata(tags="item", properties={"domain": "movie"})
    frame = FRAME


class TestTagAsUserID(OpContract):
    op = ops.TagAsUserID()
    frame = FRAME


class TestTagAsItemID(OpContract):
    op = ops.TagAsItemID()
    frame = FRAME


class TestTagAsUserFeatures(OpContract):
    op = ops.TagAsUserFeatures()
    frame = FRAME


class TestTagAsItemFeatures(OpContract):
    op = ops.TagAsItemFeatures()
    frame = FRAME


def schema(node: object, frame: pl.DataFrame) -> Schema:
    return fl.Workflow(node).fit(fl.Dataset(frame)).schema


@pytest.mark.parametrize(
    ("op", "tags"),
    [
        (ops.TagAsUserID(), {"user", "id"}),
        (ops.TagAsItemID(), {"item", "id"}),
        (ops.TagAsUserFeatures(), {"user"}),
        (ops.TagAsItemFeatures(), {"item"}),
        (ops.AddTags(["context", "own"]), {"context", "own"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_tags_are_added_to_those_there_are(op: ops.Op, tags: set[str]) -> None:
    assert schema(["x"] >> ops.AddTags("first") >> op, FRAME)["x"].tags == {"first"} | tags


def test_a_target_is_no_continuous_feature() -> None:
    frame = pl.DataFrame({"rating": [1.0, 5.0], "age": [3.0, 4.0]})
    label = ["rating"] >> ops.LambdaOp(lambda col: (col > 3).cast(pl.Float32)) >> ops.AddTags(["target", "binary"])
    found = schema([label, "age"], frame)
    assert found["rating"].tags == {"target", "binary"}
    assert found["age"].tags == {"continuous"}


def test_codes_that_come_with_the_data_get_a_table() -> None:
    said = ops.AddMetadata(tags=["categorical"], properties={"cardinality": 10, "domain": "movie", "dim": 16})
    found = schema(["x"] >> said, FRAME)
    assert fl.get_embedding_sizes(found) == {"x": (10, 16)}
    assert found["x"].table == "movie"


def test_limits_are_those_of_the_values() -> None:
    column = ops.AddProperties({"min": 0.5, "max": 5}).describe(Column(name="x", dtype="float64"))
    assert (column.min, column.max) == (0.5, 5)


def test_a_property_the_schema_has_no_place_for_suggests_the_close_name() -> None:
    with pytest.raises(ConfigError, match=r"(?s)no property `domian`.*did you mean `domain`"):
        ops.AddProperties({"domian": "movie"})


@pytest.mark.parametrize(
    ("properties", "need"), [({"dim": 1.5}, "a whole number"), ({"min": "0"}, "a number"), ({"domain": 3}, "a name")]
)
def test_a_property_of_another_type_is_refused(properties: dict[str, object], need: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)AddMetadata: .* cannot be .*{need}"):
        ops.AddMetadata(properties=properties)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ops.AddTags([]), "AddTags has no tags"),
        (lambda: ops.AddProperties({}), "AddProperties has no properties"),
        (lambda: ops.AddMetadata(), "AddMetadata says nothing"),
    ],
    ids=["tags", "properties", "both"],
)
def test_saying_nothing_is_refused(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]


def test_expressions_get_a_column_not_only_a_name() -> None:
    assert ops.AddTags("item").describe(Column(name="x", dtype="int64")).tags == {"item"}


def test_arrays_of_categories_are_arrays_of_strings() -> None:
    kind = pl.Series([["a", "b"], None], dtype=pl.Array(pl.String, 2)).cast(pl.Array(pl.Categorical, 2))
    frame = pl.DataFrame({"x": kind})
    got = fl.Workflow(["x"] >> ops.AddTags("user")).fit(fl.Dataset(frame)).transform(frame)
    assert got.dtypes == [pl.Array(pl.String, 2)]
