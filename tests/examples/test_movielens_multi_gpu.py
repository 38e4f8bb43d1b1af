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
    assert done.stderr.startswith("error: process 0 of 1 failed: SystemExit: 3\n")


FAILS = """
import torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    raise ValueError("enough")
dist.barrier()
"""
STOPS = """
import os, pathlib, signal, sys, time
def stop(number, frame):
    pathlib.Path(sys.argv[1], os.environ["RANK"]).touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(60)
"""


def test_a_script_that_uses_torch_alone_fails_with_one_message_that_names_the_cause(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(FAILS)
    done = subprocess.run(
        [sys.executable, "-m", "falconet", "launch", "-np", "2", str(tmp_path / "fails.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("error: process 1 of 2 failed: ValueError: enough\n")
    assert done.stderr.count("Traceback") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
def test_sigterm_reaches_every_process_and_all_end(tmp_path: Path) -> None:
    (tmp_path / "stops.py").write_text(STOPS)
    launched = subprocess.Popen(
        [sys.executable, "-m", "falconet", "launch", "-np", "2", str(tmp_path / "stops.py"), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert launched.stdout is not None
    assert [launched.stdout.readline() for _ in "01"] == ["ready\n", "ready\n"]
    launched.terminate()
    _, messages = launched.communicate(timeout=20)  # less than the time after which processes are killed
    assert (launched.returncode, messages) == (143, "")
    assert (tmp_path / "0").exists()
    assert (tmp_path / "1").exists()


def test_launch_names_a_script_that_is_not_there() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "falconet", "launch", "-np", "2", "nowhere.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        1,
        "error: no script `nowhere.py`\n\nhint: falconet launch -np 2 SCRIPT.py [its arguments]\n",
    )
