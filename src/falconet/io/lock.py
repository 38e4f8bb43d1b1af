"""Locks on files, which the system drops when their process dies, however it dies."""

from __future__ import annotations

import os
import sys


def take(handle: int, *, without_locks: bool = False) -> bool:
    """Lock an open file until it is closed; whether that could be done, or another process has it.

    `without_locks`: the answer where the file system knows no locks, as some of a network do not.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, 0, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return without_locks
    return True
