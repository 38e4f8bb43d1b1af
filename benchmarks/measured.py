"""What several benchmarks need: peaks of this machine and process, ways in processes of their own, figures as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Figures = dict[str, list[float]]
"""What every run gave, by name."""


def peak_mb() -> float:
    """The most memory that this process had so far."""
    if Path("/proc/self/status").exists():
        line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def fastest(act: Callable[[], object], times: int = 5) -> float:
    """Seconds of the fastest of some calls."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        act()
        found.append(time.perf_counter() - start)
    return min(found)


def machine_peaks(dtype: str) -> dict[str, float]:
    """FLOP/s of a large matrix product, and bytes/s read and written by a copy, with torch's number of threads."""
    import torch

    x = torch.randn(4096, 4096).to(getattr(torch, dtype))
    source, target = (torch.zeros(64 << 20, dtype=torch.uint8) for _ in range(2))
    return {
        "flops": 2 * 4096**3 / fastest(lambda: x @ x, 3),
        "bytes": 2 * (64 << 20) / fastest(lambda: target.copy_(source)),
    }


def child(arguments: Sequence[str | Path], *, threads: int) -> dict[str, Any]:
    """What Python, called with some arguments and so many threads, says on its last line."""
    command = [sys.executable, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def middle(figures: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of every figure."""
    return {key: statistics.median(values) for key, values in figures.items()}


def as_json(work: str, figures: Mapping[str, Sequence[float]]) -> str:
    """The last line of a benchmark."""
    import torch

    summed = {
        key: {
            "median": round(statistics.median(values), 5),
            "low": round(min(values), 5),
            "high": round(max(values), 5),
            "runs": len(values),
        }
        for key, values in figures.items()
    }
    machine = {"cores": os.cpu_count(), "processor": platform.machine(), "system": platform.system()}
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return json.dumps({"work": work, "machine": machine, "versions": versions, "figures": summed})
