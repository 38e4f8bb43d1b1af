"""Exact search: every item is scored. Answers up to about a million items in milliseconds, with any filter.

The score of a pair is its dot product, added up in float64 in a fixed order and rounded to float32. So it has the same
bits for any batch, any blocks and any number of threads, and items with equal vectors always tie. A coarser product
finds the candidates: in float32, or of a single query in bytes (narrow.py). Its error is bounded, and whatever may
belong to the answer within that bound is a candidate.
"""

# Shapes: B queries, N items, P candidates of all queries together, D width of the vectors, k results.

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from falconet.batch import Ragged
from falconet.errors import DataError
from falconet.retrieval.best import best_of, near_best
from falconet.retrieval.narrow import Narrow
from falconet.retrieval.places import Places
from falconet.retrieval.single import FEW, Look, Numbers, search_one
from falconet.retrieval.store import load_index, save_index

_BLOCK_NUMBERS = 2**24
"""No tensor of a search holds more numbers than this (unless a single row does)."""

_MAKING = threading.Lock()
"""Of who makes a first look, which takes memory, and time that is measured: one at once, whatever the index."""


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
        self._place_of = Places(self.codes)
        self._narrow: tuple[Narrow | None] | None = None  # made when the first single query comes

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def dim(self) -> int:
        return self.vectors.shape[1]

    def scores(self, queries_BD: Tensor) -> Tensor:
        """The score of every query with every item, [B, N] float32, items in the order of `codes`."""
        queries = self._queries(queries_BD)
        rows = max(1, _BLOCK_NUMBERS // max(1, len(queries) * self.dim))
        blocks = [_dot(queries[:, None], self.vectors[None, i : i + rows]) for i in range(0, max(len(self), 1), rows)]
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
        if len(queries) == 1 and queries.device.type == "cpu":
            return self._search_one(queries, k, exclude, include)
        allowed = None if include is None else self._known(include)
        hidden = None if exclude is None else self._places(exclude.apply(lambda x: x.to(queries.device)))
        few = allowed is not None and len(allowed) * FEW < len(self)
        numbers = max(1, len(allowed) * self.dim if allowed is not None and few else len(self))
        rows = max(1, _BLOCK_NUMBERS // numbers)
        found = [(queries.new_zeros(0, k), torch.zeros(0, k, dtype=torch.int64, device=queries.device))]
        with torch.no_grad(), torch.autocast(queries.device.type, enabled=False):
            for i in range(0, len(queries), rows):
                some, theirs = queries[i : i + rows], None if hidden is None else hidden[i : i + rows]
                if allowed is not None and few:
                    found.append(self._best_of_few(some, k, theirs, allowed))
                else:
                    found.append(self._best(some, k, theirs, allowed))
        scores_Bk, places_Bk = (torch.cat(parts) for parts in zip(*found[len(found) > 1 :], strict=True))
        if len(self):
            places_Bk = torch.where(places_Bk >= 0, self.codes[places_Bk], -1)
        return scores_Bk, places_Bk

    def score(self, queries_BD: Tensor, codes_BK: Tensor) -> Tensor:
        """The scores of given items, as `Index.score` says."""
        queries = self._queries(queries_BD)
        places = self._place_of.of(codes_BK)
        if bool(((places == len(self)) & (codes_BK >= 0)).any()):
            raise DataError(f"the index has no code {int(codes_BK[(places == len(self)) & (codes_BK >= 0)][0])}")
        scores_BK = queries.new_full(codes_BK.shape, -torch.inf)
        rows = max(1, _BLOCK_NUMBERS // max(1, codes_BK.shape[1] * self.dim))
        for i in range(0, len(queries) if len(self) else 0, rows):
            some = places[i : i + rows].clamp(max=len(self) - 1)
            vectors = self.vectors.index_select(0, some.flatten()).view(*some.shape, self.dim)
            scores_BK[i : i + rows] = _dot(queries[i : i + rows, None], vectors)
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
        queries = queries_BD.detach().to(self.vectors.device, torch.float32)
        finite = bool(np.isfinite(queries.numpy()).all()) if queries.device.type == "cpu" else queries.isfinite().all()
        if not finite:
            raise DataError(f"query {int((~queries_BD.isfinite().all(1)).nonzero()[0])} is not finite")
        return queries

    def _known(self, codes: Tensor) -> Tensor:
        """The places of the given codes, ascending, each once; those the index does not have are ignored."""
        places = self._place_of.of(codes.to(self.codes.device))
        there_N = torch.zeros(len(self) + 1, dtype=torch.bool, device=places.device)
        there_N[places] = True
        return there_N[:-1].nonzero().squeeze(1)

    def _places(self, codes: Ragged) -> Ragged:
        """Codes as places in `self.codes`; N where it has no such code."""
        return Ragged(self._place_of.of(codes.values), codes.offsets)

    def _search_one(
        self, query_1D: Tensor, k: int, exclude: Ragged | None, include: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """`search` of one query on the CPU."""
        none = torch.zeros(0, dtype=torch.int64)
        hidden = self._place_of.of(none if exclude is None else exclude.values).numpy()
        allowed = None if include is None else self._place_of.of(include).numpy()
        narrow, query_D = self._narrowed(), query_1D[0].numpy()
        looks: list[Look] = [] if narrow is None else [lambda: narrow.scores(query_D)[:2]]
        looks.append(lambda: self._near_one(query_1D))
        scores_k, places_k = search_one(self.vectors.numpy(), query_D, k, looks, hidden, allowed)
        return torch.from_numpy(scores_k[None]), torch.from_numpy(self._place_of.codes(places_k)[None])

    def _near_one(self, query_1D: Tensor) -> tuple[Numbers, float]:
        """The float32 products of one query, [N], and how far they may be off."""
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            if not bool(query_1D.any()):
                return _first_ones(len(self)).numpy(), 0.0
            return self.vectors.mv(query_1D[0]).numpy(), float(self._error(query_1D))

    def _best(self, queries_BD: Tensor, k: int, hidden: Ragged | None, allowed: Tensor | None) -> tuple[Tensor, Tensor]:
        """Scores and places of the best k, of all items that are not hidden or of those that are allowed."""
        near_BN = queries_BD @ self.vectors.T
        zero_B = ~queries_BD.any(dim=1)
        if bool(zero_B.any()):  # a query of zeros ties with every item: its candidates are the first ones
            near_BN[zero_B] = _first_ones(len(self)).to(near_BN)
        near = near_best(_without(near_BN, hidden, allowed), k, 2 * self._error(queries_BD))
        return self._exactly(queries_BD, near, k)

    def _best_of_few(self, queries_BD: Tensor, k: int, hidden: Ragged | None, allowed: Tensor) -> tuple[Tensor, Tensor]:
        """The same of few items that are allowed."""
        scores_BF = _dot(queries_BD[:, None], self.vectors.index_select(0, allowed)[None])
        if hidden is not None:
            row, place = hidden.row_of_value(), torch.searchsorted(allowed, hidden.values)
            there = torch.zeros_like(place, dtype=torch.bool)
            if len(allowed):
                there = allowed[place.clamp(max=len(allowed) - 1)] == hidden.values
            scores_BF[row[there], place[there]] = -torch.inf
        near = near_best(scores_BF, k)
        scores_P = scores_BF[near.row_of_value(), near.values]
        return best_of(scores_P, Ragged(allowed[near.values], near.offsets), k)

    def _exactly(self, queries_BD: Tensor, near: Ragged, k: int) -> tuple[Tensor, Tensor]:
        """The best k of the candidates by their scores."""
        rows = max(1, _BLOCK_NUMBERS // max(1, self.dim))
        row_P = None if len(queries_BD) == 1 else near.row_of_value()
        blocks = [near.values.new_zeros(0, dtype=torch.float32)]
        for i in range(0, len(near.values), rows):
            vectors_PD = self.vectors.index_select(0, near.values[i : i + rows])
            blocks.append(_dot(queries_BD if row_P is None else queries_BD[row_P[i : i + rows]], vectors_PD))
        return best_of(blocks[-1] if len(blocks) < 3 else torch.cat(blocks), near, k)

    def _narrowed(self) -> Narrow | None:
        if (made := self._narrow) is None:
            with _MAKING:
                made = self._narrow = self._narrow or (Narrow.where_it_pays(self.vectors),)
        return made[0]

    def _error(self, queries_BD: Tensor) -> Tensor:
        """How far a float32 product may be from the score: γ_D·|q|·|v| (Higham 2002, 3.1), with room for roundings."""
        unit = {"highest": 2.0**-24, "high": 2.0**-11, "medium": 2.0**-8}[torch.get_float32_matmul_precision()]
        length_B: Tensor = torch.linalg.vector_norm(queries_BD, dim=1)
        return length_B * ((self.dim + 4) * unit * self._longest)


def _first_ones(items: int) -> Tensor:
    """Scores [N] of which the first are the best."""
    return -torch.arange(items, dtype=torch.float32)


def _without(near_BN: Tensor, hidden: Ragged | None, allowed: Tensor | None) -> Tensor:
    """The scores with -inf where an item is hidden or not allowed."""
    items = near_BN.shape[1]
    if allowed is not None:
        out_N = torch.ones(items, dtype=torch.bool, device=near_BN.device)
        out_N[allowed] = False
        near_BN.masked_fill_(out_N, -torch.inf)
    if hidden is not None:
        known = hidden.values < items
        near_BN[hidden.row_of_value()[known], hidden.values[known]] = -torch.inf
    return near_BN


def _dot(queries_XD: Tensor, vectors_XD: Tensor) -> Tensor:
    """Dot products [X], float32, from exact float64 products added in pairs: the same for any shapes.

    The last dimension comes first, so that what is added lies side by side.
    """
    sums = vectors_XD.movedim(-1, 0).double() * queries_XD.movedim(-1, 0).double()
    while (width := len(sums)) > 1:
        half = (width + 1) // 2
        sums[: width - half] += sums[half:]
        sums = sums[:half]
    return sums.sum(0).float()
