"""What an index of items must give, whatever is behind it."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from falconet.batch import Ragged


class Index(Protocol):
    """Finds the items whose vectors have the largest dot product with a query."""

    def __len__(self) -> int:
        """Number of items."""
        ...

    def search(
        self, queries_BD: Tensor, k: int, exclude: Ragged | None = None, include: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Scores (float32) and codes (int64) of the best k items per query, both [B, k].

        Best first, equal scores by ascending code; score -inf and code -1 where fewer than k survive. `exclude`: codes
        per query, never returned; unknown ones are ignored. `include`: the only codes that may be returned, for all
        queries; None allows all.
        """
        ...

    def score(self, queries_BD: Tensor, codes_BK: Tensor) -> Tensor:
        """The scores of given items for each query, float32 of [B, K], the bits that `search` gives; -inf for code -1.

        Raises DataError for another code that the index does not have.
        """
        ...
