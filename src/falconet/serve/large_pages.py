"""A process's memory in pages of 2 MB instead of 4 KB, where Linux can: then the processor knows where they all are.

An answer reads a little of much: vectors, tables, Python's own objects. With small pages a tenth of its time goes by in
looking up where these lie.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

_SETTING = Path("/sys/kernel/mm/transparent_hugepage")
_COLLAPSE = 25  # madvise's MADV_COLLAPSE, since Linux 6.1: put a range in a large page now, with all that it holds
_SMALL = 4096  # bytes of a small page


def use_large_pages() -> int:
    """Put what this process has in memory by now in large pages, without a change to it; how many bytes that are.

    Takes about a second for a GB, in which other threads go on. Nothing is done where the system does not have such
    pages or is told not to use them (`never`), and with ranges that are not half full.
    """
    try:
        if sys.platform != "linux" or "[never]" in (_SETTING / "enabled").read_text():
            return 0
        size = int((_SETTING / "hpage_pmd_size").read_text())
        libc = ctypes.CDLL(None)
        advise, resident = libc.madvise, libc.mincore
    except (OSError, AttributeError):
        return 0
    pages = ctypes.create_string_buffer(size // _SMALL)
    moved = 0
    for start, end in _private():
        for place in range(-(-start // size) * size, end // size * size, size):
            address, length = ctypes.c_void_p(place), ctypes.c_size_t(size)
            if resident(address, length, pages) or 2 * pages.raw.count(b"\1") < len(pages):
                continue
            if not advise(address, length, _COLLAPSE):
                moved += size
    return moved


def use_large_pages_soon() -> None:
    """The same, in a thread beside what else goes on."""
    threading.Thread(target=use_large_pages, name="falconet-pages", daemon=True).start()


def _private() -> Iterator[tuple[int, int]]:
    """The ranges of addresses of memory that belongs to no file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, _, _, _, *name = line.split(maxsplit=5)
        if rights == "rw-p" and name in ([], ["[heap]"]):
            start, _, end = addresses.partition("-")
            yield int(start, 16), int(end, 16)
