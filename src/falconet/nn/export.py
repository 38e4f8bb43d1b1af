"""A model as a program that needs no falconet: for AOTInductor, a server in C++, or another runtime."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config as tracing

from falconet.batch import Batch, Feature, Ragged
from falconet.errors import ConfigError
from falconet.nn.embedding import Tables

_OBLIVIOUS = "backed_size_oblivious"  # torch's name for programs that take none or one row as they take many


def export(model: nn.Module, batch: Batch, of: str = "forward") -> torch.export.ExportedProgram:
    """What `model(batch)` computes in evaluation mode, for any number of rows, as a program of `torch.export`.

    `of`: which of the model's methods, such as `user` and `item` of a retriever.

    The program takes a dict of tensors, as `flat` makes it of a batch: a column by its name, and lists of any length
    as `NAME.values` and `NAME.offsets`. `batch` shows which columns and of what types; it must have two rows or more.
    The program does not check ids: one that a table does not have is torch's IndexError.

    Raises ConfigError for too few rows, and where torch is older than 2.8.
    """
    if batch.rows < 2:
        raise ConfigError(f"an export needs an example of at least 2 rows, this one has {batch.rows}")
    if not hasattr(tracing, _OBLIVIOUS):
        raise ConfigError(f"torch {torch.__version__} cannot export for any number of rows", hint="torch 2.8 or later")
    columns = flat(batch)
    program = _Flat(model.eval(), of)
    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, Tables):
                stack.enter_context(module.unseen())
        stack.enter_context(torch.no_grad())
        stack.enter_context(tracing.patch({_OBLIVIOUS: True}))  # type: ignore[attr-defined]
        return torch.export.export(program, (columns,), dynamic_shapes=({name: _sizes(name) for name in columns},))


def flat(batch: Batch) -> dict[str, Tensor]:
    """The features of a batch as plain tensors, by name."""
    found: dict[str, Tensor] = {}
    for name, feature in batch.features.items():
        if isinstance(feature, Ragged):
            found |= {f"{name}.values": feature.values, f"{name}.offsets": feature.offsets}
        else:
            found[name] = feature
    return found


class _Flat(nn.Module):
    """A model of batches as one of plain tensors."""

    def __init__(self, model: nn.Module, of: str) -> None:
        super().__init__()
        self.model, self.of = model, of

    def forward(self, columns: Mapping[str, Tensor]) -> Tensor:
        features: dict[str, Feature] = {}
        for key, x in columns.items():
            name, _, part = key.rpartition(".")
            if part == "offsets" and f"{name}.values" in columns:
                features[name] = Ragged(columns[f"{name}.values"], x)
            elif not (part == "values" and f"{name}.offsets" in columns):
                features[key] = x
        # `len` of a tensor would be a constant of the program, its shape is not.
        first = next(iter(features.values()))
        rows = first.offsets.shape[0] - 1 if isinstance(first, Ragged) else first.shape[0]
        batch = Batch(features, {}, rows, rows)
        result: Tensor = self.model(batch) if self.of == "forward" else getattr(self.model, self.of)(batch)
        return result


def _sizes(key: str) -> dict[int, object]:
    """Which sizes of a column's tensor are free, and which of them are equal."""
    rows = torch.export.Dim("rows")
    if key.endswith(".offsets"):
        return {0: rows + 1}
    if key.endswith(".values"):
        return {0: torch.export.Dim.DYNAMIC}
    return {0: rows}
