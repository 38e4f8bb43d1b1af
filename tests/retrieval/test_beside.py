"""Items beside an index, and rows of a table that are otherwise: as if all had been one from the start."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from falconet.batch import Ragged
from falconet.errors import DataError
from falconet.retrieval.beside import BesideIndex
from falconet.retrieval.exact import ExactIndex
from falconet.retrieval.overlay import Overlay
from falconet.retrieval.scores import ScoreIndex

SMALL = st.integers(-2, 2)
NONE = torch.zeros(0, dtype=torch.int64)


@settings(deadline=None, max_examples=80)
@given(
    vectors=st.lists(st.tuples(SMALL, SMALL), min_size=2, max_size=40),
    queries=st.lists(st.tuples(SMALL, SMALL), min_size=1, max_size=4),
    k=st.integers(1, 50),
    data=st.data(),
)
def test_it_finds_what_one_index_of_all_would_find(
    vectors: list[tuple[int, int]], queries: list[tuple[int, int]], k: int, data: st.DataObject
) -> None:
    """For any ties, filters, and shares of the items that are new or otherwise."""
    v, q = torch.tensor(vectors).float(), torch.tensor(queries).float()
    codes = torch.tensor(data.draw(st.permutations(range(3, 3 + len(v)))))
    beside = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(v), max_size=len(v))))
    beside[0], beside[1] = True, False
    replaced = torch.tensor(data.draw(st.lists(st.booleans(), min_size=len(v), max_size=len(v)))) & beside
    old = ~beside | replaced
    was = torch.where(replaced[:, None], -v + 1, v)  # what is otherwise had other vectors
    some = st.lists(st.integers(0, 45), max_size=40)
    lists = data.draw(st.none() | st.lists(some, min_size=len(q), max_size=len(q)))
    included = data.draw(st.none() | some)
    asked = (
        k,
        None if lists is None else Ragged.of(lists),
        None if included is None else torch.tensor(included, dtype=torch.int64),
    )
    index = BesideIndex(ExactIndex(was[old], codes[old]), codes[beside], v[beside], codes[replaced])
    want, (scores, found) = ExactIndex(v, codes).search(q, *asked), index.search(q, *asked)
    assert (scores.tolist(), found.tolist()) == (want[0].tolist(), want[1].tolist())
    assert len(index) == len(v)
    every = torch.cat([codes, torch.tensor([-1])]).expand(len(q), -1)
    assert torch.equal(index.score(q, every), ExactIndex(v, codes).score(q, every))


def test_beside_a_graph_new_items_are_found_exactly() -> None:
    pytest.importorskip("faiss")
    from falconet.retrieval.faiss import AnnIndex

    random = torch.Generator().manual_seed(1)
    vectors = torch.randn(1_000, 8, generator=random)
    graph = AnnIndex(vectors[:900], torch.arange(900))
    index = BesideIndex(graph, torch.arange(900, 1_000), vectors[900:], NONE)
    queries = vectors[880:920]
    scores, codes = index.search(queries, 20)
    _, best = ExactIndex(vectors, torch.arange(1_000)).search(queries, 20)
    assert torch.equal(scores, ExactIndex(vectors, torch.arange(1_000)).score(queries, codes))
    new = [set(row[row >= 900].tolist()) for row in best]
    assert sum(map(len, new)) > 20
    assert all(theirs <= set(row) for theirs, row in zip(new, codes.tolist(), strict=True))
    hidden = Ragged(torch.arange(900, 1_000).repeat(40), torch.arange(41) * 100)
    assert int(index.search(queries, 20, hidden)[1].max()) < 900


def test_what_a_model_cannot_tell_apart_has_scores_and_is_not_found() -> None:
    queries = torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    index = BesideIndex(ScoreIndex(torch.tensor([1, 2, 3]), 4), torch.tensor([5, 4]), None, NONE, finds=False)
    assert index.search(queries, 9)[1].tolist() == [[1, 3, 2, *[-1] * 6]]
    assert index.score(queries, torch.tensor([[5, 1, -1, 4]])).tolist() == [[0.0, 3.0, -torch.inf, 0.0]]
    assert len(index) == 5
    ids = BesideIndex(
        ExactIndex(torch.eye(2), torch.tensor([1, 2])), torch.tensor([3]), torch.ones(1, 2), NONE, finds=False
    )
    assert ids.search(torch.ones(1, 2), 3)[1].tolist() == [[1, 2, -1]]
    assert ids.score(torch.ones(1, 2), torch.tensor([[3, 1]])).tolist() == [[2.0, 1.0]]
    with pytest.raises(DataError, match="the index has no code 6"):
        index.score(queries, torch.tensor([[6]]))
    with pytest.raises(DataError, match="items without vectors cannot be found"):
        BesideIndex(ScoreIndex(torch.tensor([1]), 2), torch.tensor([5]), None, NONE)


@given(st.integers(1, 12), st.integers(0, 12), st.integers(0, 4), st.integers(0, 2**31))
def test_rows_over_a_table_are_those_of_the_whole(table: int, changed: int, new: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    rows = torch.randperm(table, generator=random)[:changed].sort().values
    overlay = Overlay(table, rows, new)
    lists = [[7] * (row % 3) + [row] for row in range(table + len(rows) + new)]
    values = torch.tensor([[float(row), -row] for row in range(len(lists))])
    whole = torch.arange(table)
    whole[rows] = torch.arange(len(rows)) + table
    whole = torch.cat([whole, torch.arange(new) + table + len(rows)])
    asked = torch.randint(len(overlay), (20,), generator=random)
    ragged = overlay.take(Ragged.of(lists[:table]), Ragged.of(lists[table:]), asked)
    assert isinstance(ragged, Ragged)
    assert ragged.to_lists() == [lists[place] for place in whole[asked].tolist()]
    assert torch.equal(overlay.take(values[:table], values[table:], asked), values[whole[asked]])  # type: ignore[arg-type]
    assert torch.equal(overlay.spread(values.T[:, :table], values.T[:, table:]), values[whole].T)
    places = [overlay.said(row) for row in range(len(overlay))]
    assert places == [None if place < table else place - table for place in whole.tolist()]
    assert [overlay.row(place) for place in range(len(rows) + new)] == [*rows.tolist(), *range(table, table + new)]
