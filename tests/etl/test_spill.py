"""States larger than their budget go through files, and are the same, bit for bit."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from falconet.compute.executor import Executor, Part
from falconet.compute.local import LocalExecutor
from falconet.etl import spill
from falconet.etl.op import Group, Op, StatOp
from falconet.etl.spill import learn


class Counts(StatOp):
    """How often each combination of values occurs."""

    def slice_by(self, group: Group) -> tuple[str, ...]:
        return group

    def partial(self, frame: pl.LazyFrame, group: Group) -> pl.LazyFrame:
        return frame.group_by(group).agg(n=pl.len()).sort(group)

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        keys = states[0].columns[:-1]
        return pl.concat(states).group_by(keys).agg(pl.col("n").sum()).sort(keys)

    def finish(self, state: pl.DataFrame) -> Op:
        raise AssertionError("only learned here")


class Total(Counts):
    """The number of rows: nothing to cut."""

    def slice_by(self, group: Group) -> tuple[str, ...]:
        return ()

    def partial(self, frame: pl.LazyFrame, group: Group) -> pl.LazyFrame:
        return frame.select(n=pl.len())

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        return pl.concat(states).sum()


COUNTS = Counts()


def parts_of(frame: pl.DataFrame, folder: Path, size: int) -> list[Part]:
    frame.write_parquet(folder / "data.parquet")
    edges = range(0, frame.height, size)
    return [Part(str(folder / "data.parquet"), a, min(size, frame.height - a), a) for a in edges]


def counts(
    frame: pl.DataFrame, groups: Sequence[Group], folder: Path, size: int, executor: Executor
) -> list[pl.DataFrame]:
    """The counts of each group of columns, and the rows, from parts of `size` rows."""
    of: list[tuple[StatOp, Group]] = [*((COUNTS, group) for group in groups), (Total(), ())]

    def one(part: Part) -> list[pl.DataFrame]:
        return pl.collect_all([op.partial(part.scan(), group) for op, group in of])

    return learn(one, of, parts_of(frame, folder, size), executor, folder / "states")


def want(frame: pl.DataFrame, group: Group) -> pl.DataFrame:
    return frame.group_by(group).agg(n=pl.len()).sort(group)


FRAME = pl.DataFrame({"x": [i * i % 9973 for i in range(4000)], "y": [f"é{i % 1130}" for i in range(4000)]})


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """An executor whose budget holds no state of FRAME, and a check that it was so."""
    yield LocalExecutor(memory=4 * 20_000)
    assert "go through files" in capsys.readouterr().err


def test_spilled_states_are_those_of_memory(tight: LocalExecutor, tmp_path: Path) -> None:
    x, y, xy, total = counts(FRAME, [("x",), ("y",), ("x", "y")], tmp_path, 300, tight)
    assert_frame_equal(x, want(FRAME, ("x",)))
    assert_frame_equal(y, want(FRAME, ("y",)))
    assert_frame_equal(xy, want(FRAME, ("x", "y")))
    assert total.item() == 4000
    assert [path.name for path in (tmp_path / "states").iterdir()] == []


def test_states_on_dask_workers_spill(dask_executor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(dask_executor), "budget", 20_000)
    x, y, _ = counts(FRAME, [("x",), ("y",)], tmp_path, 300, dask_executor)
    assert_frame_equal(x, want(FRAME, ("x",)))
    assert_frame_equal(y, want(FRAME, ("y",)))


def test_what_fits_stays_in_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, _ = counts(FRAME, [("x",)], tmp_path, 300, LocalExecutor(memory="10MB"))
    assert_frame_equal(x, want(FRAME, ("x",)))
    assert capsys.readouterr().err == ""
    assert not (tmp_path / "states").exists()


def test_a_state_that_saturates_stays_in_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each part alone is small, and so is their whole: the budget is one of merged states."""
    frame = pl.DataFrame({"x": [i % 20 for i in range(5000)]})
    (x, _) = counts(frame, [("x",)], tmp_path, 50, LocalExecutor(memory=4 * 4000))
    assert_frame_equal(x, want(frame, ("x",)))
    assert capsys.readouterr().err == ""


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "Int64": st.none() | st.integers(-3, 3) | st.integers(-(2**62), 2**62),
    "Float64": st.none() | st.sampled_from([0.0, -0.0, 1.5, float("inf"), float("nan")]),
    "String": st.none() | st.text(max_size=15),
    "Boolean": st.none() | st.booleans(),
    "Datetime": st.none() | st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1)),
}


@pytest.mark.parametrize("kind", VALUES)
def test_any_values_with_nulls_come_back_in_order(
    kind: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "SLICES", 5)

    @settings(max_examples=10, deadline=None)
    @given(a=st.lists(VALUES[kind], min_size=30, max_size=80), b=st.lists(st.integers(0, 2), min_size=80, max_size=80))
    def check(a: list[Any], b: list[int]) -> None:
        frame = pl.DataFrame({"a": a, "b": b[: len(a)]}, schema_overrides={"a": getattr(pl, kind)})
        folder = tmp_path_factory.mktemp("spill")
        first, both, _ = counts(frame, [("a",), ("a", "b")], folder, 9, LocalExecutor(memory=40))
        assert_frame_equal(first, want(frame, ("a",)))
        assert_frame_equal(both, want(frame, ("a", "b")))

    check()


def test_a_large_result_is_a_file_seen_as_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[int] = []
    real = spill._sorted_on_disk

    def spy(slices: Any, by: Any, ranges: int, folder: Path) -> pl.DataFrame:
        ways.append(ranges)
        return real(slices, by, ranges, folder)

    monkeypatch.setattr(spill, "_sorted_on_disk", spy)
    x, _ = counts(FRAME, [("x",)], tmp_path, 300, LocalExecutor(memory=4 * 20_000))
    assert len(ways) == 1
    assert ways[0] > 4
    assert x.n_chunks() == ways[0]
    assert_frame_equal(x, want(FRAME, ("x",)))


def test_states_without_columns_to_cut_by_are_merged_as_ever(tmp_path: Path) -> None:
    (total,) = counts(FRAME, [], tmp_path, 300, LocalExecutor(memory=4))
    assert total.item() == 4000
