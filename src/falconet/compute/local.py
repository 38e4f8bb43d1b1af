"""The executor of one machine: one part at a time, every core by Polars itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from falconet.compute.executor import Part, tree_merge

R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class LocalExecutor:
    """Threads of this process. One worker is enough: Polars uses all cores for each part."""

    workers: int = 1

    def map(self, fn: Callable[[Part], R], parts: Sequence[Part]) -> list[R]:
        if self.workers == 1:
            return [fn(part) for part in parts]
        with ThreadPoolExecutor(self.workers) as pool:
            return list(pool.map(fn, parts))

    def map_reduce(self, fn: Callable[[Part], R], parts: Sequence[Part], merge: Callable[[Sequence[R]], R]) -> R:
        return tree_merge(self.map(fn, parts), merge)
