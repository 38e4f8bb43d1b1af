"""An index with other items beside it, which are searched exactly: what is new or otherwise since it was built."""

# Shapes: B queries, M items beside the index, D width of the vectors, K items, k results.

from __future__ import annotations

import torch
from torch import Tensor

from falconet.batch import Ragged
from falconet.errors import DataError
from falconet.retrieval.exact import ExactIndex
from falconet.retrieval.scores import ScoreIndex


class BesideIndex:
    """Finds the items of an index and others, as `Index.search` says; nothing of the index is copied."""

    def __init__(
        self,
        index: ExactIndex | ScoreIndex,
        codes_M: Tensor,
        vectors_MD: Tensor | None,
        replaced: Tensor,
        *,
        finds: bool = True,
    ) -> None:
        """`codes_M`: of the others, int64; `vectors_MD` theirs, None where a model has none: then they score 0.

        `replaced`: the codes of the index, among `codes_M`, whose vectors there hold no more. `finds`: whether a search
        may find the others; else they only have scores.
        """
        if vectors_MD is None and (finds or len(replaced)):
            raise DataError("items without vectors cannot be found, and replace none")
        self.index, self.finds = index, finds
        self.others = None if vectors_MD is None else ExactIndex(vectors_MD, codes_M)
        """The items beside the index, where they have vectors."""
        self._codes, self._replaced = codes_M.sort().values, replaced
        if self.others is not None and len(codes_M):
            self.others.search(self.others.vectors[:1], 1)  # what the first one prepares, so that no answer waits

    def __len__(self) -> int:
        return len(self.index) + len(self._codes) - len(self._replaced)

    def search(
        self, queries_BD: Tensor, k: int, exclude: Ragged | None = None, include: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The best k items of both, as `Index.search` says."""
        scores_BK, codes_BK = self._of_index(queries_BD, k, exclude, include)
        if self.others is None or not self.finds:
            return scores_BK[:, :k], codes_BK[:, :k]
        theirs = self.others.search(queries_BD, min(k, len(self.others)), exclude, include)
        scores_BK, codes_BK = (torch.cat(both, dim=1) for both in zip((scores_BK, codes_BK), theirs, strict=True))
        codes_BK, order_BK = codes_BK.sort(dim=1)  # ties go to the smaller code: a stable sort keeps it
        scores_BK, best_BK = scores_BK.gather(1, order_BK).sort(dim=1, descending=True, stable=True)
        return scores_BK[:, :k], codes_BK.gather(1, best_BK)[:, :k]

    def _of_index(
        self, queries_BD: Tensor, k: int, exclude: Ragged | None, include: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """At least k items of the index that hold, in any order; -inf and -1 where fewer are left."""
        if include is not None:
            include = include[~torch.isin(include, self._replaced)]
            return self.index.search(queries_BD, k, exclude, include)
        asked = k + min(k, len(self._replaced))
        scores_BK, codes_BK = self.index.search(queries_BD, asked, exclude)
        if asked == k:
            return scores_BK, codes_BK
        old_BK = torch.isin(codes_BK, self._replaced)
        short = ((codes_BK[:, -1] >= 0) & ((~old_BK).sum(1) < k)).nonzero().squeeze(1)
        scores_BK, codes_BK = scores_BK.masked_fill(old_BK, -torch.inf), codes_BK.masked_fill(old_BK, -1)
        if len(short):  # nearly all that was found is otherwise by now
            hold = self.index.codes[~torch.isin(self.index.codes, self._replaced)]
            again = None if exclude is None else exclude.take(short)
            scores_BK[short], codes_BK[short] = self.index.search(queries_BD[short], asked, again, hold)
        scores_BK, best_BK = scores_BK.sort(dim=1, descending=True, stable=True)
        return scores_BK[:, :k], codes_BK.gather(1, best_BK)[:, :k]

    def score(self, queries_BD: Tensor, codes_BK: Tensor) -> Tensor:
        """The scores of given items, as `Index.score` says."""
        theirs_BK = torch.isin(codes_BK, self._codes)
        scores_BK = self.index.score(queries_BD, codes_BK.masked_fill(theirs_BK, -1))
        if self.others is None:
            return scores_BK.masked_fill(theirs_BK, 0.0)
        return torch.where(theirs_BK, self.others.score(queries_BD, codes_BK.masked_fill(~theirs_BK, -1)), scores_BK)
