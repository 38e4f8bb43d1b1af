"""A saved position in an epoch: what must be the same where it is taken up."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from falconet.errors import ConfigError, DataError
from falconet.io.footer import RowGroup

FORMAT = 1
MOVES = ("epoch", "step")


def check_same(saved: Mapping[str, Any], ours: Mapping[str, Any], path: Path) -> None:
    """Raises ConfigError where a setting would change the order of rows, DataError for other data than `path` has."""
    for name in sorted(ours.keys() | saved.keys()):
        if name not in saved or name not in ours:
            raise ConfigError(f"the saved position {'has an unknown' if name in saved else 'lacks the'} key `{name}`")
        if name in MOVES or saved[name] == ours[name]:
            continue
        if name == "data":
            raise DataError(
                f"the saved position (data) belongs to other files than those of `{path}`",
                hint="names, row counts or sizes differ; start anew, or load the files it was saved with",
            )
        raise ConfigError(
            f"the saved position has {name} = {saved[name]!r}, this loader has {ours[name]!r}",
            hint=f"use {name} = {saved[name]!r}, or start anew",
        )


def fingerprint(groups: Sequence[RowGroup]) -> str:
    """SHA-256 of the name, rows and bytes of every row group; the folder may move."""
    lines = [f"{Path(group.path).name} {group.rows} {group.bytes}" for group in groups]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
