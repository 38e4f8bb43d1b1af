"""The long checks of soak/, once each and shortened."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.name == "nt", reason="Windows has no process groups to kill")
def test_a_run_killed_in_every_step_ends_with_the_same_report() -> None:
    done = subprocess.run(
        [sys.executable, "soak/kill_run.py", "--quick"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal byte for byte" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_a_fit_and_a_write_whose_workers_are_killed_give_the_same_bytes() -> None:
    done = subprocess.run(
        [sys.executable, "soak/kill_dask.py", "--quick", "--seed", "1"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal byte for byte, no worker and no half output left" in done.stdout
