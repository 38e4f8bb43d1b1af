"""How much memory there is, and sizes as people write them."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import sys
import time
from pathlib import Path

from falconet.errors import ConfigError

SHARE = 4  # a quarter of the memory is for the states of a fit
UNKNOWN = 4 << 30  # bytes, where the system does not say
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h
_MADV_COLLAPSE, _LARGE = 25, 2 << 20  # of Linux; bytes of a large page
_LARGE_ALLOWED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_AT_ONCE = 32 * _LARGE
_keeps_freed = False
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def parse_size(size: str | int) -> int:
    """Bytes from "256MB", "1.5 GiB" or a number.

    >>> parse_size("256MB")
    256000000
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(size))
    value = None if found is None or found[2].upper() not in _UNITS else float(found[1]) * _UNITS[found[2].upper()]
    if value is None or value < 1:
        raise ConfigError(f"{size!r} is not a size", hint='a number of bytes, or "256MB", "1GiB", …')
    return int(value)


def as_size(size: float) -> str:
    """Bytes as people write them.

    >>> as_size(1_530_000)
    '1.5 MB'
    """
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def machine_memory() -> int:
    """The bytes of this machine, or what its container is allowed, if that is less."""
    found = [UNKNOWN]
    if hasattr(os, "sysconf"):  # not on Windows
        found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in _LIMITS:
        if Path(limit).is_file() and (text := Path(limit).read_text().strip()).isdigit():
            found.append(int(text))
    return min(found)


def keep_freed() -> None:
    """From now on this process keeps the memory that it frees, for itself, where the C library is glibc.

    glibc gives large blocks back to the system and gets fresh pages for the next ones: in a loop whose every step makes
    the same large temporaries that costs more than much of the arithmetic. Settings of the environment (MALLOC_…,
    GLIBC_TUNABLES) are left alone.
    """
    if platform.libc_ver()[0] != "glibc" or any(x.startswith(("MALLOC_", "GLIBC_TUNABLES")) for x in os.environ):
        return
    global _keeps_freed
    library = ctypes.CDLL(None)
    library.mallopt(_M_MMAP_MAX, 0)
    library.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    _keeps_freed = True


def large_pages(start: int, size: int, seconds: float = 2.0) -> int:
    """Have memory that this process uses anyway lie in pages of 2 MB, from its address on, for at most about so many
    seconds; gives how many bytes of it do so now.

    The processor knows where few pages lie: rows of a large table are each on another one. Nothing else changes, and
    no more memory is used. 0 where the system has no such pages, or was told not to make them: Linux can from 6.1 on.
    """
    if sys.platform != "linux" or not _LARGE_ALLOWED.is_file() or "[never]" in _LARGE_ALLOWED.read_text():
        return 0
    library, end = ctypes.CDLL(None), time.monotonic() + seconds
    first, last = -(-start // _LARGE) * _LARGE, (start + size) // _LARGE * _LARGE
    done = 0
    for place in range(first, last, _AT_ONCE):
        length = min(_AT_ONCE, last - place)
        refused = library.madvise(ctypes.c_void_p(place), ctypes.c_size_t(length), _MADV_COLLAPSE)
        done += 0 if refused else length
        if time.monotonic() > end:
            break
    return done


def large_heap() -> int:
    """`large_pages` of what this process has allocated one by one, where it keeps what it frees (see `keep_freed`)."""
    if not _keeps_freed:
        return 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith("[heap]"):
            start, end = (int(x, 16) for x in line.split()[0].split("-"))
            return large_pages(start, end - start)
    return 0
