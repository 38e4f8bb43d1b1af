"""One run at a time in a folder: a lock that the system drops when its process dies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from falconet.errors import ArtifactError
from falconet.io.lock import take


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
        if not take(handle):
            raise ArtifactError(
                f"another falconet is working in `{folder}`", hint="wait for it, or choose another --out"
            )
        yield
    finally:
        os.close(handle)
