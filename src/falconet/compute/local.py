"""The executor of one machine: threads of this process, every core by Polars itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from falconet.compute.engine import Engine, On, check_engine, require_gpu
from falconet.compute.executor import tree_merge
from falconet.errors import ConfigError
from falconet.memory import SHARE, machine_memory, parse_size

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class LocalExecutor:
    """Threads of this process. One worker is enough: Polars uses all cores for each part.

    `memory` ("8GB", a number of bytes; default: the machine's) is what a fit or a shuffle may use: where the states of
    the one, or the rows of the other, would take more than a quarter of it, they go through files, with the same
    result. `engine` is Polars' engine.
    """

    workers: int = 1
    memory: str | int | None = None
    engine: Engine = "auto"

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError(f"LocalExecutor has workers={self.workers}", hint="at least 1")
        if self.memory is not None:
            parse_size(self.memory)
        check_engine(self.engine)
        if self.engine == "gpu":
            require_gpu()

    @property
    def budget(self) -> int:
        """Bytes that the states of a fit, or the rows of a shuffle, may take."""
        return (machine_memory() if self.memory is None else parse_size(self.memory)) // SHARE

    def map(self, fn: Callable[[T], R], parts: Sequence[T], *, done: Callable[[T], None] | None = None) -> list[R]:
        run = On(self.engine, fn)
        if self.workers == 1:
            return list(_in_turn(map(run, parts), parts, done))
        with ThreadPoolExecutor(self.workers) as pool:
            futures = [pool.submit(run, part) for part in parts]
            try:
                return list(_in_turn((future.result() for future in futures), parts, done))
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def map_reduce(self, fn: Callable[[T], R], parts: Sequence[T], merge: Callable[[Sequence[R]], R]) -> R:
        return tree_merge(self.map(fn, parts), On(self.engine, merge))


def _in_turn(results: Iterable[R], parts: Sequence[T], done: Callable[[T], None] | None) -> Iterator[R]:
    for result, part in zip(results, parts, strict=True):
        if done is not None:
            done(part)
        yield result
