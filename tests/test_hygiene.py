"""Nothing in the package loads pickles, and every tracked file is one a stranger may see."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(ROOT / "src").as_posix())
def test_no_module_loads_code_from_files(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"^\s*(import|from) (pickle|cloudpickle|dill|marshal|shelve)\b", text, re.M)
    for call in re.findall(r"torch\.load\((?:[^()]|\([^()]*\))*\)", text):
        assert "weights_only=True" in call
