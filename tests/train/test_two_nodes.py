"""Two nodes that are two network namespaces, over a link of 1 Gbit/s: benchmarks/two_nodes.py, shortened."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conftest import need
from falconet.train.precision import bfloat16_is_fast

ROOT = Path(__file__).parent.parent.parent


def why_not() -> str:
    """Why network namespaces cannot be made here; nothing where they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs Linux and root"
    if not shutil.which("ip") or not shutil.which("tc"):
        return "apt-get install iproute2"
    name = f"falconet-asks-{os.getpid()}"
    for words in (("ip", "netns", "add", name), ("ip", "-n", name, "link", "add", "wire0", "type", "veth"),
                  ("tc", "-n", name, "qdisc", "add", "dev", "wire0", "root", "tbf", "rate", "1gbit", "burst", "256kb",
                   "latency", "50ms"), ("ip", "netns", "del", name)):  # fmt: skip
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            subprocess.run(("ip", "netns", "del", name), capture_output=True, check=False)
            return f"{' '.join(words)}: {done.stderr.strip()}"
    return ""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_touched_rows_cross_a_slow_link_faster_and_a_killed_node_is_named() -> None:
    reason = why_not()
    need("netns", not reason, reason)
    done = subprocess.run(
        [sys.executable, "benchmarks/two_nodes.py", "--quick", "--json"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, timeout=580, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "node 1 killed: node 0 said `error: node 1 of 2 is gone: its launcher has been silent for 5 s`"
    assert "both went on at step" in lines[1]
    figures = {name: found["median"] for name, found in json.loads(lines[-1])["figures"].items()}
    assert figures["link_gbit"] < 1.05
    # 8,192 rows of two tables with their ids, and the dense layers; all rows of both tables. Where the layers multiply
    # in bfloat16, gradients of rows have no more digits than that.
    wide = 2 if bfloat16_is_fast(torch.device("cpu")) else 4
    assert figures["ours_mb"] == pytest.approx(8192 * 2 * (64 * wide + 4) / 1e6, rel=0.1)
    assert figures["dense_mb"] == pytest.approx((162_542 + 59_048) * 64 * 4 / 1e6, rel=0.05)
    assert figures["ratio"] > 1.5  # how much more depends on what else the cores do
