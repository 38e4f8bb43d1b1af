"""The approximate index: what it gives is scored, ordered and left out as the exact one does; damage is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from falconet.batch import Ragged
from falconet.errors import ArtifactError, DataError
from falconet.retrieval.exact import ExactIndex
from falconet.retrieval.faiss import AnnIndex

pytest.importorskip("faiss")


def world(items: int = 3_000, width: int = 16, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Vectors of differing lengths around some tastes, as a retriever learns them; codes with gaps."""
    random = torch.Generator().manual_seed(seed)
    tastes = torch.randn(40, width, generator=random)
    vectors = tastes[torch.randint(40, (items,), generator=random)] + 0.5 * torch.randn(items, width, generator=random)
    return vectors * torch.rand(items, 1, generator=random).add(0.5), 3 + 2 * torch.randperm(items, generator=random)


VECTORS, CODES = world()
ANN, EXACT = AnnIndex(VECTORS, CODES), ExactIndex(VECTORS, CODES)
QUERIES = VECTORS[:64] + 0.1


def test_most_of_the_best_are_found_and_their_scores_are_the_exact_ones() -> None:
    assert ANN.recall(QUERIES, 50) > 0.97
    scores, codes = ANN.search(QUERIES, 50)
    assert torch.equal(scores, EXACT.score(QUERIES, codes))
    assert bool((scores[:, 1:] <= scores[:, :-1]).all())
    assert all(len(set(row)) == 50 for row in codes.tolist())


@settings(max_examples=25)
@given(st.integers(1, 60), st.integers(0, 40), st.integers(0, 2**31))
def test_what_is_excluded_never_comes_and_the_list_is_full(k: int, excluded: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    _, best = EXACT.search(QUERIES[:5], max(excluded, 1))
    lists = [best[row, :excluded][torch.rand(excluded, generator=random) < 0.7] for row in range(5)]
    lists = [torch.cat([one, torch.tensor([-1, 0, 10**6])]) for one in lists]  # unknown ones are ignored
    exclude = Ragged(torch.cat(lists), torch.tensor([0, *torch.tensor([len(x) for x in lists]).cumsum(0).tolist()]))
    scores, codes = ANN.search(QUERIES[:5], k, exclude)
    assert codes.shape == (5, k)
    assert bool((codes >= 0).all())
    for row, hidden in zip(codes.tolist(), lists, strict=True):
        assert not set(row) & set(hidden.tolist())
    assert torch.equal(scores, EXACT.score(QUERIES[:5], codes))


def test_filters_and_long_lists_are_searched_exactly() -> None:
    include = CODES[::7]
    for asked in ({"include": include}, {"exclude": Ragged(CODES[:2_900], torch.tensor([0, 2_900]))}):
        found, exact = ANN.search(QUERIES[:1], 30, **asked), EXACT.search(QUERIES[:1], 30, **asked)
        assert all(torch.equal(a, b) for a, b in zip(found, exact, strict=True))
    small = AnnIndex(VECTORS[:20], CODES[:20])
    assert torch.equal(small.search(QUERIES, 25)[1], ExactIndex(VECTORS[:20], CODES[:20]).search(QUERIES, 25)[1])
    assert AnnIndex(VECTORS[:0], CODES[:0]).search(QUERIES, 2)[1].tolist() == [[-1, -1]] * 64


def test_equal_vectors_are_ordered_by_code_and_a_query_of_zeros_is_answered() -> None:
    index = AnnIndex(torch.ones(400, 4), torch.arange(400).flip(0) + 5)
    scores, codes = index.search(torch.ones(1, 4), 10)
    assert codes[0].tolist() == sorted(codes[0].tolist())
    assert bool((scores == 4).all())
    assert (ANN.search(torch.zeros(1, 16), 5)[1] >= 0).all()


def test_a_file_gives_the_same_answers_and_the_same_bytes(tmp_path: Path) -> None:
    ANN.save(tmp_path / "a")
    AnnIndex(VECTORS, CODES).save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    loaded = AnnIndex.load(tmp_path / "a")
    for one, other in zip(loaded.search(QUERIES, 20), ANN.search(QUERIES, 20), strict=True):
        assert torch.equal(one, other)


def test_damage_and_other_files_are_refused(tmp_path: Path) -> None:
    ANN.save(tmp_path / "whole")
    raw = (tmp_path / "whole").read_bytes()
    (tmp_path / "cut").write_bytes(raw[: len(raw) // 2])
    EXACT.save(tmp_path / "exact")
    for name in ("cut", "exact", "nothing"):
        with pytest.raises(ArtifactError, match=name):
            AnnIndex.load(tmp_path / name)
    with pytest.raises(DataError, match="not finite"):
        AnnIndex(VECTORS.clone().fill_(torch.nan), CODES)
    with pytest.raises(DataError, match="do not fit"):
        ANN.search(torch.zeros(1, 3), 2)
