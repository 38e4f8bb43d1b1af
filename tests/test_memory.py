"""Memory that a process keeps."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

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
