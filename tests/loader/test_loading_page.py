"""docs/loading.md: its program runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from falconet.schema import FOOTER_KEY, Column, Schema

PAGE = (Path(__file__).parents[2] / "docs/loading.md").read_text(encoding="utf-8")
SCHEMA = Schema(
    (
        Column(name="user", dtype="int32", tags={"user", "categorical"}, cardinality=40),
        Column(name="item", dtype="int32", tags={"item", "categorical"}, cardinality=60),
        Column(name="genres", dtype="int32", list="ragged", tags={"item", "categorical"}, cardinality=9),
        Column(name="price", dtype="float32", tags={"continuous"}),
        Column(name="liked", dtype="int8", tags={"target", "binary"}),
    )
)


def test_the_program_runs(tmp_path: Path) -> None:
    rows = range(200)
    table = pa.table(
        {
            "user": pa.array([2 + i % 38 for i in rows], pa.int32()),
            "item": pa.array([2 + i % 58 for i in rows], pa.int32()),
            "genres": pa.array([[2 + i % 7] * (i % 6) for i in rows], pa.list_(pa.int32())),
            "price": pa.array([i / 4 for i in rows], pa.float32()),
            "liked": pa.array([i % 2 for i in rows], pa.int8()),
        }
    )
    (tmp_path / "features/train").mkdir(parents=True)
    table = table.replace_schema_metadata({FOOTER_KEY: SCHEMA.to_json()})
    pq.write_table(table, tmp_path / "features/train/part.parquet", row_group_size=50)
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.S))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "13 steps of 16 rows; ('user', 'item', 'genres', 'price', 'liked')\n"
    assert "200 rows" in done.stderr
    assert "kept in memory" in done.stderr
