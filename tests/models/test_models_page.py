"""docs/models.md as it stands: its blocks run, it names every model, and the model of its reader keeps the contract."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from falconet.models import MODELS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/models.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.S)
FILES = {match[1]: block for block in BLOCKS if (match := re.match(r"# (\w+\.py)\n", block))}


def run(*arguments: str, cwd: Path) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_the_blocks_run_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text("\n".join(b for b in BLOCKS if b not in FILES.values()), encoding="utf-8")
    run("page.py", cwd=tmp_path)
    assert {"items.npy", "model.pt2"} < {path.name for path in tmp_path.iterdir()}


def test_a_model_of_ones_own_keeps_the_contract(tmp_path: Path) -> None:
    assert set(FILES) == {"my_model.py", "test_my_model.py", "without_falconet.py"}  # the last: test_programs.py
    for name, block in FILES.items():
        (tmp_path / name).write_text(block, encoding="utf-8")
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", "--show-capture=no", "test_my_model.py", cwd=tmp_path)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_named(name: str) -> None:
    assert re.search(rf"\b{name}\b", PAGE)
