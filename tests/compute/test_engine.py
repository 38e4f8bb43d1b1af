"""Plans go to the engine of the executor that runs them, and a GPU that cannot says so once."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import polars as pl
import pytest

from falconet.compute import engine
from falconet.compute.dask import DaskExecutor
from falconet.compute.engine import collect, collect_all, using
from falconet.compute.local import LocalExecutor
from falconet.errors import ConfigError

FRAME = pl.LazyFrame({"x": [3, 1, 2]})


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The engines that frames were collected with; the GPU's stands in for one, and answers as the CPU does."""
    seen: list[Any] = []
    real = pl.LazyFrame.collect

    def spy(frame: pl.LazyFrame, *, engine: Any = "auto") -> pl.DataFrame:
        seen.append(engine)
        return real(frame, engine="auto" if isinstance(engine, pl.GPUEngine) else engine)

    monkeypatch.setattr(pl.LazyFrame, "collect", spy)
    return seen


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the name of the GPU engine."""
    module = ModuleType("cudf_polars")
    module.__spec__ = pytest.__spec__
    monkeypatch.setitem(sys.modules, "cudf_polars", module)
    monkeypatch.setattr(engine, "_said", set())


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", ["in-memory", "streaming", "auto"])
def test_an_executor_hands_its_engine_to_what_it_runs(engines: list[Any], name: Any, workers: int) -> None:
    executor = LocalExecutor(workers=workers, engine=name)
    found = executor.map(lambda n: collect(FRAME.filter(pl.col("x") > n)).height, [0, 1, 2])
    assert found == [3, 2, 1]
    assert engines == [name] * 3
    collect(FRAME)
    assert engines[-1] == "auto"


def test_states_are_merged_with_the_engine_too(engines: list[Any]) -> None:
    executor = LocalExecutor(engine="in-memory")
    merged = executor.map_reduce(
        lambda n: FRAME.select(pl.col("x").sum() * n), [1, 2], lambda many: collect(pl.concat(many).sum()).lazy()
    )
    assert engines == ["in-memory"]
    assert merged.collect().item() == 18


def test_dask_workers_use_the_engine(dask_executor: DaskExecutor) -> None:
    with DaskExecutor(dask_executor._open(), engine="streaming") as executor:
        assert executor.map(lambda _: engine._engine.get(), [1, 2]) == ["streaming", "streaming"]
    assert dask_executor.map(lambda _: engine._engine.get(), [1]) == ["auto"]


def test_the_gpu_gets_the_plans(engines: list[Any], gpu: None) -> None:
    assert LocalExecutor(engine="gpu").map(lambda _: collect(FRAME)["x"].to_list(), [1]) == [[3, 1, 2]]
    assert [type(used) for used in engines] == [pl.GPUEngine]
    assert engines[0].config == {"raise_on_fail": True}


def test_what_the_gpu_cannot_do_runs_on_the_cpu_and_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], gpu: None
) -> None:
    real = pl.collect_all

    def refuse(frames: Any, *, engine: Any) -> list[pl.DataFrame]:
        if isinstance(engine, pl.GPUEngine):
            raise pl.exceptions.ComputeError("'cuda' conversion failed: no such function\nand more")
        return real(frames, engine=engine)

    monkeypatch.setattr(pl, "collect_all", refuse)
    with using("gpu"):
        assert [frame["x"].to_list() for frame in collect_all([FRAME, FRAME.head(1)])] == [[3, 1, 2], [3]]
        collect_all([FRAME])
    said = (
        "a plan ran on the CPU, because the GPU engine of Polars cannot: 'cuda' conversion failed: no such function\n"
    )
    assert capsys.readouterr().err == said


def test_an_error_of_the_data_is_that_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], gpu: None
) -> None:
    real = pl.LazyFrame.collect

    def fail(frame: pl.LazyFrame, *, engine: Any) -> pl.DataFrame:
        if isinstance(engine, pl.GPUEngine):
            raise pl.exceptions.ComputeError("libcudf: overflow")
        return real(frame, engine=engine)

    monkeypatch.setattr(pl.LazyFrame, "collect", fail)
    with using("gpu"), pytest.raises(pl.exceptions.InvalidOperationError, match="conversion from `i64` to `i8` failed"):
        collect(pl.LazyFrame({"x": [300]}).select(pl.col("x").cast(pl.Int8)))
    assert capsys.readouterr().err == ""


def test_without_the_gpu_engine_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    for start in (
        lambda: LocalExecutor(engine="gpu"),
        lambda: DaskExecutor(engine="gpu"),
        lambda: engine.On("gpu", collect)(FRAME),
    ):
        with pytest.raises(ConfigError, match=r'needs `cudf_polars`[\s\S]*pip install "polars\[gpu\]"'):
            start()


def test_an_engine_that_there_is_not_is_refused() -> None:
    for start in (LocalExecutor, DaskExecutor):
        with pytest.raises(ConfigError, match=r"no engine `stream`[\s\S]*did you mean `streaming`"):
            start(engine="stream")
