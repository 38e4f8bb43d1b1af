"""The multi-GPU example runs alone and in two processes, and comes to the same numbers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from train.workers import write_rows

ROOT = Path(__file__).parent.parent.parent
SCRIPT = "examples/movielens_multi_gpu.py"


def run(*command: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(output: str) -> list[float]:
    return [float(x) for x in re.findall(r"loss: (\d\.\d+)", output)]


@pytest.mark.timeout(240)
def test_two_processes_print_what_one_prints(tmp_path: Path) -> None:
    write_rows(tmp_path / "features/train", (1500, 1500))
    write_rows(tmp_path / "features/valid", (500,))
    arguments = ("--dir_in", str(tmp_path), "--batch_size", "500", "--epochs", "2", "--precision", "float32")
    alone = run(SCRIPT, *arguments)
    together = run("-m", "falconet", "launch", "-np", "2", SCRIPT, *arguments)
    assert alone.count("Training complete") == together.count("Training complete") == 1
    assert len(losses(alone)) == 4
    assert losses(together) == pytest.approx(losses(alone), abs=1e-3)
    assert "rows: 6000 - epochs: 2 - rows per second: " in alone
    assert "rows: 6000 - epochs: 2 - rows per second: " in together


def test_launch_passes_arguments_and_a_failure_on(tmp_path: Path) -> None:
    script = tmp_path / "say.py"
    script.write_text("import os, sys\nprint(os.environ['WORLD_SIZE'], sys.argv[1:], flush=True)\nsys.exit(3)\n")
    done = subprocess.run(
        [sys.executable, "-m", "falconet", "launch", "-np", "1", str(script), "-x", "--y=1"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "1 ['-x', '--y=1']\n")


def test_launch_names_a_script_that_is_not_there() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "falconet", "launch", "-np", "2", "nowhere.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        1,
        "error: no script `nowhere.py`\n\nhint: falconet launch -np 2 SCRIPT.py [its arguments]\n",
    )
