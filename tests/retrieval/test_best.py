"""The best of many scores: nothing that belongs to them is missing, whatever the table they are looked at in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from falconet.retrieval import best
from falconet.retrieval.best import _down, best_of, near_best, near_best_of_one

NOTHING = float("-inf")


def wanted(scores: list[float], k: int, slack: float) -> list[int]:
    """The places that must be found, by sorting."""
    real = sorted((x for x in scores if x > NOTHING), reverse=True)
    border = real[k - 1] - slack if k <= len(real) else NOTHING
    return [place for place, x in enumerate(scores) if x > NOTHING and x >= border]


@settings(deadline=None, max_examples=80)
@given(
    rows=st.integers(1, 3).flatmap(
        lambda n: st.integers(0, 150).flatmap(
            lambda items: st.lists(
                st.lists(
                    st.integers(-9, 9).map(float) | st.just(NOTHING) | st.just(3.4e38), min_size=items, max_size=items
                ),
                min_size=n,
                max_size=n,
            )
        )
    ),
    k=st.integers(1, 20),
    slack=st.sampled_from([0.0, 2.5]),
)
def test_all_that_reach_the_border_are_found_in_order(rows: list[list[float]], k: int, slack: float) -> None:
    scores = torch.tensor(rows).reshape(len(rows), -1)
    found = near_best(scores, k, torch.full((len(rows),), slack))
    for row, places in zip(rows, found.to_lists(), strict=True):
        assert places == sorted(set(places))
        assert set(wanted(row, k, slack)) <= set(places)
        assert all(row[place] > NOTHING for place in places)
    values = scores[found.row_of_value(), found.values]
    got_scores, got_places = best_of(values, found, k)
    for i, row in enumerate(rows):
        order = sorted((place for place, x in enumerate(row) if x > NOTHING), key=lambda p: (-row[p], p))[:k]
        assert got_places[i].tolist() == order + [-1] * (k - len(order))
        assert got_scores[i].tolist() == [*scores[i, order].tolist(), *[NOTHING] * (k - len(order))]


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("items", [4096, 4099])
def test_few_are_looked_at_also_where_the_best_stand_side_by_side(rows: int, items: int) -> None:
    scores = -torch.arange(items, dtype=torch.float32).repeat(rows, 1)  # as of a catalogue sorted by popularity
    assert items // (best._COLUMNS * 20) > 1  # several lines
    assert near_best(scores, 20).to_lists() == [list(range(20))] * rows
    chance = torch.rand(rows, items, generator=torch.Generator().manual_seed(0))
    found = near_best(chance, 20)
    assert int(found.lengths.min()) >= 20
    assert int(found.lengths.max()) < 30


def test_a_border_between_two_numbers_leaves_out_none_that_reaches_it() -> None:
    for border in np.random.default_rng(0).uniform(-0.9, 0.9, 200).tolist():
        lowered = _down(border)
        assert float(lowered) <= border < float(np.nextafter(lowered, np.float32(2)))
        scores = np.array([1.0, lowered, -1.0], dtype=np.float32)
        assert near_best_of_one(scores, 1, 1 - border).tolist() == [0, 1]
