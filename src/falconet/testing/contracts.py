"""The contracts of operators as tests: subclass, say which operator and on which frame, and pytest runs them.

class TestClip(OpContract):
    op = Clip(max_value=3)
    frame = pl.DataFrame({"price": [1, 5, None]})
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from falconet.etl.dataset import Dataset
from falconet.etl.op import OPS, KeyedOp, Op, StatOp
from falconet.etl.workflow import FittedWorkflow, Workflow

CUTS: list[tuple[int, ...]] = [(), (3,), (1, 2), (0,), (1, 1, 2, 3, 4, 5)]
"""Where a frame is cut; an edge that comes twice makes an empty part."""


def cut(frame: pl.DataFrame, edges: Sequence[int]) -> list[pl.DataFrame]:
    """The rows of a frame in parts."""
    ends = [0, *(min(edge, len(frame)) for edge in edges), len(frame)]
    return [frame[a:b] for a, b in pairwise(ends)]


def write_parts(frame: pl.DataFrame, edges: Sequence[int], folder: Path) -> Dataset:
    """A data set of one file per part."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, part in enumerate(cut(frame, edges)):
        part.write_parquet(folder / f"{i:03d}.parquet")
    return Dataset(folder)


def same(left: pl.DataFrame, right: pl.DataFrame) -> None:
    """Fail unless two frames are equal bit for bit: minus zero is not zero, NaN is NaN."""
    assert_frame_equal(left, right, check_exact=True)
    for name in left.columns:
        assert _signs_of_zeros(left[name]) == _signs_of_zeros(right[name]), f"the sign of a zero differs in `{name}`"


class OpContract:
    """What every operator keeps to, whatever its shape."""

    op: Op
    frame: pl.DataFrame
    columns: Sequence[Any] = ()
    """The columns the operator gets, by default all of `frame`; a nested list is a group."""

    def workflow(self) -> Workflow:
        return Workflow((list(self.columns) or list(self.frame.columns)) >> self.op)

    def fitted(self) -> FittedWorkflow:
        return self.workflow().fit(Dataset(self.frame))

    def test_operator_is_registered(self) -> None:
        assert OPS[type(self.op).__name__] is type(self.op)

    @pytest.mark.parametrize("edges", CUTS, ids=str)
    def test_parts_do_not_change_the_result(self, edges: tuple[int, ...], tmp_path: Path) -> None:
        parts = write_parts(self.frame, edges, tmp_path)
        want, got = self.fitted(), self.workflow().fit(parts)
        for key, state in want.states.items():
            same(got.states[key], state)
        same(got.transform(parts).collect(), want.transform(Dataset(self.frame)).collect())

    def test_the_schema_says_what_comes_out(self) -> None:
        fitted = self.fitted()
        made = fitted.transform(self.frame)
        assert fitted.schema.names == tuple(made.columns)
        for column in fitted.schema:
            assert column.nullable or made[column.name].null_count() == 0
            assert column.cardinality is None or _largest(made[column.name]) < column.cardinality

    def test_no_rows_have_the_right_types(self) -> None:
        fitted = self.fitted()
        assert fitted.transform(self.frame.head(0)).schema == fitted.transform(self.frame).schema

    def test_one_row_is_the_same_as_many(self) -> None:
        if isinstance(self.op, KeyedOp) or self.op.rows != "same":
            pytest.skip("whether a row stays, and what its key did, is no matter of one row")
        fitted = self.fitted()
        want = fitted.transform(self.frame).to_dicts()
        assert str(fitted.online()(self.frame.to_dicts())) == str(want)

    def test_saved_and_loaded_it_gives_the_same(self, tmp_path: Path) -> None:
        fitted = self.fitted()
        loaded = FittedWorkflow.load(fitted.save(tmp_path / "workflow"))
        same(loaded.transform(self.frame), fitted.transform(self.frame))
        assert loaded.schema == fitted.schema


class StatOpContract(OpContract):
    """What a statistical operator keeps to beside that: its states merge in any order, and are all there is to save."""

    op: StatOp

    def groups(self) -> list[tuple[str, ...]]:
        columns = list(self.columns) or list(self.frame.columns)
        return self.op.groups([(name,) if isinstance(name, str) else tuple(name) for name in columns])

    def state(self, frame: pl.DataFrame, group: tuple[str, ...]) -> pl.DataFrame:
        """The state of some rows of `frame`."""
        return self.op.partial(frame.lazy(), group).collect()

    def rows(self) -> pl.DataFrame:
        """The frame with its row numbers."""
        return self.frame.with_row_index("__row__").with_columns(pl.col("__row__").cast(pl.UInt64))

    def test_merge_order_does_not_change_the_state(self) -> None:
        for group in self.groups():
            whole = self.op.merge([self.state(self.rows(), group)])
            same(self.op.merge([whole]), whole)
            for a, b, c in permutations(self.state(self.rows()[i::3], group) for i in range(3)):
                same(self.op.merge([self.op.merge([a, b]), c]), whole)
                same(self.op.merge([a, self.op.merge([b, c])]), whole)
                same(self.op.merge([a, b, c]), whole)

    def test_no_rows_add_nothing(self) -> None:
        for group in self.groups():
            whole, nothing = self.state(self.rows(), group), self.state(self.rows().head(0), group)
            same(self.op.merge([nothing, whole]), self.op.merge([whole]))

    def test_state_survives_parquet(self, tmp_path: Path) -> None:
        for group in self.groups():
            state = self.op.merge([self.state(self.rows(), group)])
            state.write_parquet(tmp_path / "state.parquet")
            same(pl.read_parquet(tmp_path / "state.parquet"), state)


def _signs_of_zeros(column: pl.Series) -> list[bool]:
    flat = column.explode(empty_as_null=False, keep_nulls=False) if column.dtype.is_nested() else column
    return list(np.signbit(flat.filter(flat == 0).to_numpy())) if flat.dtype.is_float() else []


def _largest(codes: pl.Series) -> int:
    flat = codes.explode(empty_as_null=False, keep_nulls=False) if isinstance(codes.dtype, pl.List) else codes
    largest = flat.max()
    return largest if isinstance(largest, int) else -1
