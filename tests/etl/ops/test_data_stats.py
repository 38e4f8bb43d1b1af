"""DataStats."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import falconet as fl
from falconet import ops
from falconet.etl.ops.data_stats import ColumnStats
from falconet.testing.contracts import StatOpContract, same

FRAME = pl.DataFrame(
    {
        "price": [1.0, None, float("nan"), 7.5, -0.0, 1e300],
        "size": pl.Series([100, 100, None, 100, 100, -128], dtype=pl.Int8),
        "name": ["é", "", None, "abc", "abc", "b"],
        "is_new": [True, None, True, True, True, True],
        "day": [dt.date(2024, 1, day) for day in (3, 1, 4, 1, 5, 9)],
        "lists": [[1, None], [], None, [4], [5, 5, 6], [None]],
        "words": [["a"], ["bb", None], [], None, ["a"], []],
        "fixed": pl.Series(
            [[1.0, 2.0], [3.0, 4.0], None, [0.0, 0.0], [1.0, 1.0], [2.0, 2.0]], dtype=pl.Array(pl.Float32, 2)
        ),
        "nothing": pl.Series([None] * 6, dtype=pl.Float32),
    }
)


class TestDataStats(StatOpContract):
    op = ops.DataStats()
    frame = FRAME


def learned(frame: pl.DataFrame) -> dict[str, ColumnStats]:
    return ops.DataStats.of(fl.Workflow(frame.columns >> ops.DataStats()).fit(fl.Dataset(frame)))


def test_the_columns_come_out_as_they_are() -> None:
    fitted = fl.Workflow(FRAME.columns >> ops.DataStats()).fit(fl.Dataset(FRAME))
    same(fitted.transform(FRAME), FRAME)


def test_numbers() -> None:
    found = learned(FRAME)
    assert found["size"] == ColumnStats(
        dtype="int8", row_count=6, value_count=6, present=5, min=-128, max=100, shortest=None, longest=None,
        mean=54.4, std=pytest.approx(np.std([100, 100, 100, 100, -128], ddof=1), rel=1e-15), cardinality=2,
    )  # fmt: skip
    assert found["size"].null_share == pytest.approx(1 / 6)
    price = found["price"]
    assert (price.dtype, price.min, price.max, price.mean) == ("float64", 0.0, 1e300, 2.5e299)
    assert (price.null_share, price.cardinality) == (pytest.approx(2 / 6), None)
    assert (found["is_new"].mean, found["is_new"].cardinality) == (1.0, 1)


def test_strings_by_their_lengths_and_times_without_a_mean() -> None:
    found = learned(FRAME)
    name, day = found["name"], found["day"]
    assert (name.dtype, name.min, name.max, name.mean, name.cardinality) == ("string", 0, 3, 1.6, 4)
    assert (day.min, day.max, day.mean, day.std) == (dt.date(2024, 1, 1), dt.date(2024, 1, 9), None, None)
    assert day.cardinality == 5


def test_lists_by_their_elements_and_lengths() -> None:
    found = learned(FRAME)
    lists, words, fixed = found["lists"], found["words"], found["fixed"]
    assert (lists.row_count, lists.value_count, lists.present) == (6, 7, 5)
    assert (lists.shortest, lists.longest, lists.min, lists.max, lists.mean, lists.cardinality) == (0, 3, 1, 6, 4.2, 4)
    assert (words.max, words.cardinality, words.null_share) == (2, 2, 0.25)
    assert (fixed.shortest, fixed.longest, fixed.max) == (2, 2, 4.0)


def test_nothing_is_said_of_nothing() -> None:
    nothing = learned(FRAME)["nothing"]
    assert (nothing.min, nothing.max, nothing.mean, nothing.std, nothing.null_share) == (None, None, None, None, 1.0)


def test_large_numbers_keep_their_digits() -> None:
    found = learned(pl.DataFrame({"t": [2**53 + 1, 2**53 + 3], "f": [1.6e9, 1.6e9 + 1]}))
    assert (found["t"].min, found["t"].max, found["t"].std) == (2**53 + 1, 2**53 + 3, math.sqrt(2))
    assert found["f"].std == math.sqrt(0.5)


def test_a_saved_workflow_still_says_it_and_the_last_of_several_counts(tmp_path: Path) -> None:
    frame = pl.DataFrame({"x": [1, None]})
    filled = (["x"] >> ops.DataStats()) >> ops.FillMissing(fill_val=5) >> ops.DataStats()
    fitted = fl.Workflow(filled).fit(fl.Dataset(frame))
    loaded = fl.Workflow.load(fitted.save(tmp_path / "workflow"))
    assert ops.DataStats.of(loaded) == ops.DataStats.of(fitted)
    assert ops.DataStats.of(loaded)["x"].mean == 3.0
