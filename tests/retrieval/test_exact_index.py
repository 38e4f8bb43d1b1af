"""Exact search: brute force's answer, ties and filters included, the same bits however it is cut."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from falconet.batch import Ragged
from falconet.errors import ArtifactError, DataError
from falconet.retrieval import exact
from falconet.retrieval.exact import ExactIndex
from falconet.retrieval.index import Index
from falconet.retrieval.store import save_index

Lists = tuple[list[list[float]], list[list[int]]]
NOTHING = float("-inf")


def brute_force(
    vectors: torch.Tensor,
    codes: torch.Tensor,
    queries: torch.Tensor,
    k: int,
    exclude: list[list[int]] | None = None,
    include: list[int] | None = None,
) -> Lists:
    all_scores, all_codes = [], []
    for i, query in enumerate(queries):
        allowed = [
            (-float(vector.double() @ query.double()), int(code))
            for vector, code in zip(vectors, codes, strict=True)
            if (exclude is None or code not in exclude[i]) and (include is None or code in include)
        ]
        best = sorted(allowed)[:k]
        all_scores.append([-score for score, _ in best] + [NOTHING] * (k - len(best)))
        all_codes.append([code for _, code in best] + [-1] * (k - len(best)))
    return all_scores, all_codes


def lists(found: tuple[torch.Tensor, torch.Tensor]) -> Lists:
    return found[0].tolist(), found[1].tolist()


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_best_come_first_and_ties_by_ascending_code() -> None:
    index: Index = ExactIndex(torch.tensor([[1.0], [3.0], [2.0], [3.0], [3.0]]), torch.tensor([5, 9, 7, 2, 4]))
    scores, codes = index.search(torch.tensor([[1.0], [-1.0]]), 2)
    assert (scores.dtype, codes.dtype) == (torch.float32, torch.int64)
    assert lists((scores, codes)) == ([[3, 3], [-1, -2]], [[2, 4], [5, 7]])  # 9 ties too, at the border
    assert len(index) == 5


def test_fewer_than_k_are_padded() -> None:
    index = ExactIndex(torch.tensor([[1.0], [2.0]]), torch.tensor([3, 4]))
    assert lists(index.search(torch.tensor([[1.0]]), 4)) == ([[2, 1, NOTHING, NOTHING]], [[4, 3, -1, -1]])
    excluded = index.search(torch.tensor([[1.0], [1.0]]), 2, exclude=Ragged.of([[4], [3, 4]]))
    assert lists(excluded) == ([[1, NOTHING], [NOTHING, NOTHING]], [[3, -1], [-1, -1]])


def test_unknown_codes_in_filters_are_ignored() -> None:
    index = ExactIndex(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([3, 5, 7]))
    query = torch.tensor([[1.0]])
    assert index.search(query, 3, exclude=Ragged.of([[-1, 0, 4, 99, 5, 5]]))[1].tolist() == [[7, 3, -1]]
    assert index.search(query, 3, include=torch.tensor([99, 3, 3, -5, 4]))[1].tolist() == [[3, -1, -1]]


def test_an_empty_include_allows_nothing_and_none_allows_all() -> None:
    index = ExactIndex(torch.tensor([[1.0], [2.0]]), torch.tensor([3, 5]))
    query = torch.tensor([[1.0]])
    assert lists(index.search(query, 2, include=torch.tensor([], dtype=torch.int64))) == ([[NOTHING] * 2], [[-1, -1]])
    assert index.search(query, 2, include=None)[1].tolist() == [[5, 3]]
    assert index.search(query, 2, include=torch.tensor([3, 5]), exclude=Ragged.of([[5]]))[1].tolist() == [[3, -1]]


def test_three_survivors_of_a_filter_are_three_items() -> None:
    index = ExactIndex(random(500, 8), torch.arange(500))
    _, codes = index.search(random(2, 8, seed=1), 10, include=torch.tensor([40, 7, 300]))
    assert [sorted(row[:3]) for row in codes.tolist()] == [[7, 40, 300]] * 2
    assert codes[:, 3:].tolist() == [[-1] * 7] * 2


def test_an_empty_index_and_no_queries_work() -> None:
    empty = ExactIndex(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    found = empty.search(torch.ones(1, 3), 2, exclude=Ragged.of([[1]]), include=torch.tensor([1]))
    assert lists(found) == ([[NOTHING] * 2], [[-1, -1]])
    assert empty.scores(torch.ones(1, 3)).shape == (1, 0)
    scores, codes = ExactIndex(torch.ones(4, 3), torch.arange(4)).search(torch.zeros(0, 3), 2, exclude=Ragged.of([]))
    assert (scores.shape, codes.shape) == ((0, 2), (0, 2))
    assert lists(ExactIndex(torch.zeros(2, 0), torch.tensor([7, 4])).search(torch.zeros(1, 0), 1)) == ([[0]], [[4]])


SMALL = st.integers(-2, 2)


@settings(deadline=None, max_examples=60)
@given(
    vectors=st.lists(st.tuples(SMALL, SMALL), min_size=1, max_size=60),
    queries=st.lists(st.tuples(SMALL, SMALL), min_size=1, max_size=5),
    k=st.integers(1, 70),
    data=st.data(),
)
def test_search_is_brute_force_for_any_ties_and_filters(
    vectors: list[tuple[int, int]], queries: list[tuple[int, int]], k: int, data: st.DataObject
) -> None:
    codes = data.draw(st.lists(st.integers(0, 200), min_size=len(vectors), max_size=len(vectors), unique=True))
    some = st.lists(st.integers(0, 200), max_size=80)
    exclude = data.draw(st.none() | st.lists(some, min_size=len(queries), max_size=len(queries)))
    include = data.draw(st.none() | some)
    v, c, q = torch.tensor(vectors).float(), torch.tensor(codes), torch.tensor(queries).float()
    found = ExactIndex(v, c).search(
        q,
        k,
        None if exclude is None else Ragged.of(exclude),
        None if include is None else torch.tensor(include, dtype=torch.int64),
    )
    assert lists(found) == brute_force(v, c, q, k, exclude, include)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "_BLOCK_NUMBERS", 300)


def hard() -> tuple[ExactIndex, torch.Tensor, Ragged]:
    """Vectors of which many are equal, or differ in the last bit, so that a float32 product may confuse them."""
    base = random(1, 33)
    vectors = base.repeat(300, 1)
    vectors[::3] = torch.nextafter(vectors[::3], torch.tensor(10.0))
    vectors[200:] = random(100, 33, seed=2)
    queries = torch.cat([base, -base, torch.zeros(1, 33), random(9, 33, seed=3)])
    exclude = Ragged.of([list(range(i, 400, 7 + i)) for i in range(12)])
    return ExactIndex(vectors, torch.arange(300).flip(0) + 2), queries, exclude


def test_near_ties_and_equal_vectors_are_in_the_order_of_brute_force() -> None:
    index, queries, exclude = hard()
    scores, codes = index.search(queries, 20, exclude)
    full = index.scores(queries)
    for i in range(len(queries)):
        allowed = ~torch.isin(index.codes, exclude[i : i + 1].values)
        order = torch.where(allowed, full[i], NOTHING).argsort(descending=True, stable=True)[:20]
        assert codes[i].tolist() == index.codes[order].tolist()
        assert scores[i].tolist() == full[i][order].tolist()


def test_the_answer_has_the_same_bits_for_one_query_and_for_many() -> None:
    index, queries, exclude = hard()
    scores, codes = index.search(queries, 20, exclude)
    for i in range(len(queries)):
        one_scores, one_codes = index.search(queries[i : i + 1], 20, exclude[i : i + 1])
        assert torch.equal(one_scores[0], scores[i])
        assert torch.equal(one_codes[0], codes[i])


def test_the_answer_has_the_same_bits_for_any_blocks(small_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    index, queries, exclude = hard()
    small = index.search(queries, 20, exclude), index.scores(queries)
    monkeypatch.undo()
    large = index.search(queries, 20, exclude), index.scores(queries)
    assert lists(small[0]) == lists(large[0])
    assert torch.equal(small[1], large[1])


def test_a_coarser_matrix_product_gives_the_same_answer() -> None:
    index, queries, exclude = hard()
    want = lists(index.search(queries, 20, exclude))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert lists(index.search(queries, 20, exclude)) == want
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert lists(index.search(queries, 20, exclude)) == want
    finally:
        torch.set_float32_matmul_precision(before)


def test_scores_are_those_of_a_product_in_double_precision() -> None:
    index, queries, _ = hard()
    want = queries.double() @ index.vectors.double().T
    torch.testing.assert_close(index.scores(queries).double(), want, rtol=1e-6, atol=1e-6)


def test_a_saved_index_answers_the_same(tmp_path: Path) -> None:
    index, queries, exclude = hard()
    index.save(tmp_path / "index.safetensors")
    again = ExactIndex.load(tmp_path / "index.safetensors")
    assert lists(again.search(queries, 20, exclude)) == lists(index.search(queries, 20, exclude))
    assert [path.name for path in tmp_path.iterdir()] == ["index.safetensors"]
    bits = (tmp_path / "index.safetensors").read_bytes()
    for _ in range(5):
        index.save(tmp_path / "index.safetensors")
        assert (tmp_path / "index.safetensors").read_bytes() == bits


def test_a_file_that_is_no_whole_index_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "index.safetensors"
    with pytest.raises(ArtifactError, match=r"no index at `.*index.safetensors`"):
        ExactIndex.load(path)
    ExactIndex(random(9, 4), torch.arange(9)).save(path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ArtifactError, match=r"`.*index.safetensors` is not a whole index"):
        ExactIndex.load(path)
    for said in (
        {"kind": "other"},
        {"falconet": '{"kind": "ScoreIndex", "format": 2}'},
        {"falconet": '{"kind": "ExactIndex"}'},
    ):
        path.write_bytes(save({"vectors": torch.zeros(1, 1)}, said))
        with pytest.raises(ArtifactError, match=r"is no ExactIndex of format 2: it says \{.*kind"):
            ExactIndex.load(path)
    for broken in ("[]", "7", "no JSON"):
        path.write_bytes(save({"vectors": torch.zeros(1, 1)}, {"falconet": broken}))
        with pytest.raises(ArtifactError, match="is not a whole index"):
            ExactIndex.load(path)
    save_index(path, "ExactIndex", {"codes": torch.zeros(1)})
    with pytest.raises(ArtifactError, match=r"`.*index.safetensors` is not a whole index"):
        ExactIndex.load(path)


def test_what_cannot_be_searched_is_refused() -> None:
    with pytest.raises(DataError, match=r"vectors \(2, 1\) need one code each, not \(3,\)"):
        ExactIndex(torch.zeros(2, 1), torch.arange(3))
    with pytest.raises(DataError, match="code 4 has two vectors"):
        ExactIndex(torch.zeros(2, 1), torch.tensor([4, 4]))
    with pytest.raises(DataError, match="codes must not be negative, not -1"):
        ExactIndex(torch.zeros(1, 1), torch.tensor([-1]))
    with pytest.raises(DataError, match="1 vectors are not finite, the first of code 8"):
        ExactIndex(torch.tensor([[0.0], [float("nan")]]), torch.tensor([7, 8]))
    index = ExactIndex(torch.zeros(2, 1), torch.arange(2))
    with pytest.raises(DataError, match=r"queries \(1, 3\) do not fit vectors of width 1"):
        index.search(torch.zeros(1, 3), 1)
    with pytest.raises(DataError, match="query 1 is not finite"):
        index.search(torch.tensor([[0.0], [float("inf")]]), 1)
    with pytest.raises(DataError, match="k must be at least 1, not 0"):
        index.search(torch.zeros(1, 1), 0)
    with pytest.raises(DataError, match="2 lists of codes to exclude for 1 queries"):
        index.search(torch.zeros(1, 1), 1, exclude=Ragged.of([[], []]))
