"""One batch: whole columns as tensors. Made by the loader for training and by the server for a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from falconet.errors import ColumnNotFoundError, ConfigError


@dataclass(frozen=True)
class Ragged:
    """Lists of any length: row i is `values[offsets[i]:offsets[i + 1]]`. `offsets` is int64 of rows + 1, from 0."""

    values: Tensor
    offsets: Tensor

    @classmethod
    def of(cls, rows: list[list[int]] | list[list[float]], dtype: torch.dtype = torch.int64) -> Ragged:
        """From nested lists.

        >>> Ragged.of([[1, 2], []]).offsets.tolist()
        [0, 2, 2]
        """
        offsets = torch.tensor([*accumulate(map(len, rows), initial=0)], dtype=torch.int64)
        return cls(torch.tensor([x for row in rows for x in row], dtype=dtype), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Tensor:
        return self.offsets[1:] - self.offsets[:-1]

    def row_of_value(self) -> Tensor:
        """The row number of every value: int64 of len(values)."""
        rows = torch.arange(self.offsets.shape[0] - 1, device=self.offsets.device)
        return torch.repeat_interleave(rows, self.lengths, output_size=self.values.shape[0])

    def __getitem__(self, rows: slice) -> Ragged:
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise ValueError(f"a Ragged is sliced with step 1, not {step}")
        offsets = self.offsets[start : max(start, stop) + 1]
        return Ragged(self.values[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])

    def take(self, rows: Tensor) -> Ragged:
        """The given rows (int64), in the given order, repeats allowed."""
        starts, ends = self.offsets.index_select(0, rows), self.offsets.index_select(0, rows + 1)
        offsets = torch.zeros(len(rows) + 1, dtype=torch.int64, device=self.offsets.device)
        torch.cumsum(ends - starts, 0, dtype=torch.int64, out=offsets[1:])
        # The places of the values follow each other but where a row begins; this takes half the time of repeating.
        steps = torch.ones(int(offsets[-1]) + 1, dtype=starts.dtype, device=offsets.device)
        steps[0] = 0
        starts[1:] -= ends[:-1]
        places = steps.index_add_(0, offsets[:-1], starts).cumsum(0, dtype=starts.dtype)[:-1]
        return Ragged(self.values.index_select(0, places), offsets)

    def to_lists(self) -> list[list[int]]:
        values, offsets = self.values.tolist(), self.offsets.tolist()
        return [values[a:b] for a, b in pairwise(offsets)]

    def apply(self, fn: Callable[[Tensor], Tensor]) -> Ragged:
        return Ragged(fn(self.values), fn(self.offsets))


class TakenRows(Ragged):
    """Some rows of other lists, put together once somebody looks at them.

    `lists.take(rows)`, for who may know the rows of `lists` by something else, such as their vectors.
    """

    lists: Ragged
    rows: Tensor

    def __init__(self, lists: Ragged, rows: Tensor) -> None:
        vars(self).update(lists=lists, rows=rows)

    @cached_property
    def _taken(self) -> Ragged:
        return self.lists.take(self.rows)

    @property
    def values(self) -> Tensor:
        return self._taken.values

    @property
    def offsets(self) -> Tensor:
        return self._taken.offsets

    def __len__(self) -> int:
        return len(self.rows)


Feature = Tensor | Ragged
"""[rows] or [rows, length] for scalars and fixed-length lists, Ragged for lists of any length."""


def as_ragged(feature: Feature) -> Ragged:
    """Lists of one length as lists of any length, without their padding (code 0)."""
    if isinstance(feature, Ragged):
        return feature
    there = feature != 0
    offsets = torch.zeros(len(feature) + 1, dtype=torch.int64, device=feature.device)
    torch.cumsum(there.sum(1), 0, out=offsets[1:])
    return Ragged(feature[there], offsets)


@dataclass(frozen=True)
class Batch:
    """`rows` rows of this process, out of `global_rows` of all processes. `rows` may be 0."""

    features: Mapping[str, Feature]
    targets: Mapping[str, Tensor] = field(default_factory=dict)
    rows: int = 0
    global_rows: int = 0
    weights: Tensor | None = None

    @classmethod
    def of(
        cls,
        features: Mapping[str, Feature],
        targets: Mapping[str, Tensor] | None = None,
        weights: Tensor | None = None,
    ) -> Batch:
        """A batch of one process; the rows are counted."""
        first = next(iter(features.values()), None)
        rows = 0 if first is None else len(first)
        return cls(features, targets or {}, rows, rows, weights)

    def __getitem__(self, rows: slice) -> Batch:
        """A slice of consecutive rows, as a batch of its own."""
        start, stop, _ = rows.indices(self.rows)
        n = max(stop - start, 0)
        return Batch(
            {k: v[rows] for k, v in self.features.items()},
            {k: v[rows] for k, v in self.targets.items()},
            n,
            n,
            None if self.weights is None else self.weights[rows],
        )

    def apply(self, fn: Callable[[Tensor], Tensor]) -> Batch:
        """With every tensor exchanged for what `fn` makes of it."""
        return Batch(
            {k: v.apply(fn) if isinstance(v, Ragged) else fn(v) for k, v in self.features.items()},
            {k: fn(v) for k, v in self.targets.items()},
            self.rows,
            self.global_rows,
            None if self.weights is None else fn(self.weights),
        )

    def to(self, device: torch.device | str) -> Batch:
        """On another device, without waiting where the memory is pinned."""
        return self.apply(lambda x: x.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """In pinned memory, for asynchronous copies to a GPU; a DataLoader calls it too."""
        return self.apply(lambda x: x.pin_memory())


def check_batch(given: object) -> None:
    """Raise ConfigError for what is no Batch, such as a dict of columns."""
    if not isinstance(given, Batch):
        kind = f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
        raise ConfigError(
            f"{kind} was given as a batch",
            hint="what a loader gives, or fl.Batch.of({column: tensor}, {target: tensor})",
        )


def feature_of(batch: Batch, name: str) -> Feature:
    """A column of a batch. Raises ColumnNotFoundError where it is not there, ConfigError for what is no batch."""
    check_batch(batch)
    if name not in batch.features:
        raise ColumnNotFoundError.of(name, batch.features, where="the batch")
    return batch.features[name]


def target_of(batch: Batch, name: str) -> Tensor:
    """The values of a target: [rows]. Raises ColumnNotFoundError where it is not there."""
    if name not in batch.targets:
        raise ColumnNotFoundError.of(name, batch.targets, where="the batch's targets")
    return batch.targets[name]
