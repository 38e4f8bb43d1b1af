"""DropLowCardinality: what the data says too little about is left out of the fitted workflow."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import falconet as fl
from falconet import ops
from falconet.errors import ConfigError, DataError
from falconet.testing.contracts import OpContract, same

FRAME = pl.DataFrame({"few": ["a", "b", None, "a"], "many": [1, 2, 3, 4], "price": [1.0, 2.0, 2.0, None]})


class TestDropLowCardinality(OpContract):
    op = ops.DropLowCardinality(min_cardinality=3)
    frame = FRAME


def test_columns_with_few_values_and_what_is_made_of_them_are_left_out(tmp_path: Path) -> None:
    coded = ["few", "many"] >> ops.Categorify() >> ops.DropLowCardinality(min_cardinality=3)
    node = (coded >> ops.Rename(postfix="_code")) + ["price"]
    fitted = fl.Workflow(node).fit(fl.Dataset(FRAME))
    assert fitted.schema.names == ("many_code", "price")
    assert fitted.input_columns == ("many", "price")
    got = fitted.transform(FRAME.drop("few"))
    assert got.to_dict(as_series=False) == {"many_code": [3, 4, 5, 6], "price": [1.0, 2.0, 2.0, None]}
    same(fl.Workflow.load(fitted.save(tmp_path / "w")).transform(FRAME), got)


def test_reserved_codes_are_no_values() -> None:
    node = ["few", "many"] >> ops.Categorify(num_buckets=50) >> ops.DropLowCardinality(min_cardinality=3)
    assert fl.Workflow(node).fit(fl.Dataset(FRAME)).schema.names == ("many",)
    kept = ["few", "many"] >> ops.Categorify() >> ops.DropLowCardinality(min_cardinality=2)
    assert fl.Workflow(kept).fit(fl.Dataset(FRAME)).schema.names == ("few", "many")


def test_a_column_that_goes_both_ways_stays_where_it_is_not_dropped() -> None:
    coded = ["few", "many"] >> ops.Categorify()
    dropped = coded >> ops.DropLowCardinality() >> ops.Rename(postfix="_kept")
    assert fl.Workflow(coded + dropped).fit(fl.Dataset(FRAME)).schema.names == ("few", "many", "many_kept")


def test_columns_that_are_not_categorical_stay() -> None:
    fitted = fl.Workflow(["price"] >> ops.DropLowCardinality(min_cardinality=100)).fit(fl.Dataset(FRAME))
    assert fitted.transform(FRAME).equals(FRAME.select("price"))


def test_a_workflow_of_which_nothing_is_left_says_so() -> None:
    node = ["few"] >> ops.Categorify() >> ops.DropLowCardinality()
    with pytest.raises(DataError, match="no output is left"):
        fl.Workflow(node).fit(fl.Dataset(FRAME))
    with pytest.raises(ConfigError, match="min_cardinality=True"):
        ops.DropLowCardinality(min_cardinality=True)
