"""Ranking metrics: equal to the definition, whatever the batches, the order and the adversary."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

from falconet.batch import Ragged
from falconet.errors import ConfigError, DataError
from falconet.metrics.compare import interval
from falconet.metrics.exact import mean
from falconet.metrics.ranking import RankingMetrics

User = tuple[list[int], list[int], int]
"""The list shown, the relevant codes, the number of relevant items outside the catalogue."""


def top(users: list[User], width: int) -> torch.Tensor:
    return torch.tensor([[*shown, *[-1] * (width - len(shown))] for shown, _, _ in users]).reshape(len(users), width)


def figures(users: list[User], metrics: RankingMetrics, size: int, width: int = 10) -> dict[str, float]:
    states = []
    for i in range(0, len(users), size):
        some = users[i : i + size]
        unknown = torch.tensor([n for _, _, n in some])
        states.append(metrics.partial(top(some, width), Ragged.of([r for _, r, _ in some]), unknown))
    return metrics.finish(metrics.merge(states))


def by_definition(user: User, k: int, map_by: str) -> dict[str, float]:
    shown, relevant, unknown = user
    wanted, count = set(relevant), len(set(relevant)) + unknown
    hits = [code in wanted for code in shown[:k]]
    ideal = sum(1 / math.log2(i + 2) for i in range(min(k, count)))
    precisions = [sum(hits[: i + 1]) / (i + 1) for i, hit in enumerate(hits) if hit]
    return {
        f"recall@{k}": sum(hits) / count,
        f"ndcg@{k}": sum(1 / math.log2(i + 2) for i, hit in enumerate(hits) if hit) / ideal,
        f"mrr@{k}": 1 / (hits.index(True) + 1) if any(hits) else 0,
        f"hit_rate@{k}": float(any(hits)),
        f"precision@{k}": sum(hits) / k,
        f"map@{k}": sum(precisions) / (count if map_by == "all" else min(k, count)),
    }


def test_one_user_worked_by_hand() -> None:
    # hits at places 2 and 4; three relevant items in the catalogue, one outside
    got = figures([([9, 1, 8, 2, 7], [1, 2, 3], 1)], RankingMetrics((5,)), 1)
    assert got == pytest.approx(
        {
            "recall@5": 0.5,
            "ndcg@5": (1 / math.log2(3) + 1 / math.log2(5)) / (1 + 1 / math.log2(3) + 1 / 2 + 1 / math.log2(5)),
            "mrr@5": 0.5,
            "hit_rate@5": 1.0,
            "precision@5": 0.4,
            "map@5": (1 / 2 + 2 / 4) / 4,
        },
        abs=1e-15,
    )


def test_map_divides_by_all_relevant_items_or_by_what_k_can_hold() -> None:
    user: User = ([1, 9], [1, 2, 3, 4], 0)
    assert figures([user], RankingMetrics((2,)), 1)["map@2"] == 0.25
    assert figures([user], RankingMetrics((2,), map_by="min_k"), 1)["map@2"] == 0.5


def test_users_without_a_relevant_item_are_left_out() -> None:
    metrics = RankingMetrics((2,))
    alone = figures([([1, 2], [1], 0)], metrics, 1)
    assert figures([([1, 2], [1], 0), ([1, 2], [], 0)], metrics, 1) == alone
    state = metrics.partial(torch.tensor([[1, 2], [3, 4]]), Ragged.of([[], [4]]))
    assert metrics.per_user(state)["mrr@2"].tolist() == [0.5]


def test_a_user_whose_relevant_items_are_all_outside_the_catalogue_counts_as_zero() -> None:
    got = figures([([1, 2], [1], 0), ([1, 2], [], 3)], RankingMetrics((2,)), 2)
    assert (got["recall@2"], got["ndcg@2"], got["map@2"]) == (0.5, 0.5, 0.5)


def test_no_user_is_no_figure() -> None:
    metrics = RankingMetrics((3,))
    for state in (metrics.merge([]), metrics.partial(torch.zeros(0, 5, dtype=torch.int64), Ragged.of([]))):
        assert metrics.per_user(state)["recall@3"].shape == (0,)
        assert all(math.isnan(value) for value in metrics.finish(state).values())


def test_padding_is_never_a_hit_and_lists_may_be_shorter_than_k() -> None:
    metrics = RankingMetrics((10,))
    state = metrics.partial(torch.tensor([[5, -1, -1]]), Ragged.of([[5, 6]]))
    assert metrics.finish(state)["recall@10"] == 0.5
    assert metrics.finish(state)["precision@10"] == 0.1
    nothing = metrics.partial(torch.full((1, 0), -1), Ragged.of([[5, 6]]))
    assert metrics.finish(nothing)["hit_rate@10"] == 0


def test_a_relevant_item_given_twice_counts_once() -> None:
    metrics = RankingMetrics((2,))
    assert metrics.finish(metrics.partial(torch.tensor([[1, 2]]), Ragged.of([[1, 1, 3]])))["recall@2"] == 0.5


def test_codes_above_32_bits_do_not_collide() -> None:
    big = 2**62
    metrics = RankingMetrics((2,))
    state = metrics.partial(torch.tensor([[big, 1], [big, 2]]), Ragged.of([[big], [big + 1]]))
    assert metrics.per_user(state)["hit_rate@2"].tolist() == [1, 0]


USERS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 12), max_size=10, unique=True),
        st.lists(st.integers(0, 12), max_size=8),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(users=USERS, size=st.integers(1, 12), map_by=st.sampled_from(["all", "min_k"]))
def test_every_figure_is_that_of_its_definition(users: list[User], size: int, map_by: str) -> None:
    got = figures(users, RankingMetrics((1, 3, 10), map_by=map_by), size)  # type: ignore[arg-type]
    kept = [user for user in users if user[1] or user[2]]
    if not kept:
        assert all(math.isnan(value) for value in got.values())
        return
    for k in (1, 3, 10):
        each = [by_definition(user, k, map_by) for user in kept]
        want = {name: math.fsum(one[name] for one in each) / len(each) for name in each[0]}
        assert {name: got[name] for name in want} == pytest.approx(want, abs=1e-12)
    assert figures(users[::-1], RankingMetrics((1, 3, 10), map_by=map_by), len(users)) == pytest.approx(got, abs=0)  # type: ignore[arg-type]


def test_a_thousand_users_equal_scikit_learn_for_any_batches_and_ranks() -> None:
    rng = np.random.default_rng(0)
    scores, relevant = rng.random((1000, 50)), rng.random((1000, 50)) < 0.1
    relevant[:, 0] = True
    order = np.argsort(-scores, axis=1)[:, :10]
    users: list[User] = [(order[i].tolist(), np.flatnonzero(relevant[i]).tolist(), 0) for i in range(1000)]
    metrics = RankingMetrics((10,))
    got = [figures(users, metrics, size) for size in (1, 7, 1000)]
    ranks = [metrics.partial(top(users[r::3], 10), Ragged.of([u[1] for u in users[r::3]])) for r in range(3)]
    got.append(metrics.finish(metrics.merge(ranks)))
    assert got[0] == got[1] == got[2] == got[3]
    assert got[0]["ndcg@10"] == pytest.approx(ndcg_score(relevant, scores, k=10), abs=1e-12)


def test_the_interval_holds_the_mean_and_narrows_with_more_users() -> None:
    values = np.random.default_rng(0).normal(size=400)
    low, high = interval(values, seed=1)
    assert low < mean(values) < high
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.15)
    assert interval(values, seed=1) == interval(values[::-1], seed=1) == (low, high)
    assert interval(values, seed=2) != (low, high)


def test_the_interval_of_one_or_no_user_is_that_value_or_nothing() -> None:
    assert interval(np.array([0.25])) == (0.25, 0.25)
    assert all(math.isnan(edge) for edge in interval(np.array([])))


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"`ks` must be whole numbers of at least 1, not \(0,\)"):
        RankingMetrics((0,))
    with pytest.raises(ConfigError, match="`map_by` must be all or min_k, not 'k'"):
        RankingMetrics(map_by="k")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="2 lists of recommendations against 1 users with relevant items"):
        RankingMetrics().partial(torch.tensor([[1], [2]]), Ragged.of([[1]]))
    with pytest.raises(
        DataError, match=r"a list of recommendations holds a code twice\n\nhint: pad short lists with -1"
    ):
        RankingMetrics().partial(torch.tensor([[1, 2, 1]]), Ragged.of([[1]]))
