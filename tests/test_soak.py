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
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["kill_run.py"], "equal byte for byte"),
        (["kill_dask.py", "--seed", "1"], "equal byte for byte, no worker and no half output left"),
        (["kill_train.py", "--seed", "1"], "weights and figures equal byte for byte"),
        pytest.param(
            ["kill_serve.py", "--seed", "1"],
            "no event lost or twice, nothing liked shown again, no error",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="no /proc"),
        ),
        pytest.param(
            ["flat.py"],
            "flat over 24 of 30 epochs",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="no /proc"),
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_long_check_shortened(command: list[str], said: str) -> None:
    name, *flags = command
    done = subprocess.run(
        [sys.executable, f"soak/{name}", "--quick", *flags],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert said in done.stdout
