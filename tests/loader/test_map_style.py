"""torch's own data sets, in the order and the shares of the epoch plan."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from falconet.errors import ConfigError, DataError
from falconet.loader.loader import Loader
from falconet.loader.map_style import MapLoader

ROWS = 23


class Squares(Dataset[tuple[Tensor, int]]):
    """Row i is ([i, i²], i)."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.tensor([float(i), float(i * i)]), i


def rows(loader: MapLoader, epoch: int = 0, start: int = 0, world: int = 1) -> list[list[list[int]]]:
    """By step and process, the rows it takes."""
    by_rank = [[b.targets["y"].tolist() for b in loader.batches(epoch, start, rank, world)] for rank in range(world)]
    return [list(step) for step in zip(*by_rank, strict=True)]


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_every_row_comes_once_and_processes_share_each_batch(world: int) -> None:
    loader = MapLoader(Squares(), batch_size=5, shuffle=True, seed=3)
    whole = [step[0] for step in rows(loader)]
    assert [[*chain(*step)] for step in rows(loader, world=world)] == whole
    assert sorted(chain(*whole)) == list(range(ROWS))
    assert [len(step) for step in whole] == [5, 5, 5, 5, 3]


def test_the_order_is_that_of_the_loader_of_files(tmp_path: Path) -> None:
    pq.write_table(pa.table({"i": pa.array(range(ROWS), pa.int64())}), tmp_path / "rows.parquet")
    theirs = Loader(tmp_path, batch_size=5, shuffle=True, seed=3)
    ours = MapLoader(Squares(), batch_size=5, shuffle=True, seed=3)
    for epoch in (0, 1):
        wanted = [batch.features["i"].tolist() for batch in theirs.batches(epoch)]  # type: ignore[union-attr]
        assert [step[0] for step in rows(ours, epoch)] == wanted


def test_orders_change_with_the_epoch_and_the_seed_alone() -> None:
    loader = MapLoader(Squares(), batch_size=5, shuffle=True, seed=3)
    assert rows(loader, 0) == rows(MapLoader(Squares(), batch_size=5, shuffle=True, seed=3), 0)
    assert rows(loader, 0) != rows(loader, 1)
    assert rows(loader, 0) != rows(MapLoader(Squares(), batch_size=5, shuffle=True, seed=4), 0)
    assert rows(loader, 1, start=2) == rows(loader, 1)[2:]
    assert [b.targets["y"].tolist() for b in loader] == [step[0] for step in rows(loader, 0)]
    assert [b.targets["y"].tolist() for b in loader] == [step[0] for step in rows(loader, 1)]


def test_x_belongs_to_y_and_a_tensor_data_set_is_the_same() -> None:
    every = TensorDataset(*(torch.stack([torch.as_tensor(pair[i]) for pair in map(Squares().__getitem__, range(ROWS))])
                            for i in (0, 1)))  # fmt: skip
    for data in (Squares(), every):
        (*_, last) = MapLoader(data, batch_size=5, shuffle=True, seed=3).batches(0, 0, 1, 2)
        x, y = last.features["x"], last.targets["y"]
        assert isinstance(x, Tensor)
        assert x.tolist() == [[i, i * i] for i in y.tolist()]
        assert (last.rows, last.global_rows, y.dtype) == (2, 3, torch.int64)


def test_a_process_without_rows_gets_an_empty_batch_of_the_same_shape() -> None:
    loader = MapLoader(Squares(), batch_size=11)
    (*_, last) = loader.batches(0, 0, 0, 2)
    assert (last.rows, last.global_rows) == (0, 1)
    assert (tuple(last.features["x"].shape), last.targets["y"].dtype) == ((0, 2), torch.int64)  # type: ignore[union-attr]


def test_a_dataloader_is_taken_over() -> None:
    loader = MapLoader.of(DataLoader(Squares(), batch_size=5, shuffle=True, drop_last=True), seed=3)
    assert (len(loader), loader.rows, loader.batch_size) == (4, 20, 5)
    assert rows(loader) == rows(MapLoader(Squares(), batch_size=5, shuffle=True, seed=3))[:4]
    with pytest.raises(ConfigError, match="the DataLoader has a DistributedSampler"):
        MapLoader.of(DataLoader(Squares(), sampler=DistributedSampler(Squares(), num_replicas=2, rank=0)))


def test_the_state_tells_other_data_and_settings() -> None:
    state = MapLoader(Squares(), batch_size=5, seed=3).state_dict()
    assert state == MapLoader(Squares(), batch_size=5, seed=3).state_dict()
    other = TensorDataset(torch.zeros(ROWS, 2), torch.arange(ROWS))
    assert state["data"] != MapLoader(other, batch_size=5, seed=3).state_dict()["data"]
    assert state != MapLoader(Squares(), batch_size=5, seed=4).state_dict()


def test_what_is_no_map_of_pairs_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"has no length or no `\[i\]`"):
        MapLoader(iter([1]), batch_size=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"not a DataLoader\n\nhint: MapLoader\.of\(loader\)"):
        MapLoader(DataLoader(Squares()), batch_size=1)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"the rows of TensorDataset are not pairs \(X, y\)"):
        next(MapLoader(TensorDataset(torch.zeros(3)), batch_size=1).batches())
    with pytest.raises(ConfigError, match="`rank` must be from 0 to 0"):
        next(MapLoader(Squares(), batch_size=1).batches(rank=1))
