"""docs/architecture.md names every file of the package, and no file that is not there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src/falconet"
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`([\w/]+(?:\.py|/))`", PAGE))
WHOLE = {"cli", "testing", "ops"}  # folders described as a whole


def test_every_file_is_named() -> None:
    names = {Path(name).name for name in NAMED}
    missing = [
        str(file.relative_to(SOURCE))
        for file in SOURCE.glob("*/**/*.py")
        if file.name != "__init__.py" and file.parent.name not in WHOLE and file.name not in names
    ]
    assert missing == []


def test_every_name_is_there() -> None:
    found = {file.name for file in SOURCE.rglob("*.py")}
    for name in NAMED:
        there = (SOURCE / name).exists() or (ROOT / name).exists() or ("/" not in name and name in found)
        assert there, name
