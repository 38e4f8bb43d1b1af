"""Nothing is left behind, however an iteration ends: no thread, no open file, no memory."""

from __future__ import annotations

import gc
import threading
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

from conftest import need
from falconet.loader.loader import Loader, Memory
from falconet.loader.vectors import PretrainedVectors

SELF = Path("/proc/self")
ROWS = 20_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "rows"
    path.mkdir()
    for i in range(4):
        table = pa.table({"row": np.arange(ROWS), "x": np.zeros(ROWS), "list": [[1, 2]] * ROWS})
        pq.write_table(table, path / f"{i}.parquet", row_group_size=2000)
    return path


def resources() -> tuple[int, int, int]:
    """Threads, open files, and MB of resident memory of this process."""
    gc.collect()
    status = dict(line.split(":\t", 1) for line in (SELF / "status").read_text().splitlines())
    return int(status["Threads"]), len(list((SELF / "fd").iterdir())), int(status["VmRSS"].split()[0]) // 1024


def broken(loader: Loader) -> None:
    for _ in loader:
        break


def failed(loader: Loader) -> None:
    with pytest.raises(ZeroDivisionError):
        for _ in loader:
            1 / 0  # noqa: B018


def dropped(loader: Loader) -> None:
    batches = loader.batches()
    next(batches)
    del batches


def in_a_cycle(loader: Loader) -> None:
    batches = loader.batches()
    next(batches)
    cycle: list[object] = [batches]
    cycle.append(cycle)
    del batches, cycle
    gc.collect()


def never_begun(loader: Loader) -> None:
    loader.batches()


def in_a_dataloader(loader: Loader) -> None:
    for _ in DataLoader(loader.steps(), batch_size=None):
        break


WAYS = [broken, failed, dropped, in_a_cycle, never_begun, in_a_dataloader]


def abandon(folder: Path, vectors: Path, memory: Memory) -> None:
    """Fifty times, in a process of its own, in which nothing else comes and goes."""
    pa.set_cpu_count(1)  # Arrow starts a thread when work waits for one: of one each, both are there from the start
    pa.set_io_thread_count(1)
    known = PretrainedVectors(column="row", source=vectors)
    loader = Loader(folder, batch_size=500, shuffle=True, window=10_000, memory=memory, transforms=[known])
    for way in WAYS:
        way(loader)
    threads, files, megabytes = resources()
    for i in range(50):
        WAYS[i % len(WAYS)](loader)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("falconet-loader")]
    after = resources()
    assert after[:2] == (threads, files), (after, threads, files)
    assert after[2] < megabytes + 30, (after, megabytes)


@pytest.mark.parametrize("memory", ["memory", "stream"])
def test_fifty_abandoned_iterations_leave_nothing(folder: Path, tmp_path: Path, memory: Memory) -> None:
    need("/proc", (SELF / "fd").is_dir() and (SELF / "status").is_file())
    np.save(tmp_path / "vectors.npy", np.zeros((ROWS, 4), np.float32))
    process = get_context("spawn").Process(target=abandon, args=(folder, tmp_path / "vectors.npy", memory))
    process.start()
    process.join()
    assert process.exitcode == 0
