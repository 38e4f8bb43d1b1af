"""A first look in bytes: its error is bounded, and the answers stay those of the exact index, bit for bit."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from falconet.batch import Ragged
from falconet.retrieval import narrow
from falconet.retrieval.exact import ExactIndex
from falconet.retrieval.narrow import Narrow

pytestmark = pytest.mark.skipif(narrow._product is None, reason="this torch multiplies no bytes")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tables() -> dict[str, torch.Tensor]:
    """Vectors of several kinds, 3,000 of 24 numbers."""
    base = normal(3000, 24)
    biased = torch.cat([base[:, :-1] * 0.3, torch.linspace(12, 0, 3000)[:, None]], dim=1)
    near = base[:1].repeat(3000, 1)
    near[::3] = torch.nextafter(near[::3], torch.tensor(9.0))
    sparse = base * (base.abs() > 1.5)
    sparse[:, 3] = 0.0
    return {
        "alike": base,
        "with a bias": biased,
        "equal but for bits": near,
        "of few numbers": sparse,
        "large": base * 1e18,
        "tiny": base * 1e-18,
        "zero": torch.zeros_like(base),
    }


def queries(width: int) -> torch.Tensor:
    some = normal(6, width, seed=1)
    some[1] = 0.0
    some[2, 1:] = 0.0
    some[3, -1] = 1.0
    some[4] *= torch.logspace(-6, 3, width)
    return some


@pytest.mark.parametrize("kind", tables())
def test_scores_are_off_by_no_more_than_is_said(kind: str) -> None:
    vectors = tables()[kind]
    table = Narrow(vectors)
    for query in queries(vectors.shape[1]):
        near, error, step = table.scores(query.numpy())
        assert step > 0
        exact = vectors.double() @ query.double()
        assert float((torch.from_numpy(near).double() - exact / step).abs().max()) <= error
        assert error * step <= 0.2 * float(vectors.norm(dim=1).max() * query.norm()) + 1e-30  # and it says something


@pytest.mark.parametrize("kind", tables())
def test_a_search_by_bytes_gives_the_bits_of_one_by_numbers(kind: str) -> None:
    vectors = tables()[kind]
    index = ExactIndex(vectors, torch.arange(len(vectors)).flip(0) + 5)
    index._narrow = (None,)
    by_bytes = ExactIndex(vectors, torch.arange(len(vectors)).flip(0) + 5)
    by_bytes._narrow = (Narrow(by_bytes.vectors),)
    for query in queries(vectors.shape[1]):
        for k, exclude, include in (
            (1, None, None),
            (50, Ragged.of([list(range(0, 2000, 3))]), None),
            (50, Ragged.of([[7, 9, 11]]), torch.arange(0, 3005, 2)),
            (50, Ragged.of([[7, 9, 11]]), torch.arange(6, 40)),
            (3000, None, None),
        ):
            want, got = (one.search(query[None], k, exclude, include) for one in (index, by_bytes))
            assert torch.equal(got[0], want[0])
            assert torch.equal(got[1], want[1])


def test_bytes_are_used_for_large_tables_where_they_are_right_and_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = normal(600, 16)
    assert Narrow.where_it_pays(vectors) is None  # small
    monkeypatch.setattr(narrow, "_LEAST", 1)
    monkeypatch.setattr(narrow, "_FASTER", 0.0)
    assert Narrow.where_it_pays(vectors) is not None
    monkeypatch.setattr(narrow, "_FASTER", 1e9)
    assert Narrow.where_it_pays(vectors) is None  # slower than it must be
    monkeypatch.setattr(narrow, "_FASTER", 0.0)
    monkeypatch.setattr(narrow, "_product", lambda a, b: (a.int() @ b.int()) * 2)
    assert Narrow.where_it_pays(vectors) is None  # a wrong product
    monkeypatch.setattr(narrow, "_product", None)
    assert Narrow.where_it_pays(vectors) is None


def test_threads_that_search_at_once_make_one_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    index, made = ExactIndex(torch.eye(8), torch.arange(8)), []
    begun, go_on = threading.Event(), threading.Event()

    def slowly(vectors: torch.Tensor) -> None:
        made.append(vectors)
        begun.set()
        assert go_on.wait(20)

    monkeypatch.setattr(Narrow, "where_it_pays", slowly)
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(index.search, torch.eye(8)[i : i + 1], 1) for i in range(4)]
        assert begun.wait(20)
        assert not any(one.done() for one in found)
        go_on.set()
        assert [int(one.result()[1]) for one in found] == [0, 1, 2, 3]
    assert len(made) == 1
