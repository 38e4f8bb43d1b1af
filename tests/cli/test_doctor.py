"""`falconet doctor` says what a machine has, and what one would change."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from falconet.cli.doctor import _lines
from falconet.cli.main import app
from falconet.errors import DataError
from falconet.train.doctor import advice, examine

FINE: dict[str, Any] = {
    "versions": {"falconet": "0.1.0", "python": "3.12.1", "torch": "2.9.0", "cuda": "12.8", "system": "Linux"},
    "cpu": {"name": "a CPU", "cores": 4, "avx512": True, "bf16": False},
    "gpus": {"driver": True, "built_for": ["sm_80", "sm_90"], "found": [
        {"index": 0, "name": "H200", "capability": "9.0", "memory_gb": 139.8, "usable": True, "error": None}]},
    "backend": "nccl",
    "launcher": {"name": "none", "rank": 0, "world": 1},
    "host": {"name": "n1", "addresses": ["10.0.0.1"], "interfaces": ["lo", "eth0"]},
    "disk": {"folder": ".", "free_gb": 80.0, "total_gb": 100.0},
    "clock": {"utc": "2026-01-01 00:00:00", "ahead_of_disk_s": 0.1},
    "all_reduce": {"processes": 2, "megabytes": 32, "ms": 20.0, "gb_per_s": 1.6},
}  # fmt: skip


def changed(path: str, value: object) -> dict[str, Any]:
    facts = copy.deepcopy(FINE)
    *folders, last = path.split(".")
    inner: Any = facts
    for key in folders:
        inner = inner[int(key)] if key.isdigit() else inner[key]
    inner[last] = value
    return facts


def test_a_machine_that_is_fine_needs_nothing() -> None:
    assert advice(FINE, {}, 2) == []
    assert _lines({**FINE, "advice": []})[-1] == "- Nothing to change."
    assert "all-reduce  32 MB over 2 processes in 20.0 ms (1.6 GB/s)" in _lines({**FINE, "advice": []})


@pytest.mark.parametrize(
    ("facts", "env", "word"),
    [
        (
            changed("gpus.found.0.usable", False),
            {},
            r"GPU 0 (H200, capability 9.0) is not used: this torch has code",
        ),
        (changed("gpus.found", []) | {"versions": FINE["versions"] | {"cuda": None}}, {}, "install a CUDA build"),
        (
            changed("host.addresses", ["127.0.1.1"]),
            {},
            "set GLOO_SOCKET_IFNAME (and NCCL_SOCKET_IFNAME) to the network",
        ),
        (changed("host.addresses", []), {}, "n1, has no address"),
        (changed("disk.free_gb", 1.5), {}, "1.5 GB are left on the disk of `.`"),
        (changed("clock.ahead_of_disk_s", -7.0), {}, "The clock is -7.0 s ahead of the disk's"),
        (changed("launcher", {"error": "two launchers disagree"}), {}, "variables are wrong: two launchers disagree"),
        (
            changed("launcher", {"name": "SLURM", "world": 2, "address": "n1", "port": 20001, "port_free": False}),
            {},
            "Port 20001, where this job meets, is taken",
        ),
        (FINE, {"OMP_NUM_THREADS": "4"}, "OMP_NUM_THREADS=4 makes 8 threads on 4 cores"),
    ],
)
def test_what_is_wrong_is_said_once(facts: dict[str, Any], env: dict[str, str], word: str) -> None:
    found = advice(facts, env, 2)
    assert len(found) == 1
    assert word in found[0]


def test_the_command_gives_the_same_as_json_and_times_an_exchange(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", "--json", "-np", "2", "--folder", str(tmp_path)])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["all_reduce"]["processes"] == 2
    assert facts["all_reduce"]["ms"] > 0
    assert facts["launcher"] == {"name": "none", "rank": 0, "world": 1}
    assert facts.keys() == FINE.keys() | {"advice"}
    assert list(tmp_path.iterdir()) == []


def test_one_process_times_nothing_and_variables_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RANK", "3")
    facts = examine(1, tmp_path)
    assert facts["all_reduce"] is None
    assert facts["launcher"]["error"].startswith("RANK is set, but WORLD_SIZE is not")
    with pytest.raises(DataError, match="no folder"):
        examine(1, tmp_path / "nowhere")
