"""The executor of one machine: threads of this process, every core by Polars itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from falconet.compute.executor import tree_merge
from falconet.errors import ConfigError

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class LocalExecutor:
    """Threads of this process. One worker is enough: Polars uses all cores for each part."""

    workers: int = 1

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError(f"LocalExecutor has workers={self.workers}", hint="at least 1")

    def map(self, fn: Callable[[T], R], parts: Sequence[T], *, done: Callable[[T], None] | None = None) -> list[R]:
        if self.workers == 1:
            return list(_in_turn(map(fn, parts), parts, done))
        with ThreadPoolExecutor(self.workers) as pool:
            futures = [pool.submit(fn, part) for part in parts]
            try:
                return list(_in_turn((future.result() for future in futures), parts, done))
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def map_reduce(self, fn: Callable[[T], R], parts: Sequence[T], merge: Callable[[Sequence[R]], R]) -> R:
        return tree_merge(self.map(fn, parts), merge)


def _in_turn(results: Iterable[R], parts: Sequence[T], done: Callable[[T], None] | None) -> Iterator[R]:
    for result, part in zip(results, parts, strict=True):
        if done is not None:
            done(part)
        yield result
