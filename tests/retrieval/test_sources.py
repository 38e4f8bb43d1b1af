"""Several retrievers as one, on lists short enough to merge by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from falconet.batch import Batch, Ragged
from falconet.errors import ConfigError, DataError
from falconet.retrieval.exact import ExactIndex
from falconet.retrieval.index import Index
from falconet.retrieval.scores import ScoreIndex
from falconet.retrieval.sources import Found, Source, Sources, fuse

CODES = torch.tensor([3, 4, 5, 6, 7])
NOBODY = Batch({}, {}, 1, 1)


@dataclass
class Says:
    """A retriever that says the same of everybody."""

    query: Tensor

    def user(self, batch: Batch) -> Tensor:
        return self.query.expand(batch.rows, -1)


def exact(name: str, scores: Sequence[float], weight: float = 1.0) -> Source:
    """A source that gives items 3 to 7 these scores, by vectors of one number."""
    return Source(name, Says(torch.ones(1, 1)), ExactIndex(torch.tensor(scores)[:, None], CODES), weight)


def scored(name: str, scores: Sequence[float], weight: float = 1.0) -> Source:
    """The same by a query of all scores."""
    query = torch.cat([torch.zeros(3), torch.tensor(scores)])[None]
    return Source(name, Says(query), ScoreIndex(CODES, 8), weight)


FIRST = (5.0, 4.0, 3.0, 2.0, 1.0)
SECOND = (0.1, 0.2, 0.9, 0.3, 0.8)  # order: 5 7 6 4 3


def test_one_source_gives_its_own_list() -> None:
    found = Sources([exact("a", FIRST)]).search(NOBODY, 3)
    assert found.codes.tolist() == [[3, 4, 5]]
    assert found.scores.tolist() == [[5.0, 4.0, 3.0]]
    assert torch.equal(found.of_sources[:, :, 0], found.scores)
    assert found.places.tolist() == [[[1], [2], [3]]]


@pytest.mark.parametrize("second", [exact, scored])
def test_lists_become_one_by_their_places_and_all_score_all(second: type) -> None:
    found = Sources([exact("a", FIRST), second("b", SECOND)]).search(NOBODY, 3)  # 3 4 5 and 5 7 6
    assert found.codes.tolist() == [[5, 3, 4]]  # 1/63 + 1/61, then 1/61, then 1/62, a tie with 7 that the code decides
    expected = [61 / 2 * share for share in (1 / 63 + 1 / 61, 1 / 61, 1 / 62)]
    assert found.scores[0].tolist() == pytest.approx(expected, rel=1e-6)
    assert found.of_sources[0].tolist() == [pytest.approx(x) for x in ([3.0, 0.9], [5.0, 0.1], [4.0, 0.2])]
    assert found.places.tolist() == [[[3, 1], [1, 4], [2, 4]]]  # 4: not among the 3 it was asked for


def test_a_weight_of_zero_names_nothing_by_itself() -> None:
    found = Sources([exact("a", FIRST), exact("b", SECOND, 0.0)]).search(NOBODY, 3)
    assert found.codes.tolist() == [[3, 4, 5]]
    assert found.of_sources[0, :, 1].tolist() == pytest.approx([0.1, 0.2, 0.9])
    heavy = Sources([exact("a", FIRST), exact("b", SECOND, 3.0)]).search(NOBODY, 3)
    assert heavy.codes.tolist() == [[5, 7, 6]]
    few, more = torch.tensor([[3, -1, -1]]), torch.tensor([[4, 3, 5]])
    codes, scores = fuse([few, more], [1.0, 0.0], 3)
    assert codes.tolist() == [[3, -1, -1]]
    assert scores.tolist() == [[1.0, -torch.inf, -torch.inf]]


def test_what_is_excluded_or_not_included_is_in_no_list() -> None:
    both = Sources([exact("a", FIRST), scored("b", SECOND)])
    found = both.search(NOBODY, 3, Ragged.of([[5, 3]]), torch.tensor([3, 4, 5, 7]))
    assert found.codes.tolist() == [[4, 7, -1]]
    assert found.scores[0, 2] == found.of_sources[0, 2, 0] == found.of_sources[0, 2, 1] == -torch.inf
    assert found.take(found.codes[0] >= 0).codes.tolist() == [[4, 7]]


@given(st.lists(st.permutations(range(6)), min_size=1, max_size=3), st.integers(1, 8))
def test_fusion_equals_counting_by_hand(orders: list[list[int]], k: int) -> None:
    lists = [torch.tensor([order[:4]]) for order in orders]
    weights = [1.0, 0.5, 2.0][: len(orders)]
    codes, scores = fuse(lists, weights, k)
    total: dict[int, float] = {}
    for order, weight in zip(orders, weights, strict=True):
        for place, code in enumerate(order[:4], 1):
            total[code] = total.get(code, 0.0) + weight * 61 / (60 + place) / sum(weights)
    best = sorted(total, key=lambda code: (-round(total[code], 7), code))[:k]
    kept = codes[0][codes[0] >= 0].tolist()
    assert kept == best
    assert scores[0][: len(best)].tolist() == pytest.approx([total[code] for code in best])
    assert not scores[0][len(best) :].isfinite().any()


def test_a_users_candidates_do_not_depend_on_who_else_asks() -> None:
    torch.manual_seed(0)
    queries, vectors = torch.randn(5, 4), torch.randn(20, 4)
    index: Index = ExactIndex(vectors, torch.arange(20))

    class Rows:
        def user(self, batch: Batch) -> Tensor:
            rows = batch.features["row"]
            assert isinstance(rows, Tensor)
            return queries[rows]

    class Turned(Rows):
        def user(self, batch: Batch) -> Tensor:
            return super().user(batch).flip(1)

    both = Sources([Source("a", Rows(), index), Source("b", Turned(), index)])
    whole = both.search(Batch.of({"row": torch.arange(5)}), 6)
    for row in range(5):
        alone = both.search(Batch.of({"row": torch.tensor([row])}), 6)
        for name in ("codes", "scores", "of_sources", "places"):
            assert torch.equal(getattr(alone, name)[0], getattr(whole, name)[row])


@pytest.mark.parametrize("make", [exact, scored])
def test_scores_of_given_items_have_the_bits_of_the_search(make: type) -> None:
    source = make("a", SECOND)
    query = source.retriever.user(NOBODY)
    scores, codes = source.index.search(query, 5)
    assert torch.equal(source.index.score(query, codes), scores)
    assert source.index.score(query, torch.tensor([[-1, 4]]))[0, 0] == -torch.inf
    with pytest.raises(DataError, match="the index has no code 2"):
        source.index.score(query, torch.tensor([[3, 2]]))


def test_wrong_sources_are_refused() -> None:
    with pytest.raises(ConfigError, match="there is no retriever"):
        Sources([])
    with pytest.raises(ConfigError, match="two retrievers are called `a`"):
        Sources([exact("a", FIRST), exact("a", SECOND)])
    with pytest.raises(ConfigError, match="the weights of all retrievers are 0"):
        Sources([exact("a", FIRST, 0.0), exact("b", SECOND, 0.0)])
    with pytest.raises(ConfigError, match="the weight of the retriever `a` is nan"):
        exact("a", FIRST, float("nan"))


def test_one_retrievers_list_says_where_items_stand() -> None:
    found = Found.of_one(torch.tensor([[5, 3], [3, -1]]), torch.tensor([[2.0, 1.0], [1.0, -torch.inf]]))
    assert found.places[:, :, 0].tolist() == [[1, 2], [1, 2]]
    assert found.asked == 2
