"""scripts/gpu_check.py runs on a bare machine: on its CPU, with a little data, and without what only the ETL needs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from beside import ROOT, Ended

ABSENT = ("polars", "dask", "distributed", "pydantic", "typer", "fastapi", "uvicorn")


def checked(folder: Path) -> tuple[list[str], dict[str, str]]:
    for name in ABSENT:
        (folder / f"{name}.py").write_text("raise ModuleNotFoundError(f'{__name__} is not here')\n")
    path = os.pathsep.join([str(folder), str(ROOT / "src")])
    flags = ["--device", "cpu", "--rows", "24000", "--epoch-rows", "20000", "--json"]
    return [str(ROOT / "scripts/gpu_check.py"), *flags], {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.beside(run=checked)
def test_a_bare_machine_is_checked(ended: Ended) -> None:
    lines = {line["work"]: line for line in json.loads(ended.out or "[]")}
    assert ended.code == 0, [line for line in lines.values() if line["fine"] is False] or ended.err
    assert {name for name, line in lines.items() if line["fine"]} == {
        "loader, memory", "loader, stream", "loader, device", "it learns",
        "training, float32", "training, auto", "training, bfloat16", "training, float16", "tables in bfloat16",
        "in four parts a step", "tables replicated", "tables host", "tables replicated on two processes",
        "tables table on two processes", "tables row on two processes", "cut off after step 13, taken up",
    }  # fmt: skip
    assert lines["the seed's epoch"]["figure"].startswith("20,000 rows in ")
