"""docs/extending.md as it stands: its files are written and its tests run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "extending.md"
SOURCE = Path(__file__).parents[2] / "src"


def test_the_guide_s_operators_pass_their_contracts(tmp_path: Path) -> None:
    files = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", GUIDE.read_text(), re.S)
    names = ["limit.py", "test_limit.py", "minmax.py", "test_minmax.py", "previous.py", "test_previous.py"]
    assert [name for name, _ in files] == names
    for name, text in files:
        (tmp_path / name).write_text(text)
    options = ["-q", "-W", "error", "-p", "no:cacheprovider", "-o", f"pythonpath={tmp_path} {SOURCE}"]
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "32 passed, 1 skipped" in done.stdout  # what a key did is no matter of one row


def test_three_lines_are_three_lines() -> None:
    (body,) = re.findall(r"class TestLimit\(OpContract\):\n(.*?)```", GUIDE.read_text(), re.S)
    assert len(body.strip().splitlines()) == 2
