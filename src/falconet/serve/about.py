"""What a bundle tells people of its making, in its folder `about`: small JSON files that nothing but the page reads.

runs.json    the trainings and what the report measured    data.json    columns, popularity, workflow
times.json   when and how fast: the only file of a bundle that its manifest does not list, as equal runs take unequal
             times and make the same bundle all the same
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from falconet.errors import ConfigError, suggest
from falconet.progress import note

FORMAT = 1  # of each file
FOLDER = "about"
TIMES = "times"
NAMES = ("runs", "data", TIMES)


@dataclass(frozen=True)
class About:
    """The files of one bundle as plain values; None for one that the bundle was built without."""

    runs: Mapping[str, Any] | None = None
    data: Mapping[str, Any] | None = None
    times: Mapping[str, Any] | None = None


def write_about(folder: Path, about: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Write the files into a bundle's folder; the names of those its manifest does not list.

    Raises ConfigError for a name that no file has, and for values that are no JSON.
    """
    if about:
        (folder / FOLDER).mkdir()
    for name, content in about.items():
        if name not in NAMES:
            raise ConfigError(f"`about` has `{name}`", hint=suggest(name, NAMES))
        try:
            text = json.dumps({"format": FORMAT, **_finite(content)}, indent=1, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"`about` of `{name}` is no JSON: {error}", hint="plain values") from error
        (folder / FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
    return [f"{FOLDER}/{TIMES}.json"] if TIMES in about else []


def read_about(folder: Path) -> About:
    """The files that are there and that this version reads. One that is damaged or of another format is left out."""
    return About(**{name: _read(folder / FOLDER / f"{name}.json") for name in NAMES})


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        content = _finite(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        note(f"`{path}` is left out: {error}")
        return None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        note(f"`{path}` is left out: it is not of format {FORMAT}")
        return None
    return content


def _finite(value: Any) -> Any:
    """Numbers that JSON does not know as null."""
    if isinstance(value, Mapping):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
