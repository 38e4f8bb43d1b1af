"""A batch job on two nodes, from its first start to its end: killed, restarted, out of time, queued again, finished."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conftest import need
from falconet.cli.main import app
from falconet.errors import ConfigError
from falconet.train.slurm import BatchJob, batch_script

ROOT = Path(__file__).parent.parent.parent
posix = pytest.mark.skipif(os.name == "nt", reason="a cluster's nodes have bash and SIGUSR1")


def test_a_batch_script_asks_for_what_was_given(tmp_path: Path) -> None:
    (tmp_path / "train it.py").touch()
    options = ["--nnodes", "2", "--gpus", "4", "--time", "02:00:00", "--account", "abc", "--partition", "gpu"]
    done = CliRunner().invoke(
        app,
        ["launch", "--print-slurm", *options, "--max-restarts", "3", str(tmp_path / "train it.py"), "--dir", "my data"],
    )
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0] == "#!/bin/bash"
    for option in (
        "job-name=train-it.py", "nodes=2", "ntasks-per-node=1", "gpus-per-node=4", "time=02:00:00", "account=abc",
        "partition=gpu", "exclusive", "signal=B:USR1@120", "requeue",
    ):  # fmt: skip
        assert f"#SBATCH --{option}" in lines
    assert "    python -m falconet launch -np 4 --nnodes 2 --max-restarts 3 --usr1 stop \\" in lines
    assert f"    '{tmp_path}/train it.py' --dir 'my data' &" in lines


def test_a_batch_script_may_ask_for_some_cores() -> None:
    script = batch_script("train.py", [], BatchJob(processes=2, cpus=8))
    assert "#SBATCH --cpus-per-task=8\n" in script
    assert "srun --ntasks-per-node=1 --cpus-per-task=8 --kill-on-bad-exit=1" in script
    assert "exclusive" not in script
    assert "gpus" not in script


def test_what_no_queue_takes_is_refused() -> None:
    with pytest.raises(ConfigError, match="`account` is 'a b'"):
        BatchJob(account="a b")
    with pytest.raises(ConfigError, match="`nodes` is 0"):
        BatchJob(nodes=0)
    done = CliRunner().invoke(app, ["launch", "--time", "1", __file__])
    assert "--time without --print-slurm" in str(done.exception)


# A task on each of two "nodes", both on this machine, and signals passed on, as srun does.
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
for i in 0 1; do
    SLURM_STEP_ID=0 SLURM_PROCID=$i SLURM_NODEID=$i SLURM_LOCALID=0 SLURM_NTASKS=2 SLURM_STEP_TASKS_PER_NODE="1(x2)" \\
        SLURM_STEP_NODELIST=localhost,localhost "$@" &
    tasks+=($!)
done
trap 'kill -USR1 "${tasks[@]}"' USR1
code=0
for task in "${tasks[@]}"; do
    wait "$task"; one=$?
    while kill -0 "$task" 2>/dev/null; do wait "$task"; one=$?; done
    [ "$one" -gt "$code" ] && code=$one
done
exit "$code"
"""
SCONTROL = '#!/bin/bash\necho "$@" >> "$QUEUE/scontrol"\n'
TRAINS = """
import json, os, signal, sys, time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import TensorDataset
import falconet as fl

folder = Path(sys.argv[1])
steps = []

class Watch(fl.Callback):
    def step(self, step, figures):
        steps.append(step)
        if step == 5 and runtime.rank == 1 and not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if step >= 8 and not (folder / "queued").exists():
            (folder / "going").touch()
            time.sleep(0.3)

with fl.Runtime.start() as runtime:
    torch.manual_seed(0)
    x = torch.randn(48, 3)
    model = fl.nn.Supervised(nn.Linear(3, 1), nn.MSELoss(reduction="none"))
    loader = fl.MapLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)
    config = fl.TrainConfig(epochs=3, learning_rate=0.01, precision="float32", snapshot_steps=2)
    result = fl.Trainer(config, folder / "run", runtime, [Watch()]).fit(model, loader, resume="auto")
    if runtime.is_main:
        print(json.dumps([steps[0], steps[-1], runtime.world, result.metrics["loss"]]), flush=True)
"""


def job(folder: Path) -> subprocess.Popen[str]:
    """The batch script of TRAINS, started with a process on each of two nodes, and one restart."""
    (folder / "bin").mkdir(exist_ok=True)
    for name, text in {"bin/srun": SRUN, "bin/scontrol": SCONTROL}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "train.py").write_text(TRAINS)
    script = batch_script(
        str(folder / "train.py"), [str(folder)], BatchJob(nodes=2, max_restarts=1), python=sys.executable
    )
    (folder / "job.sh").write_text(script)
    assert subprocess.run(["bash", "-n", folder / "job.sh"], check=False).returncode == 0
    env = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    env |= {"SLURM_JOB_ID": str(os.getpid()), "QUEUE": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        ["bash", folder / "job.sh"], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@posix
@pytest.mark.timeout(240)
def test_a_job_on_two_nodes_survives_a_killed_process_and_the_end_of_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    need("bash", shutil.which("bash") is not None)
    first = job(tmp_path)
    deadline = time.monotonic() + 120
    while not (tmp_path / "going").exists() and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    first.send_signal(signal.SIGUSR1)
    out, messages = first.communicate(timeout=120)
    assert first.returncode == 143, messages
    assert out == ""
    assert messages.count("process 1 of 2 failed: it was ended by signal 9") == 2  # by each launcher
    assert (tmp_path / "scontrol").read_text() == f"requeue {os.getpid()}\n"
    state = json.loads((tmp_path / "run/last.json").read_text())
    stopped = int(state["snapshot"])
    assert 8 <= stopped < 36

    (tmp_path / "queued").touch()
    second = job(tmp_path)
    out, messages = second.communicate(timeout=120)
    assert second.returncode == 0, messages
    assert (tmp_path / "scontrol").read_text().count("requeue") == 1
    begin, end, world, loss = json.loads(out)
    assert (begin, end, world) == (stopped + 1, 36, 2)

    (tmp_path / "alone").mkdir()
    for mark in ("killed", "queued"):
        (tmp_path / "alone" / mark).touch()
    monkeypatch.setattr(sys, "argv", ["train.py", str(tmp_path / "alone")])
    runpy.run_path(str(tmp_path / "train.py"))
    assert loss == pytest.approx(json.loads(capsys.readouterr().out)[3], rel=1e-5)  # as if nothing had happened
