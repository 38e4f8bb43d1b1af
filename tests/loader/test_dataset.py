"""A loader as a torch IterableDataset: any number of workers, the loader's order, an epoch after the other."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from falconet.loader.loader import Loader

Make = Callable[..., Path]

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than the machine has cores
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


def rows(batches: object) -> list[int]:
    return [int(row) for batch in batches for row in batch.features["row"]]  # type: ignore[attr-defined]


@pytest.fixture
def loader(numbered_folder: Make) -> Loader:
    return Loader(numbered_folder([10, 3, 7, 1, 6], row_group=4), batch_size=4, shuffle=True, seed=2, window=9)


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_every_worker_count_gives_the_loaders_batches_epoch_after_epoch(loader: Loader, workers: int) -> None:
    batches: DataLoader[object] = DataLoader(loader.steps(), batch_size=None, num_workers=workers)
    assert len(batches) == 7
    for epoch in (0, 1):
        assert rows(batches) == rows(loader.batches(epoch))


def test_workers_that_stay_and_a_broken_off_epoch_go_on_alike(loader: Loader) -> None:
    steps = loader.steps()
    batches: DataLoader[object] = DataLoader(steps, batch_size=None, num_workers=2, persistent_workers=True)
    next(iter(batches))
    assert rows(batches) == rows(loader.batches(1))
    steps.set_epoch(5, step=3)
    assert rows(batches) == rows(loader.batches(5, 3))
    assert rows(batches) == rows(loader.batches(6))


def test_workers_that_are_spawned_share_the_epoch(loader: Loader) -> None:
    steps = loader.steps()
    batches: DataLoader[object] = DataLoader(
        steps, batch_size=None, num_workers=2, multiprocessing_context="spawn", persistent_workers=True
    )
    assert rows(batches) == rows(loader.batches(0))
    steps.set_epoch(5, step=2)
    assert rows(batches) == rows(loader.batches(5, 2))


def test_two_ranks_of_two_workers_have_every_row_once(loader: Loader) -> None:
    from falconet.train.runtime import Runtime

    shares = []
    for rank in (0, 1):
        loader._runtime = Runtime(rank=rank, world=2)
        shares.append(rows(DataLoader(loader.steps(), batch_size=None, num_workers=2)))
    assert sorted(shares[0] + shares[1]) == list(range(27))


def test_a_position_is_taken_up_by_workers(loader: Loader) -> None:
    loader.set_epoch(2, 4)
    batches: DataLoader[object] = DataLoader(loader.steps(), batch_size=None, num_workers=2)
    assert rows(batches) == rows(loader.batches(2, 4))


def test_a_loader_travels_without_what_it_keeps(numbered_folder: Make) -> None:
    loader = Loader(numbered_folder([20_000]), batch_size=100, memory="memory", shuffle=True)
    whole = rows(loader.batches())
    state = pickle.dumps(loader)
    assert len(state) < 20_000
    assert rows(pickle.loads(state).batches()) == whole  # noqa: S301


def test_workers_share_out_the_budget(numbered_folder: Make) -> None:
    folder = numbered_folder([1000])
    need = Loader(folder, batch_size=10).bytes
    loader = Loader(folder, batch_size=10, budget=2 * need)
    assert [loader.for_worker(workers).mode for workers in (1, 2, 3)] == ["memory", "memory", "stream"]


def test_a_batch_travels_whole(loader: Loader) -> None:
    batch = next(iter(DataLoader(loader.steps(), batch_size=None, num_workers=1)))
    (wanted, *_) = loader.batches()
    assert batch.features["genres"].to_lists() == wanted.features["genres"].to_lists()  # type: ignore[union-attr]
    torch.testing.assert_close(batch.targets, wanted.targets)
    torch.testing.assert_close(batch.weights, wanted.weights)
    assert (batch.rows, batch.global_rows) == (4, 4)
