"""A saved position in an epoch: what must be the same where it is taken up."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from falconet.errors import ConfigError, DataError
from falconet.io.footer import RowGroup

FORMAT = 2
MOVES = ("epoch", "step")


def check_same(saved: Mapping[str, Any], ours: Mapping[str, Any], path: Path) -> None:
    """Raises ConfigError where a setting would change rows or their order, DataError for other data than at `path`."""
    if not isinstance(saved, Mapping):
        raise ConfigError(f"a saved position is no {type(saved).__name__}", hint="what `state_dict()` gave")
    if saved.get("format") != FORMAT:
        raise ConfigError(
            f"the saved position has format {saved.get('format')}, this version reads {FORMAT}", hint="start anew"
        )
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


def described(value: Any) -> Any:
    """What a transform, or a setting of one, does to rows, as plain values.

    Functions stand for themselves by name, arrays by type and shape, files by name and size: they may move.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        settings = {f.name: described(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": type(value).__qualname__, **settings}
    if isinstance(value, str | Path) and Path(value).suffix and Path(value).is_file():
        return [Path(value).name, Path(value).stat().st_size]
    if isinstance(value, Path):
        return value.name
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, range):
        return [value.start, value.stop, value.step]
    if isinstance(value, Mapping):
        return {str(name): described(x) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [described(x) for x in value]
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return [str(value.dtype), *value.shape]
    return getattr(value, "__qualname__", type(value).__qualname__)


def fingerprint(groups: Sequence[RowGroup]) -> str:
    """SHA-256 of the name, rows and bytes of every row group; the folder may move."""
    lines = [f"{Path(group.path).name} {group.rows} {group.bytes}" for group in groups]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
