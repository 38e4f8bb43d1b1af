"""The README's Python blocks run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_quickstart_runs_twice_and_on_two_processes(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    assert [name for name, _ in blocks] == ["prepare.py", "train.py"]
    for name, block in blocks:
        (tmp_path / name).write_text(block, encoding="utf-8")
    with (tmp_path / "train.py").open("a") as script:
        script.write("\nassert result.epochs == 2\n")
    for command in (["prepare.py"], ["prepare.py"], ["train.py"], ["-m", "falconet", "launch", "-np", "2", "train.py"]):
        done = subprocess.run(
            [sys.executable, "-W", "error", *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert {p.name for p in tmp_path.iterdir()} == {"prepare.py", "train.py", "features", "workflow"}


def test_links_point_to_files_that_exist() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
