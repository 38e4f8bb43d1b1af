"""What lists are like: the definitions' values, whatever the batches."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from falconet.errors import ConfigError, DataError
from falconet.metrics.lists import ListMetrics

CODES = torch.tensor([30, 3, 4, 10, 7])
COUNTS = torch.tensor([0, 8, 4, 2, 1])
VECTORS = torch.tensor([[1.0, 0], [0, 2], [1, 1], [-1, 0], [0, 0]])


def figures(lists: list[list[int]], metrics: ListMetrics, size: int) -> dict[str, float]:
    top = torch.tensor([[*some, *[-1] * (4 - len(some))] for some in lists]).reshape(len(lists), 4)
    return metrics.finish(metrics.merge([metrics.partial(part) for part in top.split(size)]))


def by_definition(lists: list[list[int]], k: int) -> dict[str, float]:
    counts = dict(zip(CODES.tolist(), np.maximum(COUNTS.numpy(), 0.5), strict=True))
    vectors = {code: v / (np.linalg.norm(v) or 1) for code, v in zip(CODES.tolist(), VECTORS.numpy(), strict=True)}
    whole = sum(counts.values())
    cut = [some[:k] for some in lists if some[:k]]
    places = sorted(sum(code in some for some in cut) for code in counts)
    pairs = [[float(vectors[a] @ vectors[b]) for a, b in combinations(some, 2)] for some in cut if len(some) > 1]
    average = lambda values: float(np.mean(values)) if len(values) else math.nan  # noqa: E731
    # Gini as half the mean difference of all pairs, relative to the mean
    apart = np.abs(np.subtract.outer(places, places)).mean()
    return {
        f"coverage@{k}": len({code for some in cut for code in some}) / 5 if cut else math.nan,
        f"novelty@{k}": average([np.mean([-np.log2(counts[code] / whole) for code in some]) for some in cut]),
        f"popularity@{k}": average([np.mean([5 * counts[code] / whole for code in some]) for some in cut]),
        f"gini@{k}": apart / (2 * np.mean(places)) if cut else math.nan,
        f"diversity@{k}": average([1 - np.mean(some) for some in pairs]),
    }


LISTS = st.lists(st.permutations([3, 4, 7, 10, 30]).flatmap(lambda x: st.integers(0, 4).map(lambda n: x[:n])))


@given(LISTS, st.integers(1, 4), st.integers(1, 5))
def test_figures_are_those_of_the_definitions(lists: list[list[int]], k: int, size: int) -> None:
    got = figures(lists, ListMetrics((k,), CODES, COUNTS, VECTORS), size)
    assert got == pytest.approx(by_definition(lists, k), abs=1e-6, nan_ok=True)
    whole = figures(lists[::-1], ListMetrics((k,), CODES, COUNTS, VECTORS), 1000)
    assert [got[name] for name in got] == pytest.approx(list(whole.values()), abs=0, nan_ok=True)


def test_a_list_of_equals_has_no_diversity_and_everybody_alike_is_unequal() -> None:
    metrics = ListMetrics((2,), CODES, COUNTS, torch.ones(5, 3))
    got = figures([[3, 4], [3, 4]], metrics, 1)
    assert got["diversity@2"] == pytest.approx(0, abs=1e-12)
    assert (got["coverage@2"], got["gini@2"]) == (0.4, pytest.approx(0.6))


def test_ranks_join_by_concatenation() -> None:
    metrics = ListMetrics((1, 2), CODES, COUNTS, VECTORS)
    top = torch.tensor([[3, 4], [30, 7], [10, -1]])
    ranks = [metrics.merge([metrics.partial(top[:2])]), metrics.merge([metrics.partial(top[2:])])]
    joined = {name: torch.cat([rank[name] for rank in ranks]) for name in ranks[0]}
    assert metrics.finish(joined) == metrics.finish(metrics.partial(top))


def test_without_vectors_there_is_no_diversity() -> None:
    metrics = ListMetrics((2,), CODES, COUNTS)
    assert metrics.names == ("coverage@2", "novelty@2", "popularity@2", "gini@2")
    assert set(metrics.finish(metrics.merge([]))) == set(metrics.names)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="`ks` must be whole numbers of at least 1"):
        ListMetrics((), CODES, COUNTS)
    with pytest.raises(DataError, match="4 counts for 5 items"):
        ListMetrics((1,), CODES, COUNTS[1:])
    with pytest.raises(DataError, match="4 vectors for 5 items"):
        ListMetrics((1,), CODES, COUNTS, VECTORS[1:])
    with pytest.raises(DataError, match="code 5 is recommended, but not in the catalogue"):
        ListMetrics((1,), CODES, COUNTS).partial(torch.tensor([[3, 5]]))
