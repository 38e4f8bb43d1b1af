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

from falconet.memory import large_pages

_LARGE, _SMALL = 2 << 20, 4096  # bytes of a page


def use_large_pages() -> int:
    """Put what this process has in memory by now in large pages, without a change to it; how many bytes that are.

    Takes about a second for a GB, in which other threads go on. Nothing is done where the system does not have such
    pages or is told not to use them (falconet/memory.py), and with ranges that are not half full.
    """
    return sum(large_pages(place, _LARGE) for place in _full()) if sys.platform == "linux" else 0


def use_large_pages_soon() -> None:
    """The same, in a thread beside what else goes on."""
    threading.Thread(target=use_large_pages, name="falconet-pages", daemon=True).start()


def _full() -> Iterator[int]:
    """Where a large page could be that is at least half full."""
    resident = ctypes.CDLL(None).mincore
    pages = ctypes.create_string_buffer(_LARGE // _SMALL)
    for start, end in _private():
        for place in range(-(-start // _LARGE) * _LARGE, end // _LARGE * _LARGE, _LARGE):
            gone = resident(ctypes.c_void_p(place), ctypes.c_size_t(_LARGE), pages)
            if not gone and 2 * pages.raw.count(b"\1") >= len(pages):
                yield place


def _private() -> Iterator[tuple[int, int]]:
    """The ranges of addresses of memory that belongs to no file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, _, _, _, *name = line.split(maxsplit=5)
        if rights == "rw-p" and name in ([], ["[heap]"]):
            start, _, end = addresses.partition("-")
            yield int(start, 16), int(end, 16)
