"""What goes wrong in a step, in words: a loss or gradient that is no number, memory that does not suffice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import torch
from torch import Tensor

from falconet.batch import Batch, Ragged
from falconet.errors import ConfigError, DataError
from falconet.train.interfaces import Batches

_CPU_IS_FULL = "can't allocate memory"  # torch's allocator has no class of its own for it


def no_number(what: str, value: float, loader: Batches, epoch: int, step: int) -> DataError:
    """The error for a loss or gradient that is not finite, at a step of an epoch, both counted from 0.

    The batch, of all processes, is read again to see what is in it.
    """
    with closing(loader.batches(epoch, step)) as batches:
        batch = next(batches)
    origin: Callable[[int, int, int], str] | None = getattr(loader, "origin", None)
    found = []
    for name, rows in not_finite(batch).items():
        first = f", the first from {origin(epoch, step, rows[0])}" if origin is not None else ""
        found.append(f"`{name}` is not finite in {len(rows):,} of its {batch.rows:,} rows{first}")
    inside = "; ".join(found) or "all values in it are finite: a smaller learning rate, or `clip_norm`"
    return DataError(
        f"the {what} is {value} at step {step + 1} of epoch {epoch + 1}",
        hint=f"`next(loader.batches({epoch}, {step}))` is the batch; {inside}",
    )


def not_finite(batch: Batch) -> dict[str, list[int]]:
    """The columns of floats that hold a value that is not finite, and in which rows."""
    columns: dict[str, Tensor | Ragged] = {**batch.features, **batch.targets}
    if batch.weights is not None:
        columns["the weight"] = batch.weights
    found = {}
    for name, column in columns.items():
        values = column.values if isinstance(column, Ragged) else column
        if not values.is_floating_point():
            continue
        bad = ~values.isfinite()
        if isinstance(column, Ragged):
            rows = torch.unique(column.row_of_value()[bad]).tolist()
        else:
            rows = bad.reshape(len(bad), -1).any(1).nonzero().squeeze(1).tolist()
        if rows:
            found[name] = rows
    return found


@contextmanager
def in_words(rows: int, device: torch.device, *, accumulate: int | None = None) -> Iterator[None]:
    """Raise ConfigError where memory does not suffice for a process's `rows` rows, or torch.compile fails.

    `accumulate`: of a training step, the parts in which it takes them.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise ConfigError(
                f"torch.compile failed: {str(error).strip().splitlines()[0]}",
                hint="leave `compile` out; on a CPU it needs a C++ compiler",
            ) from error
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and _CPU_IS_FULL not in str(error):
            raise
        at_once = -(-rows // (accumulate or 1))
        said = "".join(f": {line}" for line in str(error).strip().splitlines()[:1])
        hint = "a smaller batch_size of the validation's loader"
        if accumulate is not None:
            hint = (
                f"`accumulate={2 * accumulate}` takes the same steps with half the rows at once; else a smaller "
                "batch_size, `precision`, or narrower tables"
            )
        raise ConfigError(f"out of memory on {device}, with {at_once:,} rows at once{said}", hint=hint) from error
