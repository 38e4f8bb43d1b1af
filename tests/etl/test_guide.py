"""docs/etl.md as it stands: its programs run, and it names every operator."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import polars as pl

from falconet import ops

GUIDE = Path(__file__).parents[2] / "docs" / "etl.md"


def test_the_guide_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)
    assert len(blocks) == 2
    program = "\n".join(
        [*blocks, "print(row)", "print(table.rows())", "print(back['user'].to_list())", "print(more.rows)"]
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    row, table, back, more = done.stdout.splitlines()[-4:]
    assert row.startswith("{'user': 4, 'item': ")
    assert table == "[(4, 'ann', 3), (5, 'bob', 2), (6, 'cid', 1)]"
    assert back == "['ann', 'bob', 'ann', 'cid', 'bob', 'ann']"
    assert more == "8"
    assert pl.read_parquet(tmp_path / "features" / "*.parquet").height == 6


def test_the_guide_names_every_operator() -> None:
    named = set(re.findall(r"`(\w+)`", GUIDE.read_text()))
    assert {name for name, op in ops.OPS.items() if op.__module__.startswith("falconet.")} - named == set()
