"""A process's memory moves into large pages as it is, where Linux has them; elsewhere nothing happens."""

from __future__ import annotations

import mmap
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from falconet.serve.large_pages import use_large_pages
from falconet.serve.recommender import Recommender
from falconet.serve.serving import Serving
from serving_world import World

SIZE = 2**24


def in_large_pages() -> int:
    """Bytes of this process."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("AnonHugePages"))


def mapped(size: int) -> mmap.mmap:
    """Memory of this process alone, of which no page is used yet."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has them")
def test_what_is_in_memory_stays_as_it_is_and_lies_in_large_pages() -> None:
    if not use_large_pages():
        pytest.skip("this system has none, or is told not to use them")
    kept = np.random.default_rng(0).bytes(SIZE)
    with mapped(SIZE) as memory:
        memory.write(kept)
        before = in_large_pages()
        assert use_large_pages() >= SIZE // 2
        assert in_large_pages() - before >= SIZE // 2
        assert memory[:] == kept


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has them")
def test_memory_that_is_hardly_used_stays_in_small_pages() -> None:
    if not use_large_pages():
        pytest.skip("this system has none, or is told not to use them")
    with mapped(4 * SIZE) as memory:
        for place in range(0, 4 * SIZE, SIZE // 8):
            memory[place] = 1
        before = in_large_pages()
        use_large_pages()
        assert in_large_pages() - before < SIZE


@pytest.mark.parametrize("setting", ["always madvise [never]\n", None])
def test_where_the_system_does_not_want_them_or_has_none_nothing_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str | None
) -> None:
    monkeypatch.setattr("falconet.memory._LARGE_ALLOWED", tmp_path / "enabled")
    if setting is not None:
        (tmp_path / "enabled").write_text(setting)
    assert use_large_pages() == 0


def test_another_bundle_is_told_of_once_it_answers(world: World) -> None:
    told: list[float] = []
    serving = Serving(Recommender.load(world.bundle), loaded=lambda: told.append(time.time()))
    assert not told
    serving.reload()
    assert len(told) == 1
    assert told[0] >= serving.since
