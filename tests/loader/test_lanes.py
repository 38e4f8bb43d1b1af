"""Lanes: a process reads its own row groups alone, and the batches are those of any number of processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from falconet.errors import ConfigError
from falconet.loader.loader import Loader, Memory

Make = Callable[..., Path]


def steps(loader: Loader, world: int, start: int = 0) -> list[list[int]]:
    """The rows of every step, those of rank 0 first."""
    ranks = [[b.features["row"].tolist() for b in loader.batches(1, start, rank, world)] for rank in range(world)]  # type: ignore[union-attr]
    return [[row for share in step for row in share] for step in zip(*ranks, strict=True)]


@pytest.fixture
def folder(numbered_folder: Make) -> Path:
    return numbered_folder([40, 13, 27, 5, 36], row_group=5)


@pytest.mark.parametrize("memory", ["memory", "stream"])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_are_the_same_for_1_2_and_4_processes(folder: Path, memory: Memory, drop_last: bool) -> None:
    loader = Loader(folder, batch_size=16, shuffle=True, window=40, lanes=4, memory=memory, drop_last=drop_last)
    alone = steps(loader, 1)
    assert steps(loader, 2) == steps(loader, 4) == alone
    assert [len(step) for step in alone] == [16] * 7 + ([] if drop_last else [9])
    rows = sorted(row for step in alone for row in step)
    assert rows == list(range(121)) if not drop_last else len(set(rows)) == 112


def test_an_epoch_can_start_at_any_step_on_any_number_of_processes(folder: Path) -> None:
    loader = Loader(folder, batch_size=16, shuffle=True, window=40, lanes=4)
    alone = steps(loader, 1)
    for start in (1, 3, 7, 8):
        assert steps(loader, 2, start) == alone[start:]


def test_memory_and_lanes_change_nothing_else(folder: Path) -> None:
    """Each lane count is an order of its own; mode and window size of the reader are not part of it."""
    orders = [
        steps(Loader(folder, batch_size=16, shuffle=True, window=40, lanes=lanes, memory=memory), 1)
        for lanes in (1, 2, 4)
        for memory in ("memory", "stream")
    ]
    assert [orders[0] == order for order in orders] == [True, True, False, False, False, False]
    assert orders[2] == orders[3] != orders[4] == orders[5]


@pytest.mark.parametrize("memory", ["memory", "stream"])
def test_a_process_reads_the_row_groups_of_its_lanes_alone(
    folder: Path, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = Loader(folder, batch_size=16, shuffle=True, window=40, lanes=4, memory=memory)
    read: list[int] = []
    original = pq.ParquetFile.read_row_group

    def spy(file: pq.ParquetFile, index: int, **options: object) -> object:
        read.append(index)
        return original(file, index, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", spy)
    counts = []
    for rank in range(4):
        read.clear()
        list(loader.batches(0, 0, rank, 4))
        counts.append(len(read))
    assert sum(counts) == 26  # each of the 26 row groups by one process, once
    assert max(counts) <= 7


def test_lanes_that_do_not_fit_are_refused(folder: Path) -> None:
    loader = Loader(folder, batch_size=16, lanes=4)
    with pytest.raises(ConfigError, match="4 lanes cannot be shared evenly by 3 processes"):
        loader.batches(0, 0, 0, 3)
    with pytest.raises(ConfigError, match="`lanes` is 99, but the data has 26 row groups"):
        Loader(folder, batch_size=16, lanes=99)
    with pytest.raises(ConfigError, match="the saved position has lanes = 4, this loader has 2"):
        Loader(folder, batch_size=16, lanes=2).load_state_dict(loader.state_dict())


def test_a_row_with_lanes_is_found_again(folder: Path) -> None:
    loader = Loader(folder, batch_size=16, shuffle=True, window=40, lanes=4)
    third = steps(loader, 2)[3]
    firsts = {(f"{folder}/part-{i:03d}.parquet", g): 5 * g for i in range(5) for g in range(8)}
    starts = dict(zip(range(5), (0, 40, 53, 80, 85), strict=True))
    for place in (0, 7, 15):
        words = loader.origin(1, 3, place)
        file = int(words.split("part-")[1][:3])
        group = int(words.split("row group ")[1].split()[0])
        inside = int(words.split()[1])
        assert starts[file] + firsts[(f"{folder}/part-{file:03d}.parquet", group)] + inside == third[place]
