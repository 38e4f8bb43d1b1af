"""From ids to rows of a table: which ids are distinct, whether the table has them, and reading the rows.

Shapes: N ids, U distinct ids, D width of a table.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from falconet.batch import Feature, Ragged

PADDING = 0
_FILL = 1024
_BLOCK = 1 << 16  # numbers that each thread reads and rounds at once, so that they need not leave its core's cache


def distinct(ids_N: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct ids, ascending, with padding always first, and the place among them of every id.

    >>> distinct(torch.tensor([5, 2, 5]))
    (tensor([0, 2, 5]), tensor([2, 1, 2]))
    """
    sorted_N, order_N = _in_order(ids_N)
    is_new_N = sorted_N.diff(prepend=sorted_N.new_full((1,), PADDING)) != 0
    ids_U = torch.cat([sorted_N.new_full((1,), PADDING), sorted_N[is_new_N]])
    return ids_U, torch.empty_like(order_N).index_copy_(0, order_N, is_new_N.cumsum(0))


def _in_order(x_N: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers from 0 on in ascending order, equal ones as they came, and the place from which each comes."""
    if x_N.device.type != "cpu":
        return torch.sort(x_N, stable=True)
    bits = len(x_N).bit_length()
    keys_N = (x_N << bits) + torch.arange(len(x_N))
    keys_N.numpy().sort()  # ten times as fast as torch's where the processor has AVX-512
    return keys_N >> bits, keys_N & ((1 << bits) - 1)


def sums_of(x_ND: Tensor, place_N: Tensor, places: int) -> Tensor:
    """For each of so many places the sum of the rows that have it, added up in float32 in their order: [places, D]."""
    counts = torch.bincount(place_N, minlength=places)
    return F.embedding_bag(_in_order(place_N)[1], x_ND, counts.cumsum(0) - counts, mode="sum")


def filled(ids_U: Tensor) -> Tensor:
    """Many ids filled up with padding to a multiple of 1,024: for every new shape oneDNN makes new kernels, which takes
    as long as the product."""
    return F.pad(ids_U, (0, filled_length(len(ids_U)) - len(ids_U)), value=PADDING)


def filled_length(ids: int) -> int:
    """How many `filled` makes of so many."""
    return ids if ids < 4 * _FILL else ids + -ids % _FILL


def rows_of(weight: Tensor, ids_U: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of a table in type `dtype`, on the device of the ids: [U, D]."""
    ids = ids_U.to(weight.device)
    if dtype == weight.dtype or weight.is_cuda:
        return weight.index_select(0, ids).to(ids_U.device, dtype)
    rows_UD = weight.new_empty(len(ids), weight.shape[1], dtype=dtype)
    block = max(_BLOCK * torch.get_num_threads() // weight.shape[1], 1)
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
