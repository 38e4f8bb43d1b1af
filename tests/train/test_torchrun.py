"""Any launcher will do: torch's own starts the same script."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

SCRIPT = """
import torch
import falconet as fl

with fl.Runtime.start() as runtime:
    total = runtime.sums(torch.tensor([runtime.rank + 1.0]))
    print(f"rank {runtime.rank} of {runtime.world}: {total.item()}", flush=True)
"""


def test_a_script_runs_under_torchrun(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "script.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"rank \d of \d: [\d.]+", done.stdout)) == ["rank 0 of 2: 3.0", "rank 1 of 2: 3.0"]
