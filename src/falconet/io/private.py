"""Folders for what one process alone needs. They go when it ends; if it was killed, another one takes them away."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import uuid
from pathlib import Path

from falconet.io.lock import take

_PREFIX = "falconet-private-"
_LOCK = "lock"
_root: tuple[int, Path, int] | None = None


def private_folder() -> Path:
    """A new folder of this process outside the working directory (TMPDIR says where), removed when the process ends.

    Not sooner: a lazy frame or a part may outlive the data set it came from.
    """
    global _root
    pid = os.getpid()
    if _root is None or _root[0] != pid:
        _sweep(Path(tempfile.gettempdir()))
        _root = pid, *_new_root()
        atexit.register(_remove, *_root)
    folder = _root[1] / uuid.uuid4().hex
    folder.mkdir()
    return folder


def _new_root() -> tuple[Path, int]:
    """A folder and its open lock. Only a lock that was taken has a byte in it."""
    root = Path(tempfile.mkdtemp(prefix=_PREFIX))
    handle = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT)
    if take(handle):
        os.write(handle, b"\n")
    return root, handle


def _sweep(folder: Path) -> None:
    """Remove the folders of processes that were killed."""
    for root in folder.glob(f"{_PREFIX}*"):
        try:
            handle = os.open(root / _LOCK, os.O_RDWR)
        except OSError:  # another user's, or just being made or removed
            continue
        try:
            is_left = os.fstat(handle).st_size > 0 and take(handle)
        finally:
            os.close(handle)
        if is_left:
            shutil.rmtree(root, ignore_errors=True)


def _remove(pid: int, root: Path, handle: int) -> None:
    if pid == os.getpid():  # not in a fork
        os.close(handle)
        shutil.rmtree(root, ignore_errors=True)
