"""Which of Polars' engines computes a plan. An executor says which for what it runs; all else calls `collect`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_args

import polars as pl

from falconet.errors import ConfigError, suggest
from falconet.progress import note

T = TypeVar("T")
R = TypeVar("R")
Engine: TypeAlias = Literal["auto", "in-memory", "streaming", "gpu"]
"""Polars' engines by their names: its own choice, all in memory, in pieces that bound memory, on an NVIDIA GPU."""
_engine: ContextVar[Engine] = ContextVar("engine", default="auto")
_said: set[str] = set()  # why plans went back to the CPU: each reason is said once in a process


def collect(frame: pl.LazyFrame) -> pl.DataFrame:
    """The rows of a lazy frame, computed by the engine of the executor that runs this (Polars' choice outside of one).

    A plan that the GPU cannot run runs on the CPU, with one note for each reason. Raises ConfigError where the GPU was
    asked for and `cudf_polars` is not installed.
    """
    return _compute(lambda engine: frame.collect(engine=engine))


def collect_all(frames: Sequence[pl.LazyFrame]) -> list[pl.DataFrame]:
    """`collect` for several frames, which share what they have in common."""
    return _compute(lambda engine: pl.collect_all(frames, engine=engine))


def check_engine(engine: str) -> None:
    """Raise ConfigError for an engine that there is not."""
    if engine not in get_args(Engine):
        raise ConfigError(f"there is no engine `{engine}`", hint=suggest(str(engine), get_args(Engine)))


def require_gpu() -> None:
    """Raise ConfigError where Polars has no GPU engine."""
    if find_spec("cudf_polars") is None:
        raise ConfigError(
            'engine="gpu" needs `cudf_polars`, which is not installed here',
            hint='pip install "polars[gpu]" (Linux, an NVIDIA GPU), or leave `engine` out',
        )


@contextmanager
def using(engine: Engine) -> Iterator[None]:
    """The engine of every `collect` inside the block, in this thread."""
    token = _engine.set(engine)
    try:
        yield
    finally:
        _engine.reset(token)


@dataclass(frozen=True)
class On(Generic[T, R]):
    """A function that runs with an engine, wherever it travels."""

    engine: Engine
    fn: Callable[[T], R]

    def __call__(self, value: T) -> R:
        with using(self.engine):
            return self.fn(value)


def _compute(run: Callable[[Any], R]) -> R:
    engine = _engine.get()
    if engine != "gpu":
        return run(engine)
    require_gpu()
    try:
        return run(pl.GPUEngine(raise_on_fail=True))
    except (pl.exceptions.PolarsError, NotImplementedError) as error:
        # What is wrong with the data itself raises again on the CPU, and there with the words of the CPU.
        made = run("auto")
        reason = str(error).strip().partition("\n")[0]
        if reason not in _said:
            _said.add(reason)
            note(f"a plan ran on the CPU, because the GPU engine of Polars cannot: {reason}")
        return made
