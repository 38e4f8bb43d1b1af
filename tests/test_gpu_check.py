"""scripts/gpu_check.py runs on a bare machine: on its CPU, with a little data, and without what only the ETL needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ABSENT = ("polars", "dask", "distributed", "pydantic", "typer", "fastapi", "uvicorn")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_bare_machine_is_checked(tmp_path: Path) -> None:
    for name in ABSENT:
        (tmp_path / f"{name}.py").write_text("raise ModuleNotFoundError(f'{__name__} is not here')\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    done = subprocess.run(
        [
            sys.executable,
            "scripts/gpu_check.py",
            "--device",
            "cpu",
            "--rows",
            "24000",
            "--epoch-rows",
            "20000",
            "--json",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    lines = {line["work"]: line for line in json.loads(done.stdout or "[]")}
    assert done.returncode == 0, [line for line in lines.values() if line["fine"] is False] or done.stderr
    assert {name for name, line in lines.items() if line["fine"]} == {
        "loader, memory", "loader, stream", "loader, device", "it learns",
        "training, float32", "training, auto", "training, bfloat16", "training, float16", "tables in bfloat16",
        "in four parts a step", "tables replicated", "tables host", "tables replicated on two processes",
        "tables table on two processes", "tables row on two processes", "cut off after step 13, taken up",
    }  # fmt: skip
    assert lines["the seed's epoch"]["figure"].startswith("20,000 rows in ")
