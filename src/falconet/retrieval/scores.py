"""Search where a query is the scores of all items themselves: what models without vectors give."""

# Shapes: B queries, N items, C codes of the catalogue, k results.

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from falconet.batch import Ragged
from falconet.errors import ArtifactError, DataError
from falconet.retrieval.best import best_of, near_best
from falconet.retrieval.store import load_index, save_index


class ScoreIndex:
    """Items by `codes_N` (int64, distinct), which are their places in a query of `cardinality` scores.

    It is what `ExactIndex` is with a unit vector for each item, without writing these down.
    """

    def __init__(self, codes_N: Tensor, cardinality: int) -> None:
        codes = codes_N.long().sort().values
        if codes.dim() != 1 or (len(codes) and not 0 <= int(codes[0]) <= int(codes[-1]) < cardinality):
            raise DataError(f"codes must be a list of numbers from 0 to {cardinality - 1}")
        if bool((codes[1:] == codes[:-1]).any()):
            raise DataError(f"code {int(codes[1:][codes[1:] == codes[:-1]][0])} is there twice")
        self.codes = codes
        """[N] int64, ascending."""
        self.dim = cardinality

    def __len__(self) -> int:
        return len(self.codes)

    def search(
        self, queries_BC: Tensor, k: int, exclude: Ragged | None = None, include: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The best k items per query, as `Index.search` says. Raises DataError for queries that do not fit."""
        self._check(queries_BC)
        if k < 1:
            raise DataError(f"k must be at least 1, not {k}")
        if exclude is not None and len(exclude) != len(queries_BC):
            raise DataError(f"{len(exclude):,} lists of codes to exclude for {len(queries_BC):,} queries")
        allowed_C = torch.zeros(self.dim, dtype=torch.bool, device=queries_BC.device)
        allowed_C[self.codes if include is None else self.codes[torch.isin(self.codes, include.long())]] = True
        scores_BC = queries_BC.detach().float().masked_fill(~allowed_C, -torch.inf)
        if exclude is not None:
            inside = (exclude.values >= 0) & (exclude.values < self.dim)
            scores_BC[exclude.row_of_value()[inside], exclude.values[inside].long()] = -torch.inf
        near = near_best(scores_BC, k)
        scores_P = scores_BC[near.row_of_value(), near.values]
        return best_of(scores_P, near, k)

    def score(self, queries_BC: Tensor, codes_BK: Tensor) -> Tensor:
        """The scores of given items, as `Index.score` says."""
        self._check(queries_BC)
        strange = (codes_BK >= 0) & ~torch.isin(codes_BK, self.codes)
        if bool(strange.any()):
            raise DataError(f"the index has no code {int(codes_BK[strange][0])}")
        found_BK = queries_BC.detach().float().gather(1, codes_BK.clamp(min=0))
        return found_BK.masked_fill_(codes_BK < 0, -torch.inf)

    def _check(self, queries_BC: Tensor) -> None:
        if queries_BC.dim() != 2 or queries_BC.shape[1] != self.dim:
            raise DataError(f"queries {tuple(queries_BC.shape)} are not the scores of {self.dim} codes")
        if not bool(queries_BC.isfinite().all()):
            raise DataError(f"query {int((~queries_BC.isfinite().all(1)).nonzero()[0])} is not finite")

    def save(self, path: str | Path) -> None:
        """Write the codes to one safetensors file, whole or not at all."""
        save_index(path, "ScoreIndex", {"codes": self.codes}, cardinality=self.dim)

    @classmethod
    def load(cls, path: str | Path) -> ScoreIndex:
        """Read what `save` wrote. Raises ArtifactError for a file that is missing, damaged, or something else."""
        (codes,), said = load_index(path, "ScoreIndex", ("codes",))
        if not isinstance(said.get("cardinality"), int):
            raise ArtifactError(f"`{path}` is not a whole index: it does not say how many codes there are")
        return cls(codes, said["cardinality"])
