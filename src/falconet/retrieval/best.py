"""The best of many scores, without sorting them all.

Shapes: B rows, N scores of each, W x M of them as a table of M columns, k wanted, P places found.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from falconet.batch import Ragged

_WIDEST = 64  # scores of a column, at most
_COLUMNS = 8  # for each score wanted, at least: then two of the best seldom share one


def near_best(scores_BN: Tensor, k: int, slack_B: Tensor | float = 0.0) -> Ragged:
    """The places of all scores that reach the k-th best of their row, or fall short of it by `slack` at most.

    Ascending by row and place, a few that do not reach it among them; -inf is never there. Scores are float32.

    The best of each column of a table are a few scores, of which the k-th is at most the k-th of all, and only the
    columns whose best reaches it have more to be looked at. Neighbours stand in different columns: where items are
    sorted by popularity the best ones are neighbours.
    """
    rows, items = scores_BN.shape
    if not items:
        return Ragged(scores_BN.new_zeros(0, dtype=torch.int64), torch.zeros(rows + 1, dtype=torch.int64))
    if rows == 1 and scores_BN.device.type == "cpu":
        places = torch.from_numpy(near_best_of_one(scores_BN[0].detach().numpy(), k, float(slack_B)))
        return Ragged(places, torch.tensor([0, len(places)]))
    width = _width(items, k)
    columns = items // width
    table_BWM = scores_BN[:, : width * columns].reshape(rows, width, columns)
    best_BM = table_BWM.amax(1) if width > 1 else table_BWM.squeeze(1)
    border_B = scores_BN.new_full((rows,), -torch.inf)
    if k <= columns:
        border_B = best_BM.topk(k, dim=1, sorted=False).values.amin(1)
    border_B = (border_B - slack_B).clamp_(min=torch.finfo(scores_BN.dtype).min)
    found = [_in_row(*row) for row in zip(table_BWM, best_BM, scores_BN[:, width * columns :], border_B, strict=True)]
    lengths = torch.tensor([0, *map(len, found)], device=scores_BN.device)
    return Ragged(torch.cat(found), lengths.cumsum(0))


def near_best_of_one(scores_N: npt.NDArray[np.float32], k: int, slack: float = 0.0) -> npt.NDArray[np.int64]:
    """The same of one row, in numpy, whose steps begin several times as fast: the places of all that reach it."""
    items = len(scores_N)
    width = _width(items, k)
    columns = items // width
    border: float = -np.inf
    if k <= columns:
        best_M = scores_N[: width * columns].reshape(width, columns).max(0)
        border = float(np.partition(best_M, columns - k)[columns - k]) - slack
    lowest = np.finfo(np.float32).min
    return np.flatnonzero(scores_N >= max(_down(border), lowest))


def _down(border: float) -> np.float32:
    """As a float32 that is no larger: numpy compares in the narrower type, where both are equal."""
    rounded = np.float32(border)
    return np.nextafter(rounded, np.float32(-np.inf)) if float(rounded) > border else rounded


def _width(items: int, k: int) -> int:
    """How many scores stand in a column of the table."""
    return min(max(items // (_COLUMNS * k), 1), _WIDEST)


def _in_row(table_WM: Tensor, best_M: Tensor, rest_R: Tensor, border: Tensor) -> Tensor:
    """The places of a row's scores that reach a border: lines one after the other, then what is left of the last."""
    column_C = (best_M >= border).nonzero().squeeze(1)
    width, columns = table_WM.shape
    if width == 1:
        return column_C
    reach_WC = table_WM.index_select(1, column_C) >= border
    place_WC = torch.arange(0, width * columns, columns, device=column_C.device)[:, None] + column_C
    place_P = place_WC.masked_select(reach_WC)
    if not len(rest_R):
        return place_P
    return torch.cat([place_P, (rest_R >= border).nonzero().squeeze(1) + width * columns])


def best_of(scores_P: Tensor, places: Ragged, k: int) -> tuple[Tensor, Tensor]:
    """The best k of each row, best first, equal ones by place: scores and places, both [B, k].

    `scores_P` are those of `places`, which ascend in each row. Score -inf and place -1 where there are fewer.
    """
    rows = len(places)
    scores_Bk = scores_P.new_full((rows, k), -torch.inf)
    places_Bk = torch.full_like(scores_Bk, -1, dtype=torch.int64)
    if rows == 1:  # as most searches are
        scores_BC, places_BC = scores_P[None], places.values[None]
    else:
        row_P = places.row_of_value()
        inside_P = torch.arange(len(row_P), device=row_P.device) - places.offsets[row_P]
        shape = rows, int(places.lengths.max()) if rows else 0
        scores_BC = scores_P.new_full(shape, -torch.inf).index_put_((row_P, inside_P), scores_P)
        places_BC = torch.full_like(scores_BC, -1, dtype=torch.int64).index_put_((row_P, inside_P), places.values)
    sorted_BC, order_BC = scores_BC.sort(dim=1, descending=True, stable=True)  # stable: ties stay by place
    most = min(k, sorted_BC.shape[1])
    scores_Bk[:, :most] = sorted_BC[:, :most]
    places_Bk[:, :most] = places_BC.gather(1, order_BC[:, :most])
    return scores_Bk, places_Bk
