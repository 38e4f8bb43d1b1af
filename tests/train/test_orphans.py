"""Nothing is left of a launch, whatever ends it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from falconet.train.launch import whole_lines

ROOT = Path(__file__).parent.parent.parent
pytestmark = [pytest.mark.timeout(240), pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")]

WORKER = """
import os, sys, time
from pathlib import Path
import torch
import falconet as fl

def stay(folder):
    with fl.Runtime.start() as runtime:
        Path(folder, str(runtime.rank)).write_text(str(os.getpid()))
        if runtime.rank == 0:
            runtime.barrier()  # waits in torch's code
        time.sleep(600)

def add(folder):
    with fl.Runtime.start() as runtime:
        Path(folder, f"done{runtime.rank}").write_text(str(os.getpid()))
        return runtime.rank, runtime.sums(torch.tensor([runtime.rank + 1.0])).item()
"""
# A notebook has no file: its cells are run as this one is.
NOTEBOOK = """
import sys
import falconet as fl
import worker
print(fl.launch(worker.add, nproc=2, args=(sys.argv[1],)), flush=True)
fl.launch(worker.stay, nproc=2, args=(sys.argv[1],))
"""


def until(happened: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 100
    while not (found := happened()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody asked about does not."""
    status = Path(f"/proc/{pid}/stat")
    if Path("/proc").is_dir():
        return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_notebook_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{tmp_path}", "OMP_NUM_THREADS": "1"}
    notebook = subprocess.Popen(
        [sys.executable, "-c", NOTEBOOK, str(tmp_path)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert until(lambda: all((tmp_path / rank).exists() and (tmp_path / rank).read_text() for rank in "01"))
        pids = [int((tmp_path / name).read_text()) for name in ("0", "1", "done0", "done1")]
        assert [alive(pid) for pid in pids] == [True, True, False, False]
    finally:
        notebook.kill()
        printed, messages = notebook.communicate(timeout=60)
    assert printed == "(0, 3.0)\n"
    assert until(lambda: not any(alive(pid) for pid in pids)), pids
    assert "Traceback" not in messages


def test_lines_of_several_processes_go_out_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under PYTHONUNBUFFERED, which is set here and in many containers, print() hands on a line in pieces."""
    written: list[bytes] = []

    class Output(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, text: Any) -> int:
            written.append(bytes(text))
            return len(text)

    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(Output(), write_through=True))  # type: ignore[type-var]
    whole_lines()
    print("rank", 1, "of", 2)
    print("no file", file=sys.stderr)
    assert written == [b"rank 1 of 2\n", b"no file\n"]


FAILS_TWICE = """
import os, sys
from pathlib import Path
import torch.distributed as dist

dist.init_process_group("gloo")
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if dist.get_rank() == attempt and attempt < 2:
    raise OSError(f"attempt {attempt}")
dist.barrier()
print(f"rank {dist.get_rank()} of attempt {attempt}", flush=True)
dist.destroy_process_group()
"""


def test_a_script_of_torch_alone_is_started_again_without_what_was_before(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(FAILS_TWICE)
    done = subprocess.run(
        [sys.executable, "-m", "falconet", "launch", "-np", "2", "--max-restarts", "2", str(tmp_path / "fails.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 of attempt 2", "rank 1 of attempt 2"]
    for attempt in "01":
        assert f"process {attempt} of 2 failed: OSError: attempt {attempt}" in done.stderr
    assert done.stderr.count("starting all again, ") == 2
