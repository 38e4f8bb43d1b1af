"""From ids to rows of a table: which ids are distinct, whether the table has them, and reading the rows.

Shapes: N ids, U distinct ids, D width of a table.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from falconet.batch import Feature, Ragged

PADDING = 0
_DIRECT = 64  # a table of up to this many rows per id is cheaper to mark than the ids are to sort
_FILL = 1024
_BLOCK = 1 << 18  # numbers that are read and rounded at once, so that they need not leave the processor's cache


def distinct(ids_N: Tensor, cardinality: int) -> tuple[Tensor, Tensor]:
    """The distinct ids, ascending, with padding always first, and the place among them of every id.

    >>> distinct(torch.tensor([5, 2, 5]), 10)
    (tensor([0, 2, 5]), tensor([2, 1, 2]))
    """
    if cardinality > _DIRECT * len(ids_N):
        ids_U, place_N = torch.unique(torch.cat([ids_N.new_zeros(1), ids_N]), return_inverse=True)
        return ids_U, place_N[1:]
    seen = torch.zeros(cardinality, dtype=torch.bool, device=ids_N.device)
    seen[PADDING] = True
    seen.index_fill_(0, ids_N, True)
    ids_U = seen.nonzero().squeeze(1)
    place = torch.empty(cardinality, dtype=torch.int64, device=ids_N.device)
    place[ids_U] = torch.arange(len(ids_U), device=ids_N.device)
    return ids_U, place.index_select(0, ids_N)


def filled(ids_U: Tensor) -> Tensor:
    """Many ids filled up with padding to a multiple of 1,024: for every new shape oneDNN makes new kernels, which takes
    as long as the product."""
    missing = -len(ids_U) % _FILL
    return ids_U if len(ids_U) < 4 * _FILL else F.pad(ids_U, (0, missing), value=PADDING)


def rows_of(weight: Tensor, ids_U: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of a table in type `dtype`, on the device of the ids: [U, D]."""
    ids = ids_U.to(weight.device)
    if dtype == weight.dtype or weight.is_cuda:
        return weight.index_select(0, ids).to(ids_U.device, dtype)
    rows_UD = weight.new_empty(len(ids), weight.shape[1], dtype=dtype)
    block = max(_BLOCK // weight.shape[1], 1)
    for some, there in zip(torch.split(ids, block), torch.split(rows_UD, block), strict=True):
        there.copy_(weight.index_select(0, some))
    return rows_UD.to(ids_U.device)


def ids_of(feature: Feature) -> Tensor:
    values = feature.values if isinstance(feature, Ragged) else feature.reshape(-1)
    return values.to(torch.int64)


def check_range(name: str, ids_N: Tensor, cardinality: int) -> None:
    if ids_N.is_cuda or not len(ids_N):  # on a GPU the look would wait for the device
        return
    low, high = (int(x) for x in torch.aminmax(ids_N))
    if low < 0 or high >= cardinality:
        raise IndexError(
            f"column `{name}` holds the id {low if low < 0 else high}, its table has the rows 0 to {cardinality - 1} "
            f"(cardinality {cardinality}); the model was made for another fit of the features"
        )
