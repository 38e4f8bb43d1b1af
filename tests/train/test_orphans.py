"""Nothing is left of a launch, whatever ends it."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from falconet.errors import ConfigError, DistributedError
from falconet.train.launch import launch
from falconet.train.runtime import Runtime
from falconet.train.team import whole_lines

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
os._exit(0)
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


CALLED_AGAIN = """
import falconet as fl

def rank():
    return fl.Runtime.peek()[0]

print(fl.launch(rank, 2))
"""
TRAINS = """
import os, sys, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import TensorDataset
import falconet as fl

class Slow(fl.Callback):
    def step(self, step, figures):
        if step == 3:
            Path(f"pid{fl.Runtime.peek()[0]}").write_text(str(os.getpid()))
        time.sleep(0.02)

rows = fl.MapLoader(TensorDataset(torch.ones(64, 1), torch.ones(64, 1)), batch_size=8)
model = fl.nn.Supervised(nn.Linear(1, 1), nn.MSELoss(reduction="none"))
fl.Trainer(fl.TrainConfig(epochs=500), "run", callbacks=[Slow()]).fit(model, rows)
"""


def stubborn(folder: Path) -> None:
    """Does not end when it is asked to."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (folder / f"pid{Runtime.peek()[0]}").write_text(str(os.getpid()))
    time.sleep(600)


def leaves(code: int) -> None:
    if Runtime.peek()[0] == 1:
        os._exit(code)
    time.sleep(600)


def both_ready(folder: Path) -> list[int]:
    files = [folder / f"pid{rank}" for rank in range(2)]
    assert until(lambda: all(file.exists() and file.read_text() for file in files))
    return [int(file.read_text()) for file in files]


def test_ctrl_c_ends_a_launched_training_after_a_snapshot(tmp_path: Path) -> None:
    """The terminal sends it to all processes; the launcher alone heeds it."""
    (tmp_path / "trains.py").write_text(TRAINS)
    started = subprocess.Popen(
        [sys.executable, "-c", "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
         "from falconet.cli.main import main; main()", "launch", "-np", "2", "trains.py"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        pids = both_ready(tmp_path)
        os.killpg(started.pid, signal.SIGINT)
        messages = started.communicate(timeout=60)[1]
    finally:
        started.kill()
    assert started.returncode == 130, messages
    assert not any(alive(pid) for pid in pids)
    said = [line for line in messages.splitlines() if line.startswith(("Ctrl-C", "stopped", "Trace", "error"))]
    assert [line.split(" ")[0] for line in said] == ["Ctrl-C:", "stopped"]
    (snapshot,) = (tmp_path / "run/snapshots").iterdir()
    assert f"step {int(snapshot.name):,} of 4,000" in said[1]


def test_a_second_ctrl_c_ends_what_does_not_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pids: list[int] = []

    def press() -> None:
        pids.extend(both_ready(tmp_path))
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    fingers = threading.Thread(target=press)
    fingers.start()
    try:
        with pytest.raises(SystemExit) as end:
            launch(stubborn, 2, (tmp_path,))
    finally:
        fingers.join()
        assert signal.signal(signal.SIGINT, before) is signal.default_int_handler
    assert end.value.code == 130
    assert not any(alive(pid) for pid in pids)
    assert capfd.readouterr().err.splitlines() == [
        "Ctrl-C: the processes are asked to end, a training after a snapshot; again ends them at once"
    ]


def test_a_process_that_leaves_without_a_word_is_named() -> None:
    with pytest.raises(DistributedError, match=r"^process 1 of 2 failed: it ended with exit code 3$"):
        launch(leaves, 2, (3,))


def test_a_script_that_launches_when_it_is_imported_is_explained_once(tmp_path: Path) -> None:
    (tmp_path / "called.py").write_text(CALLED_AGAIN)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "called.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert "the script calls fl.launch whenever it is imported" in done.stderr
    assert done.stderr.endswith('hint: put the call under `if __name__ == "__main__":`\n')


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train.py", 2), "'train.py' is no function(?s:.*)falconet launch -np 2 train.py"),
        ((leaves, "2"), "`nproc` is '2'"),
        ((leaves, 0), "`nproc` is 0"),
        ((leaves, 2, 3), r"`args` is 3(?s:.*)args=\(3,\)"),
        ((leaves, 2, "ab"), r"`args` is 'ab'"),
        ((lambda: 1, 2), "`.*<lambda>` cannot be given to other processes"),
    ],
)
def test_what_cannot_be_launched_is_refused_before_any_process_starts(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        launch(*arguments)
    with pytest.raises(ConfigError, match="`max_restarts` is -1"):
        launch(leaves, 2, (0,), max_restarts=-1)
