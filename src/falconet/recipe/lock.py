"""One run at a time in a folder: a lock that the system drops when its process dies."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from falconet.errors import ArtifactError


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold `folder/lock`. Raises ArtifactError when another process holds it, or where it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise ArtifactError(
            f"`{folder}` cannot be worked in: {error.strerror}", hint="choose another --out, a folder you may write to"
        ) from error
    try:
        if not _take(handle):
            raise ArtifactError(
                f"another falconet is working in `{folder}`", hint="wait for it, or choose another --out"
            )
        yield
    finally:
        os.close(handle)


def _take(handle: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
