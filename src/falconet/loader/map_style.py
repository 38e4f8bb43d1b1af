"""Batches from torch's own data sets: anything with a length and a `[i]` that gives (X, y)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler, TensorDataset, default_collate

from falconet.arguments import explained
from falconet.batch import Batch
from falconet.errors import ConfigError, DataError
from falconet.loader.plan import EpochPlan
from falconet.train.runtime import Runtime

FORMAT = 1
X, Y = "x", "y"


class MapLoader:
    """Batches of a map-style data set of (X, y): the feature `x` and the target `y`, shared out among processes.

    The order, and who gets which rows, are those of `Loader`: `batch_size` is that of all processes together, every row
    comes once per epoch, in an order that depends on `seed` and the epoch alone, and all processes take the same number
    of steps. A DistributedSampler is not needed; it would repeat rows.

    `collate` makes (X, y) of a list of rows, by default as a DataLoader does; `workers` processes read ahead. A data
    set that draws random numbers (an augmentation) should draw them from the row's number: else they depend on how
    rows were shared out.
    """

    @explained
    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        workers: int = 0,
        collate: Callable[[list[Any]], Any] | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        if isinstance(dataset, DataLoader):
            raise ConfigError(
                "MapLoader takes a data set, not a DataLoader", hint="MapLoader.of(loader), or its data set"
            )
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise ConfigError(
                f"{type(dataset).__name__} has no length or no `[i]`",
                hint="a map-style data set, or fl.Loader for files",
            )
        if workers < 0:
            raise ConfigError(f"`workers` is {workers}", hint="at least 0")
        self.dataset, self._workers, self._runtime = dataset, workers, runtime
        self._collate = collate or default_collate
        self._plan = EpochPlan(
            group_rows=(len(dataset),),
            batch_size=batch_size,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
        )
        self._epoch = 0

    @classmethod
    def of(cls, loader: DataLoader[Any], *, seed: int = 0, runtime: Runtime | None = None) -> MapLoader:
        """What a DataLoader gives, its batch size taken as that of all processes together.

        Raises ConfigError for one with a sampler of its own: who gets which rows is decided here.
        """
        if type(loader.sampler) not in (RandomSampler, SequentialSampler) or loader.batch_size is None:
            raise ConfigError(
                f"the DataLoader has a {type(loader.sampler).__name__} or a batch sampler of its own",
                hint="leave it out: rows are shared out among processes here",
            )
        return cls(
            loader.dataset,
            batch_size=loader.batch_size,
            shuffle=type(loader.sampler) is RandomSampler,
            seed=seed,
            drop_last=loader.drop_last,
            workers=loader.num_workers,
            collate=loader.collate_fn,
            runtime=runtime,
        )

    @property
    def rows(self) -> int:
        """Rows of an epoch, of all processes together."""
        return min(self._plan.rows, self._plan.steps * self._plan.batch_size)

    @property
    def batch_size(self) -> int:
        """Rows of a global batch."""
        return self._plan.batch_size

    def __len__(self) -> int:
        """Steps of an epoch, the same on every process."""
        return self._plan.steps

    def batches(self, epoch: int = 0, start: int = 0, rank: int = 0, world: int = 1) -> Generator[Batch]:
        """What `rank` of `world` processes gets in the steps of an epoch from step `start` on; may have no rows."""
        if not 0 <= rank < world:
            raise ConfigError(f"`rank` must be from 0 to {world - 1} where there are {world} processes, not {rank}")
        plan = replace(self._plan, epoch=epoch)
        order = [row for window in plan.windows[0] for row in plan.order(window).tolist()]
        shares = [plan.share(step, rank, world).spans[0] for step in range(start, plan.steps)]
        fetched = self._fetch([order[low:high] for _, low, high in shares if low < high])
        for step, (_, low, high) in enumerate(shares, start):
            x, y = next(fetched) if low < high else self._nothing
            yield Batch({X: x}, {Y: y}, high - low, plan.batch_rows(step))

    def __iter__(self) -> Generator[Batch]:
        """This process's share of the next epoch."""
        rank, world = (self._runtime.rank, self._runtime.world) if self._runtime else Runtime.peek()
        self._epoch += 1
        return self.batches(self._epoch - 1, 0, rank, world)

    def state_dict(self) -> dict[str, Any]:
        """What the data and its order are: plain values for JSON."""
        plan = self._plan
        return {
            "format": FORMAT,
            "seed": plan.seed,
            "batch_size": plan.batch_size,
            "shuffle": plan.shuffle,
            "drop_last": plan.drop_last,
            "data": self._fingerprint(),
        }

    def _fetch(self, shares: Sequence[list[int]]) -> Iterator[tuple[Tensor, Tensor]]:
        if type(self.dataset) is TensorDataset and self._collate is default_collate:
            return (self._pair([x[rows] for x in self.dataset.tensors]) for rows in map(torch.tensor, shares))
        loader = DataLoader(self.dataset, batch_sampler=shares, num_workers=self._workers, collate_fn=self._collate)
        return (self._pair(pair) for pair in loader)

    @property
    def _nothing(self) -> tuple[Tensor, Tensor]:
        """No rows, of the right shapes."""
        x, y = self._pair(self._collate([self.dataset[0]]))
        return x[:0], y[:0]

    def _pair(self, pair: Sequence[Any]) -> tuple[Tensor, Tensor]:
        if isinstance(pair, Tensor) or len(pair) != 2 or not all(isinstance(x, Tensor) for x in pair):
            raise DataError(
                f"the rows of {type(self.dataset).__name__} are not pairs (X, y) of tensors or numbers",
                hint="a data set or a `collate` that gives such pairs",
            )
        return pair[0], pair[1]

    def _fingerprint(self) -> str:
        """SHA-256 of the number of rows and of the first and the last one."""
        rows = self._plan.rows
        found = hashlib.sha256(str(rows).encode())
        for x in self._pair(self._collate([self.dataset[0], self.dataset[rows - 1]])) if rows else ():
            found.update(
                f"{x.dtype} {tuple(x.shape)}".encode() + x.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            )
        return found.hexdigest()
