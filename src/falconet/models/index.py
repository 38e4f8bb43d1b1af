"""Which index searches what a retriever gives."""

from __future__ import annotations

from torch import Tensor

from falconet.batch import Batch
from falconet.models.base import Retriever
from falconet.models.closed_form import ItemScorer
from falconet.retrieval.exact import ExactIndex
from falconet.retrieval.faiss import AnnIndex
from falconet.retrieval.scores import ScoreIndex


def index_of(retriever: Retriever, items: Batch, codes: Tensor, *, ann: bool = False) -> ExactIndex | ScoreIndex:
    """The index of a catalogue of item features and codes, to be searched with `retriever.user(...)`.

    `ann`: an approximate one where the retriever has vectors. Raises ConfigError where faiss is not installed then.
    """
    if isinstance(retriever, ItemScorer):
        return ScoreIndex(codes, len(retriever.counts))
    return (AnnIndex if ann else ExactIndex)(retriever.vectors(items), codes)
