"""Vectors of embedding tables from elsewhere, and out again; tables that do not learn.

`module` is a model or any part of one: what is said of a table goes for every `Tables` in it that has the table.

Shapes: N codes of a table, M rows of what is given, D width of a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from falconet.errors import ColumnNotFoundError, ConfigError, DataError
from falconet.nn.embedding import Tables
from falconet.nn.lookup import PADDING
from falconet.nn.vector_file import open_vectors

NAME = "vectors"  # of the tensor in a safetensors file


class Frame(Protocol):
    """A Polars or pandas frame of numbers, or anything else that becomes an array."""

    def to_numpy(self) -> npt.NDArray[Any]: ...


Vectors = Tensor | npt.NDArray[Any] | Frame | str | Path
"""[M, D], or a .npy or .safetensors file (of one tensor) that holds it."""

Codes = Sequence[int] | Tensor


@torch.no_grad()
def put_vectors(
    module: nn.Module, table: str, vectors: Vectors, *, codes: Sequence[int] | Tensor | None = None
) -> None:
    """Give a table vectors. Row i is that of code i, or of `codes[i]`; codes that get none keep what they have.

    Without `codes` there must be one row per code, and row 0, which stands for padding, must be zero. Raises
    ColumnNotFoundError for a table that is not there, ConfigError for other shapes, DataError for numbers that are not
    finite and codes that are not the table's, ArtifactError for a file that cannot be read.
    """
    having = _having(module, table)
    given_MD, where = _read(vectors)
    for weight in (tables.weight(table) for tables in having):
        _check(given_MD, weight, table, where, by_code=codes is not None)
        if codes is None:
            weight.copy_(given_MD)
        else:
            weight[_codes(codes, len(given_MD), len(weight), table)] = given_MD.to(weight)


def get_vectors(module: nn.Module, table: str) -> npt.NDArray[np.float32]:
    """A copy of a table's vectors: [N, D]. Raises ConfigError where several parts of the module have such a table."""
    having = _having(module, table)
    if len(having) > 1:
        raise ConfigError(
            f"{len(having)} parts of {type(module).__name__} have a table `{table}`",
            hint="ask one part, as in `get_vectors(model.item_tower, ...)`",
        )
    vectors: npt.NDArray[np.float32] = having[0].weight(table).detach().float().cpu().numpy().copy()
    return vectors


def write_vectors(module: nn.Module, table: str, path: str | Path) -> None:
    """The vectors of a table to a .npy file, or to a .safetensors file with the one tensor `vectors`."""
    path, vectors_ND = Path(path), get_vectors(module, table)
    if path.suffix == ".npy":
        np.save(path, vectors_ND)
    elif path.suffix == ".safetensors":
        save_file({NAME: torch.from_numpy(vectors_ND)}, path)
    else:
        raise ConfigError(f"`{path}` is neither .npy nor .safetensors")


def freeze_tables(module: nn.Module, *tables: str) -> None:
    """The named tables, or all, learn nothing from now on."""
    _learn(module, tables, False)


def unfreeze_tables(module: nn.Module, *tables: str) -> None:
    """The named tables, or all, learn again."""
    _learn(module, tables, True)


def _learn(module: nn.Module, names: Sequence[str], learns: bool) -> None:
    for name in names or dict.fromkeys(name for tables in _all(module) for name in tables.tables):
        for tables in _having(module, name):
            tables.weight(name).requires_grad_(learns)


def _all(module: nn.Module) -> list[Tables]:
    return [part for part in module.modules() if isinstance(part, Tables)]


def _having(module: nn.Module, table: str) -> list[Tables]:
    everything = _all(module)
    found = [tables for tables in everything if table in tables.tables]
    if not found:
        names = {name for tables in everything for name in tables.tables}
        raise ColumnNotFoundError.of(table, names, where=f"{type(module).__name__}, among its tables,")
    return found


def _read(vectors: Vectors) -> tuple[Tensor, str]:
    """[M, D] in float32, and what messages call it."""
    where = "the vectors"
    if isinstance(vectors, (str, Path)):
        vectors, where = open_vectors(Path(vectors)), f"`{vectors}`"
    if isinstance(vectors, Tensor):
        return vectors.detach().float().cpu(), where
    return _as_tensor(vectors if isinstance(vectors, np.ndarray) else vectors.to_numpy(), where), where


def _as_tensor(array: npt.NDArray[Any], where: str) -> Tensor:
    if not np.issubdtype(array.dtype, np.number) or np.issubdtype(array.dtype, np.complexfloating):
        raise DataError(
            f"{where}: an array of {array.dtype}, where numbers are needed",
            hint="of a frame, the columns that hold the vectors alone; of a list column, `np.stack` of it",
        )
    return torch.from_numpy(np.array(array, dtype=np.float32))


def _check(given_MD: Tensor, weight: Tensor, table: str, where: str, *, by_code: bool) -> None:
    rows, width = weight.shape
    if given_MD.dim() != 2 or given_MD.shape[1] != width or (len(given_MD) != rows and not by_code):
        need = f"(any number, {width})" if by_code else f"({rows}, {width})"
        raise ConfigError(
            f"{where}: {tuple(given_MD.shape)} where the table `{table}` needs {need}",
            hint="`dim` of the model's settings, or of the schema's column, is the width; `codes` says which rows",
        )
    if not bool(given_MD.isfinite().all()):
        row = int((~given_MD.isfinite()).any(1).nonzero()[0])
        raise DataError(f"{where}: row {row} holds a number that is not finite")
    if not by_code and bool(given_MD[PADDING].any()):
        raise DataError(
            f"{where}: row 0 is not zero, but stands for padding",
            hint="row i is that of code i; say `codes` where the rows are of other codes",
        )


def _codes(codes: Codes, rows: int, cardinality: int, table: str) -> Tensor:
    codes_M = torch.as_tensor(codes, dtype=torch.int64).cpu()
    if codes_M.shape != (rows,):
        raise ConfigError(f"{rows} vectors, but codes of {tuple(codes_M.shape)}")
    wrong_M = (codes_M <= PADDING) | (codes_M >= cardinality)
    if bool(wrong_M.any()):
        raise DataError(f"the table `{table}` has the codes 1 to {cardinality - 1}, not {int(codes_M[wrong_M][0])}")
    counts = torch.bincount(codes_M, minlength=cardinality)
    if bool((counts > 1).any()):
        raise DataError(f"the code {int(counts.argmax())} of the table `{table}` is given {int(counts.max())} times")
    return codes_M
