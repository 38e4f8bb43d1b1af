"""Files in memory by which processes of one machine exchange bytes."""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
from pathlib import Path

import pytest
import torch

from falconet.train.board import Board, _File
from falconet.train.runtime import Runtime

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files in memory are Linux's")


def test_processes_on_several_machines_or_gpus_have_none() -> None:
    assert Board.of(Runtime(rank=0, world=2, local_world=1)) is None
    assert Board.of(Runtime(rank=0, world=2, local_world=2, device=torch.device("cuda"))) is None


def test_what_is_written_is_read_after_the_file_grew() -> None:
    mine = _File.made(7)
    assert mine is not None
    other = _File.opened(os.getpid(), mine.number, 7)
    assert other is not None
    for size in (16, 3 << 20, 24):
        mine.room(size).fill_(size % 251)
        assert torch.equal(other.bytes(size), torch.full((size,), size % 251, dtype=torch.uint8))


def test_what_is_in_common_lies_where_large_pages_can() -> None:
    mine = _File.made(7)
    assert mine is not None
    other = _File.opened(os.getpid(), mine.number, 7)
    assert other is not None
    for size in (5, 3 << 20):
        mine.room((4 << 20) + size)
        here, there = mine.large(size), other.large(size)
        assert len(here) == len(there) == size
        here.fill_(size % 251)
        there[1] = 3
        assert torch.equal(here, there)
        assert here[0] == size % 251
        assert here.data_ptr() != there.data_ptr()
        assert [x.data_ptr() % (2 << 20) for x in (here, there)] == [0, 0]
    assert int(mine.bytes(8).view(torch.int64)) == 7  # as whoever opens it expects


def test_a_file_of_another_kind_or_token_is_left_alone(tmp_path: Path) -> None:
    mine = _File.made(7)
    assert mine is not None
    assert _File.opened(os.getpid(), mine.number, 8) is None
    assert _File.opened(os.getpid(), 1 << 20, 7) is None
    (tmp_path / "file").write_bytes(b"")
    with (tmp_path / "file").open("rb+") as file:
        assert _File.opened(os.getpid(), file.fileno(), 7) is None
        assert os.fstat(file.fileno()).st_size == 0


def test_a_file_that_is_empty_or_cannot_be_mapped_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    number = os.memfd_create("falconet-board")
    assert _File.opened(os.getpid(), number, 7) is None
    os.close(number)
    mine = _File.made(7)
    assert mine is not None

    def full(*_: object) -> mmap.mmap:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("falconet.train.board.mmap.mmap", full)
    assert _File.made(7) is None
    assert _File.opened(os.getpid(), mine.number, 7) is None


def test_files_are_closed_when_nobody_needs_them() -> None:
    mine = _File.made(7)
    assert mine is not None
    found = os.fstat(mine.number)
    identity = (found.st_dev, found.st_ino)  # another thread may open the same number again
    assert identity in _open_files()
    del mine
    gc.collect()
    assert identity not in _open_files()


def _open_files() -> set[tuple[int, int]]:
    """Device and inode of each file that this process has open."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this listing itself, or one closed since
            status = link.stat()
            found.add((status.st_dev, status.st_ino))
    return found
