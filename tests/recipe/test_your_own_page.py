"""docs/your-own.md: its program makes a bundle that answers, and every argument of `build_bundle` is explained."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import falconet as fl

PAGE = (Path(__file__).parent.parent.parent / "docs/your-own.md").read_text(encoding="utf-8")


def test_the_program_prints_what_the_page_shows(tmp_path: Path) -> None:
    blocks, shown = re.findall(r"```python\n(.*?)```", PAGE, re.S), re.findall(r"```console\n(.*?)```", PAGE, re.S)
    command = [sys.executable, "-W", "error", "-c", "\n".join(blocks)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(shown)
    answer = fl.Recommender.load(tmp_path / "bundle", threads=None).recommend(11, k=4)
    assert all(item.reason for item in answer.items)


def test_every_argument_is_explained() -> None:
    rows = re.findall(r"^\| (`.+?`) \| ", PAGE, re.M)
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)} | {"overwrite", "weights"}
    assert told == set(inspect.signature(fl.build_bundle).parameters)
    assert "`overwrite=True`" in PAGE
    assert "`weights`" in PAGE
