"""The tutorial's programs come to the same numbers alone, under every launcher here, and on two nodes."""

from __future__ import annotations

import gzip
import os
import re
import runpy
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from conftest import need

ROOT = Path(__file__).parent.parent.parent
LINE, IMAGES = (str(ROOT / "examples" / name) for name in ("linear_regression.py", "image_classifier.py"))
SMALL = ["--rows", "400", "--epochs", "1", "--batch_size", "50"]
pytestmark = pytest.mark.timeout(240)


def start(*command: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **env},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def output(*processes: subprocess.Popen[str]) -> str:
    """What the processes, which work together, printed."""
    found = [(*process.communicate(timeout=200), process.returncode) for process in processes]
    assert [code for _, _, code in found] == [0] * len(processes), [messages for _, messages, _ in found]
    return "".join(out for out, _, _ in found)


def numbers(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"\d+\.\d+", text)]


Alone = Callable[..., str]


@pytest.fixture
def alone(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Alone:
    """What a script prints, run in this very process: that takes no seconds to start."""

    def run(script: str, *args: str) -> str:
        monkeypatch.setattr(sys, "argv", [script, *args])
        capsys.readouterr()
        runpy.run_path(script, run_name="__main__")
        return capsys.readouterr().out

    return run


def launch(*args: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "falconet", "launch", *args)


def test_a_line_on_two_nodes_and_under_srun(alone: Alone) -> None:
    wanted = alone(LINE)
    assert re.search(r"y = (2\.9|3\.0)\d+ x \+ (1\.9|2\.0)\d+$", wanted.strip())
    flags = ("--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(20000 + os.getpid() % 10000))
    nodes = [start(*launch("-np", "1", *flags, "--node-rank", rank, LINE)) for rank in "01"]
    together = output(*nodes)
    assert together.count("epoch 5") == 1
    assert numbers(together) == pytest.approx(numbers(wanted), abs=2e-4)
    slurm = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_NODEID": "0"}
    slurm["SLURM_STEP_TASKS_PER_NODE"] = "2"
    tasks = [start(sys.executable, LINE, **slurm, SLURM_PROCID=i, SLURM_LOCALID=i) for i in "01"]
    assert numbers(output(*tasks)) == pytest.approx(numbers(wanted), abs=2e-4)


def test_a_line_under_mpirun(alone: Alone) -> None:
    mpirun = shutil.which("mpirun")
    need("mpirun", mpirun is not None, "apt-get install openmpi-bin")
    assert mpirun is not None
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    two = start(mpirun, "-np", "2", "--oversubscribe", "--bind-to", "none", sys.executable, LINE, **root)
    assert numbers(output(two)) == pytest.approx(numbers(alone(LINE)), abs=2e-4)


def test_digits_under_launch_and_torchrun(alone: Alone, tmp_path: Path) -> None:
    wanted = alone(IMAGES, *SMALL)
    assert "trainable parameters: 9,122 of 9,122" in wanted
    assert "of 1,001 images" in wanted
    four = output(start(*launch("-np", "4", IMAGES, *SMALL, "--dir_out", str(tmp_path / "run"))))
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    two = output(start(sys.executable, *torchrun, IMAGES, *SMALL))
    for found in (four, two):
        assert found.count("Done!") == 1
        assert numbers(found) == pytest.approx(numbers(wanted), abs=3e-3)
    # The backbone that was learned is used, and rests.
    weights = str(tmp_path / "run/model/model.safetensors")
    again = alone(IMAGES, *SMALL, "--weights", weights, "--freeze")
    assert "trainable parameters: 7,850 of 9,122" in again


def write_idx(path: Path, values: np.ndarray) -> None:
    head = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    with (gzip.open if path.suffix == ".gz" else open)(path, "wb") as file:
        file.write(head + values.astype(np.uint8).tobytes())


def stripes(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of 8 x 12 with stripes up (0) or across (1)."""
    random = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    images = random.integers(0, 60, (n, 8, 12))
    images[labels == 0, :, ::2] += 150
    images[labels == 1, ::2, :] += 150
    return images.astype(np.uint8), labels


def test_images_from_idx_files_and_from_folders(alone: Alone, tmp_path: Path) -> None:
    idx, folders = tmp_path / "idx", tmp_path / "folders"
    idx.mkdir()
    for part, name, n in (("train", "train", 120), ("test", "t10k", 33)):
        images, labels = stripes(n, len(name))
        order = np.argsort(labels, kind="stable")  # as files lie in folders
        write_idx(idx / f"{name}-images-idx3-ubyte.gz", images[order])
        write_idx(idx / f"{name}-labels-idx1-ubyte", labels[order])
        for i in order:
            folder = folders / part / ("up", "across")[labels[i]].replace("up", "a_up")
            folder.mkdir(parents=True, exist_ok=True)
            if i % 4 < 2:
                np.save(folder / f"{i:03}.npy", images[i])
            else:
                (folder / f"{i:03}.pgm").write_bytes(b"P5\n12 8\n255\n" + images[i].tobytes())
    settings = ("--batch_size", "12", "--epochs", "3", "--learning_rate", "0.01")
    from_idx = alone(IMAGES, "--data", str(idx), *settings)
    assert "accuracy 1.0000 of 33 images" in from_idx
    assert alone(IMAGES, "--data", str(folders), *settings) == from_idx


def test_fashion_mnist_where_it_is_installed(alone: Alone) -> None:
    folder = Path("/usr/share/datasets/fashion-mnist")
    need("fashion-mnist", folder.is_dir(), "apt-get install dataset-fashion-mnist")
    found = alone(IMAGES, "--data", str(folder), "--rows", "3000", "--epochs", "1", "--batch_size", "50")
    accuracy = re.search(r"test: loss .*, accuracy (.*) of 10,000 images", found)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.6
