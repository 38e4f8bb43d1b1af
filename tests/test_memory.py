"""Memory that a process keeps."""

from __future__ import annotations

import mmap
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from falconet import memory
from falconet.memory import large_pages

PROGRAM = """
import resource
from falconet.memory import keep_freed
keep_freed()
def step():
    for _ in range(20):
        memoryview(bytearray(20_000_000))[::4096] = memoryview(bytearray(4883))
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left alone")
@pytest.mark.parametrize(("variables", "few"), [({}, True), ({"MALLOC_MMAP_THRESHOLD_": "131072"}, False)])
def test_what_is_freed_needs_no_fresh_pages_unless_the_environment_says_so(
    variables: dict[str, str], few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_TUNABLES"))]:
        monkeypatch.delenv(name)  # Dask leaves one
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert (int(done.stdout) < 1000) == few  # 20 blocks of 4,883 pages


MB = 1 << 20
has_large_pages = pytest.mark.skipif(
    sys.platform != "linux"
    or tuple(map(int, platform.release().split(".")[:2])) < (6, 1)
    or not memory._LARGE_ALLOWED.is_file()
    or "[never]" in memory._LARGE_ALLOWED.read_text(),
    reason="the system makes no large pages",
)


def large() -> int:
    """Bytes of this process in large pages."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("AnonHugePages"))) << 10


@has_large_pages
def test_memory_in_large_pages_holds_what_it_held() -> None:
    held = torch.frombuffer(mmap.mmap(-1, 32 * MB, flags=mmap.MAP_PRIVATE), dtype=torch.int64)
    held.copy_(torch.arange(len(held)))
    before = large()
    done = large_pages(held.data_ptr(), held.nbytes)
    assert 28 * MB <= done <= 32 * MB
    assert large() - before >= 28 * MB
    assert torch.equal(held, torch.arange(len(held)))


@has_large_pages
def test_large_pages_take_no_more_than_their_time() -> None:
    held = torch.frombuffer(mmap.mmap(-1, 256 * MB, flags=mmap.MAP_PRIVATE), dtype=torch.int64)
    assert large_pages(held.zero_().data_ptr(), held.nbytes, seconds=0) <= 64 * MB


def test_without_large_pages_memory_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = torch.zeros(MB)
    assert large_pages(0, 4 * MB) == 0  # nothing lies there
    assert large_pages(held.data_ptr(), 0) == 0
    (tmp_path / "enabled").write_text("always madvise [never]\n")
    for allowed in (tmp_path / "enabled", tmp_path / "there is none"):
        monkeypatch.setattr(memory, "_LARGE_ALLOWED", allowed)
        assert large_pages(held.data_ptr(), held.nbytes) == 0


HEAP = """
from falconet.memory import keep_freed, large_heap
print(large_heap())
keep_freed()
held = bytearray(64 << 20)
print(large_heap())
"""


@has_large_pages
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left alone")
def test_the_heap_is_left_alone_unless_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_TUNABLES"))]:
        monkeypatch.delenv(name)
    done = subprocess.run([sys.executable, "-c", HEAP], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert before == 0
    assert after >= 60 * MB
