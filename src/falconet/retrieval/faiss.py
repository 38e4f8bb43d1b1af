"""Approximate search: a graph of near neighbours (HNSW, by faiss) names candidates, which are then scored exactly.

For catalogues so large that an exact search takes too long. Scores, ties and what is left out are those of the exact
index; what may be missing are items that the graph does not find. Where a filter or long lists of seen items leave the
graph too little to find, the search is exact.

Graphs are searched by distance, so each vector gets one more number that makes all of them equally long: the nearest by
distance is then the one of the largest dot product (Bachrach et al., RecSys 2014).
"""

# Shapes: B queries, N items, C candidates, D width of the vectors, k results.

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from falconet.batch import Ragged
from falconet.errors import ArtifactError, ConfigError
from falconet.retrieval.exact import ExactIndex
from falconet.retrieval.store import load_index, save_index

NEIGHBOURS = 32  # of an item in the graph
BUILD_WIDTH = 200  # candidates looked at for each item while the graph is built
WIDTH = 128  # candidates looked at in a search, at least; otherwise twice as many as are asked for
SPARE = 16  # candidates beyond those asked for
FEW = 4  # a search for more than an Nth of the items is exact


class AnnIndex(ExactIndex):
    """An exact index with a graph over its vectors."""

    def __init__(self, vectors_ND: Tensor, codes_N: Tensor, graph: Any = None) -> None:
        """`graph`: one that was built of these vectors; it is built where there is none.

        Raises ConfigError without faiss, DataError as ExactIndex does.
        """
        super().__init__(vectors_ND, codes_N)
        self._graph = self._built() if graph is None else graph

    def search(
        self, queries_BD: Tensor, k: int, exclude: Ragged | None = None, include: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The best k items that the graph finds, as `Index.search` says; exact where `include` is given."""
        longest = 0 if exclude is None or not len(exclude) else int(exclude.lengths.max())
        count = k + longest + SPARE
        if include is not None or k < 1 or count * FEW > len(self):
            return super().search(queries_BD, k, exclude, include)
        queries = self._queries(queries_BD)
        codes_BC = self._near(queries, count).sort(dim=1).values  # ties go to the smaller code: a stable sort keeps it
        scores_BC = self.score(queries, codes_BC)
        if exclude is not None:
            scores_BC.masked_fill_(_listed(codes_BC, exclude), -torch.inf)
        scores_BC, order_BC = scores_BC.sort(dim=1, descending=True, stable=True)
        scores_Bk, codes_Bk = scores_BC[:, :k].clone(), codes_BC.gather(1, order_BC)[:, :k]
        short = (scores_Bk[:, -1] == -torch.inf).nonzero().squeeze(1)
        if len(short):
            again = None if exclude is None else exclude.take(short)
            scores_Bk[short], codes_Bk[short] = super().search(queries[short], k, again)
        return scores_Bk, torch.where(scores_Bk > -torch.inf, codes_Bk, -1)

    def recall(self, queries_BD: Tensor, k: int) -> float:
        """The share of the exact best k of these queries that the graph finds, mean over the queries."""
        _, found_Bk = self.search(queries_BD, k)
        _, exact_Bk = super().search(queries_BD, k)
        hits_B = (found_Bk[:, :, None] == exact_Bk[:, None, :]).any(dim=2).double().mean(dim=1)
        return float(hits_B.mean())

    def save(self, path: str | Path) -> None:
        """Write vectors, codes and graph to one safetensors file, whole or not at all."""
        graph = torch.from_numpy(needs_faiss().serialize_index(self._graph))
        save_index(path, "AnnIndex", {"vectors": self.vectors, "codes": self.codes, "graph": graph})

    @classmethod
    def load(cls, path: str | Path) -> AnnIndex:
        """Read what `save` wrote. Raises ArtifactError for a file that is missing, damaged, or something else."""
        faiss = needs_faiss()
        (vectors, codes, bits), _ = load_index(path, "AnnIndex", ("vectors", "codes", "graph"))
        try:
            graph = faiss.deserialize_index(bits.numpy())
        except RuntimeError as error:
            raise ArtifactError(f"the graph in `{path}` cannot be read: {error}") from error
        if (graph.ntotal, graph.d) != (len(codes), vectors.shape[1] + 1):
            raise ArtifactError(f"the graph in `{path}` is of {graph.ntotal:,} other vectors")
        return cls(vectors, codes, graph)

    def _built(self) -> Any:
        """The graph of the vectors, by one thread, so that it is the same each time."""
        faiss = needs_faiss()
        lengths_N = torch.linalg.vector_norm(self.vectors.double(), dim=1)
        missing_N = (lengths_N.max() ** 2 - lengths_N**2).clamp(min=0).sqrt() if len(self) else lengths_N
        graph = faiss.IndexHNSWFlat(self.dim + 1, NEIGHBOURS, faiss.METRIC_L2)
        graph.hnsw.efConstruction = BUILD_WIDTH
        threads = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(1)
        try:
            graph.add(torch.cat([self.vectors, missing_N[:, None].float()], dim=1).cpu().numpy())
        finally:
            faiss.omp_set_num_threads(threads)
        return graph

    def _near(self, queries_BD: Tensor, count: int) -> Tensor:
        """Codes of the items that the graph finds; -1 where it finds fewer."""
        padded = torch.nn.functional.pad(queries_BD, (0, 1)).cpu().numpy()
        asked = needs_faiss().SearchParametersHNSW(efSearch=max(WIDTH, 2 * count))
        places = torch.from_numpy(self._graph.search(padded, count, params=asked)[1])
        return torch.where(places < 0, -1, self.codes[places.clamp(min=0)])


def _listed(codes_BC: Tensor, lists: Ragged) -> Tensor:
    """Whether each code is in the list of its row."""
    most = max(int(codes_BC.max()) if codes_BC.numel() else 0, int(lists.values.max()) if len(lists.values) else 0) + 2
    row_of_value = lists.row_of_value().long()
    keys = row_of_value * most + lists.values.long().clamp(min=-1) + 1
    rows_B1 = torch.arange(len(codes_BC)).unsqueeze(1)
    return torch.isin(rows_B1 * most + codes_BC + 1, keys) & (codes_BC >= 0)


def needs_faiss() -> Any:
    """The package faiss. Raises ConfigError where it is not installed."""
    try:
        import faiss
    except ImportError as error:
        raise ConfigError("an approximate index needs faiss", hint='pip install "falconet[ann]"') from error
    return faiss
