"""What goes wrong in a step, in words: a loss or gradient that is no number, ids that no table has, memory that does
not suffice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import torch
from torch import Tensor, nn

from falconet.batch import Batch, Feature, Ragged
from falconet.errors import ConfigError, DataError
from falconet.nn.embedding import Tables
from falconet.train.interfaces import Batches

_DEVICE_ASSERTS = "device-side assert"
_BEHIND = 16  # steps, at most, by which a GPU's complaint is heard late
_CPU_IS_FULL = "can't allocate memory"  # torch's allocator has no class of its own for it


def no_number(what: str, value: float, loader: Batches, epoch: int, step: int) -> DataError:
    """The error for a loss or gradient that is not finite, at a step of an epoch, both counted from 0.

    The batch, of all processes, is read again to see what is in it.
    """
    batch = _again(loader, epoch, step)
    found = [
        f"`{name}` is not finite in {_where(loader, epoch, step, rows, batch)}"
        for name, rows in not_finite(batch).items()
    ]
    inside = "; ".join(found) or "all values in it are finite: a smaller learning rate, or `clip_norm`"
    return DataError(
        f"the {what} is {value} at step {step + 1} of epoch {epoch + 1}",
        hint=f"`next(loader.batches({epoch}, {step}))` is the batch; {inside}",
    )


def not_finite(batch: Batch) -> dict[str, list[int]]:
    """The columns of floats that hold a value that is not finite, and in which rows."""
    columns: dict[str, Feature] = {**batch.features, **batch.targets}
    if batch.weights is not None:
        columns["the weight"] = batch.weights
    found = {}
    for name, column in columns.items():
        values = _values(column)
        if values.is_floating_point() and (rows := _rows(column, ~values.isfinite())):
            found[name] = rows
    return found


def _values(column: Feature) -> Tensor:
    return column.values if isinstance(column, Ragged) else column


def _rows(column: Feature, bad: Tensor) -> list[int]:
    """The rows in which any value is bad."""
    if isinstance(column, Ragged):
        return [int(row) for row in torch.unique(column.row_of_value()[bad])]
    return [int(row) for row in bad.reshape(len(bad), -1).any(1).nonzero()]


def _again(loader: Batches, epoch: int, step: int) -> Batch:
    """The batch of all processes, on the CPU: a GPU may be what failed."""
    alone: Callable[[int], Batches] = getattr(loader, "for_worker", lambda workers: loader)
    with closing(alone(1).batches(epoch, step)) as batches:
        return next(batches)


def _where(loader: Batches, epoch: int, step: int, rows: list[int], batch: Batch) -> str:
    origin: Callable[[int, int, int], str] | None = getattr(loader, "origin", None)
    first = f", the first from {origin(epoch, step, rows[0])}" if origin is not None else ""
    return f"{len(rows):,} of its {batch.rows:,} rows{first}"


@contextmanager
def known_ids(model: nn.Module, loader: Batches, epoch: int, step: int) -> Iterator[None]:
    """Raise DataError where a batch, of a step of an epoch, has ids that the model's tables have no row for.

    On a GPU they are not looked at, as that would wait for the device, which says some steps later, and without a name,
    that something was wrong. So batches up to this one are read again, on the CPU.
    """
    try:
        yield
    except IndexError as error:
        if (found := _unknown_ids(model, loader, epoch, step)) is not None:
            raise DataError(f"at step {step + 1} of epoch {epoch + 1}: {error}", hint=found[1]) from error
        raise
    except RuntimeError as error:
        if _DEVICE_ASSERTS not in str(error):
            raise
        for earlier in range(max(step - _BEHIND, 0), step + 1):
            if (found := _unknown_ids(model, loader, epoch, earlier)) is not None:
                raise DataError(f"at step {earlier + 1} of epoch {epoch + 1}: {found[0]}", hint=found[1]) from error
        raise


def _unknown_ids(model: nn.Module, loader: Batches, epoch: int, step: int) -> tuple[str, str] | None:
    """The first column of a batch that holds ids without a row, in words: what, and where."""
    batch = _again(loader, epoch, step)
    for name, cardinality in _cardinalities(model).items():
        if name not in batch.features:
            continue
        values = _values(batch.features[name])
        bad = (values < 0) | (values >= cardinality)
        if rows := _rows(batch.features[name], bad):
            what = f"column `{name}` holds the id {int(values[bad][0])}, its table has the rows 0 to {cardinality - 1}"
            return what, f"`{name}` is out of this range in {_where(loader, epoch, step, rows, batch)}"
    return None


def _cardinalities(model: nn.Module) -> dict[str, int]:
    """Rows of the tables, by column."""
    columns = {name: c for m in model.modules() if isinstance(m, Tables) for name, c in m.columns.items()}
    return {name: c.cardinality for name, c in columns.items() if c.cardinality is not None}


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
