"""Exact search: every item is scored. Answers up to about a million items in milliseconds, with any filter.

The score of a pair is its dot product, added up in float64 in a fixed order and rounded to float32. So it has the same
bits for any batch, any blocks and any number of threads, and items with equal vectors always tie. A matrix product in
float32 finds the candidates; its rounding error is bounded, and a query whose candidates may lack a part of the answer
gets more of them.
"""

# Shapes: B queries, N items, C candidates, D width of the vectors, k results.

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from falconet.batch import Ragged
from falconet.errors import DataError
from falconet.retrieval.store import load_index, save_index

_BLOCK_ITEMS = 65_536
_BLOCK_NUMBERS = 2**24
"""No tensor of a search holds more numbers than this (unless a single row does)."""
_SPARE = 16
"""Candidates beyond k, so that a near tie at the border seldom needs a second look."""


class ExactIndex:
    """Items by `vectors_ND` (float32) and `codes_N` (int64, distinct). Raises DataError for anything else."""

    def __init__(self, vectors_ND: Tensor, codes_N: Tensor) -> None:
        if vectors_ND.dim() != 2 or codes_N.shape != vectors_ND.shape[:1]:
            raise DataError(f"vectors {tuple(vectors_ND.shape)} need one code each, not {tuple(codes_N.shape)}")
        if not bool(vectors_ND.isfinite().all()):
            bad = codes_N[~vectors_ND.isfinite().all(1)]
            raise DataError(f"{len(bad):,} vectors are not finite, the first of code {int(bad[0])}")
        if len(codes_N) and int(codes_N.min()) < 0:
            raise DataError(f"codes must not be negative, not {int(codes_N.min())}", hint="-1 stands for no item")
        codes, order = codes_N.long().sort()
        if bool((codes[1:] == codes[:-1]).any()):
            raise DataError(f"code {int(codes[1:][codes[1:] == codes[:-1]][0])} has two vectors")
        self.codes = codes
        """[N] int64, ascending."""
        self.vectors = vectors_ND.detach().float().index_select(0, order).contiguous()
        """[N, D] float32, in the order of `codes`."""
        self._longest = float(torch.linalg.vector_norm(self.vectors, dim=1).max()) if len(codes) else 0.0

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def dim(self) -> int:
        return self.vectors.shape[1]

    def scores(self, queries_BD: Tensor) -> Tensor:
        """The score of every query with every item, [B, N] float32, items in the order of `codes`."""
        queries = self._queries(queries_BD)
        rows = max(1, _BLOCK_NUMBERS // max(1, len(queries) * self.dim))
        blocks = [_dot(queries, self.vectors[None, i : i + rows]) for i in range(0, max(len(self), 1), rows)]
        return torch.cat(blocks, dim=1)

    def search(
        self, queries_BD: Tensor, k: int, exclude: Ragged | None = None, include: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The best k items per query, as `Index.search` says. Raises DataError for queries that do not fit."""
        queries = self._queries(queries_BD)
        if k < 1:
            raise DataError(f"k must be at least 1, not {k}")
        if exclude is not None and len(exclude) != len(queries):
            raise DataError(f"{len(exclude):,} lists of codes to exclude for {len(queries):,} queries")
        if include is not None:
            return self._only(include).search(queries, k, exclude)
        scores_Bk = queries.new_full((len(queries), k), -torch.inf)
        codes_Bk = torch.full_like(scores_Bk, -1, dtype=torch.int64)
        most = min(k, len(self))
        if most and len(queries):
            hidden = None if exclude is None else self._places(exclude.apply(lambda x: x.to(queries.device)))
            with torch.no_grad(), torch.autocast(queries.device.type, enabled=False):
                scores, places = self._best(queries, most, hidden, most + _SPARE)
            scores_Bk[:, :most] = scores
            codes_Bk[:, :most] = torch.where(scores > -torch.inf, self.codes[places], -1)
        return scores_Bk, codes_Bk

    def score(self, queries_BD: Tensor, codes_BK: Tensor) -> Tensor:
        """The scores of given items, as `Index.score` says."""
        queries = self._queries(queries_BD)
        places = self._places(Ragged(codes_BK.flatten(), torch.tensor([0, codes_BK.numel()]))).values.view_as(codes_BK)
        if bool(((places == len(self)) & (codes_BK >= 0)).any()):
            raise DataError(f"the index has no code {int(codes_BK[(places == len(self)) & (codes_BK >= 0)][0])}")
        scores_BK = queries.new_full(codes_BK.shape, -torch.inf)
        rows = max(1, _BLOCK_NUMBERS // max(1, codes_BK.shape[1] * self.dim))
        for i in range(0, len(queries) if len(self) else 0, rows):
            vectors = self.vectors[places[i : i + rows].clamp(max=len(self) - 1)]
            scores_BK[i : i + rows] = _dot(queries[i : i + rows], vectors)
        return scores_BK.masked_fill_(codes_BK < 0, -torch.inf)

    def save(self, path: str | Path) -> None:
        """Write vectors and codes to one safetensors file, whole or not at all."""
        save_index(path, "ExactIndex", {"vectors": self.vectors, "codes": self.codes})

    @classmethod
    def load(cls, path: str | Path) -> ExactIndex:
        """Read what `save` wrote. Raises ArtifactError for a file that is missing, damaged, or something else."""
        (vectors, codes), _ = load_index(path, "ExactIndex", ("vectors", "codes"))
        return cls(vectors, codes)

    def _queries(self, queries_BD: Tensor) -> Tensor:
        if queries_BD.dim() != 2 or queries_BD.shape[1] != self.dim:
            raise DataError(f"queries {tuple(queries_BD.shape)} do not fit vectors of width {self.dim}")
        if not bool(queries_BD.isfinite().all()):
            raise DataError(f"query {int((~queries_BD.isfinite().all(1)).nonzero()[0])} is not finite")
        return queries_BD.detach().to(self.vectors.device, torch.float32)

    def _only(self, codes: Tensor) -> ExactIndex:
        """The index of the given codes alone; those it does not have are ignored."""
        wanted = torch.unique(codes.to(self.codes.device).long())
        places = self._places(Ragged(wanted, torch.tensor([0, len(wanted)]))).values
        known = places[places < len(self)]
        return ExactIndex(self.vectors[known], self.codes[known])

    def _places(self, codes: Ragged) -> Ragged:
        """Codes as places in `self.codes`; N where it has no such code."""
        if not len(self):
            return Ragged(torch.zeros_like(codes.values, dtype=torch.int64), codes.offsets)
        values = codes.values.long()
        places = torch.searchsorted(self.codes, values)
        known = self.codes[places.clamp(max=len(self) - 1)] == values
        return Ragged(torch.where(known, places, len(self)), codes.offsets)

    def _best(self, queries_BD: Tensor, k: int, hidden: Ragged | None, candidates: int) -> tuple[Tensor, Tensor]:
        """Scores and places of the best k ≤ N, block by block; -inf where an item is hidden."""
        candidates = min(candidates, len(self))
        rows = max(1, _BLOCK_NUMBERS // max(min(len(self), _BLOCK_ITEMS), candidates * self.dim))
        blocks = [
            self._best_of_block(
                queries_BD[i : i + rows], k, None if hidden is None else hidden[i : i + rows], candidates
            )
            for i in range(0, len(queries_BD), rows)
        ]
        return torch.cat([scores for scores, _ in blocks]), torch.cat([places for _, places in blocks])

    def _best_of_block(
        self, queries_BD: Tensor, k: int, hidden: Ragged | None, candidates: int
    ) -> tuple[Tensor, Tensor]:
        near_BC, places_BC = self._candidates(queries_BD, hidden, candidates)
        places_BC, order_BC = places_BC.sort(dim=1)
        exact_BC = _dot(queries_BD, self.vectors[places_BC])
        exact_BC.masked_fill_(near_BC.gather(1, order_BC) == -torch.inf, -torch.inf)
        scores_BC, order_BC = exact_BC.sort(
            dim=1, descending=True, stable=True
        )  # stable: ties stay by place, so by code
        scores_Bk, places_Bk = scores_BC[:, :k], places_BC.gather(1, order_BC[:, :k])
        last_B, border_B = near_BC[:, -1], near_BC[:, k - 1]
        unsure_B = (last_B >= border_B - 2 * self._error(queries_BD)) & (last_B > -torch.inf)
        if candidates < len(self) and bool(unsure_B.any()):
            again = unsure_B.nonzero().squeeze(1)
            hidden = None if hidden is None else hidden.take(again)
            scores_Bk[again], places_Bk[again] = self._best(queries_BD[again], k, hidden, 8 * candidates)
        return scores_Bk, places_Bk

    def _candidates(self, queries_BD: Tensor, hidden: Ragged | None, count: int) -> tuple[Tensor, Tensor]:
        """The largest `count` float32 products per query, largest first, and their places."""
        zero_B = ~queries_BD.any(dim=1)
        found: list[tuple[Tensor, Tensor]] = []
        for first in range(0, len(self), _BLOCK_ITEMS):
            block = self.vectors[first : first + _BLOCK_ITEMS]
            near_BN = queries_BD @ block.T
            # a query of zeros ties with every item: its candidates are the first ones
            near_BN[zero_B] = -torch.arange(first, first + len(block), dtype=near_BN.dtype, device=near_BN.device)
            if hidden is not None:
                inside = (hidden.values >= first) & (hidden.values < first + len(block))
                near_BN[hidden.row_of_value()[inside], hidden.values[inside] - first] = -torch.inf
            near, places = near_BN.topk(min(count, len(block)), dim=1)
            found.append((near, places + first))
        near_BC, order_BC = torch.cat([near for near, _ in found], dim=1).topk(count, dim=1)
        return near_BC, torch.cat([places for _, places in found], dim=1).gather(1, order_BC)

    def _error(self, queries_BD: Tensor) -> Tensor:
        """How far a float32 product may be from the score: γ_D·|q|·|v| (Higham 2002, 3.1), with room for roundings."""
        unit = {"highest": 2.0**-24, "high": 2.0**-11, "medium": 2.0**-8}[torch.get_float32_matmul_precision()]
        length_B: Tensor = torch.linalg.vector_norm(queries_BD, dim=1)
        return length_B * ((self.dim + 4) * unit * self._longest)


def _dot(queries_BD: Tensor, vectors_BCD: Tensor) -> Tensor:
    """Dot products [B, C], float32, from exact float64 products added in pairs: the same for any shapes."""
    sums = vectors_BCD.double() * queries_BD.double()[:, None]
    while (width := sums.shape[2]) > 1:
        half = (width + 1) // 2
        sums[..., : width - half] += sums[..., half:]
        sums = sums[..., :half]
    return sums.sum(dim=2).float()
