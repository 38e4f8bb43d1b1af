"""The epoch plan: every row once, equal steps, one order whatever the number of processes."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate, chain

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from falconet.errors import ConfigError
from falconet.loader.plan import EpochPlan, Share, permutation


def rows_of(plan: EpochPlan) -> list[int]:
    """The orders of all lanes, one after the other, as data set row numbers."""
    starts = np.cumsum([0, *plan.group_rows])
    rows = []
    for window in chain(*plan.windows):
        found = [row for group in window.groups for row in range(starts[group], starts[group + 1])]
        rows += [int(found[place]) for place in plan.order(window)]
    return rows


def test_the_order_of_a_seed_and_an_epoch_never_changes() -> None:
    assert permutation(10, 7, 0, 0).tolist() == [8, 4, 1, 6, 3, 2, 7, 5, 9, 0]
    assert permutation(10, 7, 0, 1).tolist() == [2, 5, 7, 8, 1, 9, 3, 4, 0, 6]
    assert permutation(10, 7, 1, 1).tolist() == [8, 4, 7, 0, 2, 6, 5, 1, 9, 3]
    assert rows_of(EpochPlan(group_rows=(3, 2, 4), batch_size=4, seed=1, window=4)) == [5, 7, 8, 6, 4, 0, 2, 3, 1]


def test_a_permutation_is_the_stated_order_of_raw_philox_words() -> None:
    words = np.random.Philox(key=[5, 0], counter=[0, 0, 2, 3]).random_raw(1000).tolist()
    assert permutation(1000, 5, 2, 3).tolist() == sorted(range(1000), key=lambda i: (words[i] >> 10, i))


def test_permutations_of_nothing_and_of_one_thing_work() -> None:
    assert permutation(0, 1, 2, 3).tolist() == []
    assert permutation(1, 1, 2, 3).tolist() == [0]


def test_the_largest_seed_is_a_seed() -> None:
    assert sorted(permutation(5, 2**64 - 1, 2**64 - 1, 0).tolist()) == [0, 1, 2, 3, 4]


def test_every_place_is_equally_likely() -> None:
    counts = np.zeros((8, 8))
    for seed in range(4000):
        counts[np.arange(8), permutation(8, seed, 0, 1)] += 1
    assert np.abs(counts - 500).max() < 110  # five standard deviations


def test_without_shuffle_the_order_is_that_of_the_files() -> None:
    assert rows_of(EpochPlan(group_rows=(3, 0, 2, 4), batch_size=4, window=4, shuffle=False)) == list(range(9))


def test_windows_end_at_row_groups_and_have_at_least_the_rows_asked_for() -> None:
    plan = EpochPlan(group_rows=(5, 5, 5, 5, 5), batch_size=4, window=8, shuffle=False)
    assert [(w.first, w.rows, w.groups) for w in plan.windows[0]] == [(0, 10, (0, 1)), (10, 10, (2, 3)), (20, 5, (4,))]


def test_data_of_one_window_is_fully_permuted() -> None:
    plan = EpochPlan(group_rows=(5,) * 8, batch_size=5, seed=3)
    order = rows_of(plan)
    assert len(plan.windows[0]) == 1
    assert len({row // 5 for row in order[:5]}) > 1  # partitions mix within a batch
    assert sorted(order) == list(range(40))


def test_row_groups_and_rows_have_another_order_in_every_epoch() -> None:
    plans = [EpochPlan(group_rows=(2,) * 50, batch_size=4, seed=7, epoch=epoch, window=2) for epoch in range(3)]
    assert len({tuple(w.groups[0] for w in plan.windows[0]) for plan in plans}) == 3
    assert len({tuple(rows_of(plan)) for plan in plans}) == 3
    assert rows_of(plans[1]) == rows_of(EpochPlan(group_rows=(2,) * 50, batch_size=4, seed=7, epoch=1, window=2))


def test_five_uneven_files_on_two_ranks_take_seven_steps() -> None:
    plan = EpochPlan(group_rows=(10, 3, 7, 1, 6), batch_size=4)
    assert plan.steps == 7
    assert [plan.share(6, rank, 2) for rank in (0, 1)] == [Share(0, ((0, 24, 25),)), Share(1, ((0, 25, 27),))]


def test_drop_last_leaves_out_the_rest_on_every_rank() -> None:
    assert EpochPlan(group_rows=(27,), batch_size=4, drop_last=True).steps == 6
    assert EpochPlan(group_rows=(28,), batch_size=4, drop_last=True).steps == 7
    assert EpochPlan(group_rows=(3,), batch_size=4, drop_last=True).steps == 0


def test_no_rows_are_no_steps() -> None:
    assert (EpochPlan(group_rows=(), batch_size=4).steps, EpochPlan(group_rows=(), batch_size=4).windows) == (0, ((),))


@given(
    groups=st.lists(st.integers(0, 30), max_size=8),
    batch_size=st.integers(1, 40),
    world=st.integers(1, 8),
    window=st.integers(1, 60),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 3),
)
def test_the_shares_of_all_ranks_are_every_row_once(
    groups: list[int], batch_size: int, world: int, window: int, seed: int, epoch: int
) -> None:
    plan = EpochPlan(group_rows=tuple(groups), batch_size=batch_size, seed=seed, epoch=epoch, window=window)
    shares = [plan.share(step, rank, world) for step in range(plan.steps) for rank in range(world)]
    spans = [share.spans[0] for share in shares]
    assert [p for _, start, stop in spans for p in range(start, stop)] == list(range(sum(groups)))
    sizes = [stop - start for _, start, stop in spans]
    assert all(max(sizes[i : i + world]) - min(sizes[i : i + world]) <= 1 for i in range(0, len(sizes), world))
    assert sorted(rows_of(plan)) == list(range(sum(groups)))
    windows = plan.windows[0]
    assert all(plan.window_at(0, w.first) == w.index == plan.window_at(0, w.first + w.rows - 1) for w in windows)


@pytest.mark.parametrize("name", ["batch_size", "window", "lanes"])
@pytest.mark.parametrize("value", [0, -1, 2.5, True])
def test_a_size_that_is_no_count_is_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"`{name}` must be a whole number of at least 1, not {value}"):
        EpochPlan(group_rows=(3,), **{"batch_size": 1, name: value})  # type: ignore[arg-type]


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match="`seed` must be a whole number of at least 0, not -1"):
        EpochPlan(group_rows=(3,), batch_size=1, seed=-1)


def lanes_of(plan: EpochPlan, step: int, world: int) -> list[list[tuple[int, int, int]]]:
    """By rank, its spans in a step."""
    return [[tuple(span) for span in plan.share(step, rank, world).spans] for rank in range(world)]  # type: ignore[misc]


def test_row_groups_go_to_the_emptiest_lane_the_largest_first() -> None:
    plan = EpochPlan(group_rows=(3, 9, 0, 4, 8, 5), batch_size=4, lanes=2)
    assert [plan.groups_of([lane]) for lane in (0, 1)] == [(0, 1, 3), (2, 4, 5)]
    assert plan.lane_rows == (16, 13)


def test_a_batch_takes_of_each_lane_its_share_of_the_rows() -> None:
    plan = EpochPlan(group_rows=(6, 3), batch_size=3, lanes=2)
    assert [lanes_of(plan, step, 1)[0] for step in range(3)] == [
        [(0, 0, 2), (1, 0, 1)],
        [(0, 2, 4), (1, 1, 2)],
        [(0, 4, 6), (1, 2, 3)],
    ]
    assert [plan.share(2, rank, 2).first for rank in (0, 1)] == [0, 2]


def test_rows_of_lanes_come_at_their_places_of_the_epoch() -> None:
    groups = (7, 5, 4, 1)
    plan = EpochPlan(group_rows=groups, batch_size=1, lanes=4)
    order = [span[0] for step in range(plan.steps) for span in lanes_of(plan, step, 1)[0] if span[1] < span[2]]
    places = sorted((Fraction(2 * t + 1, 2 * n), lane) for lane, n in enumerate(groups) for t in range(n))
    assert order == [lane for _, lane in places]


@given(
    groups=st.lists(st.integers(0, 30), min_size=1, max_size=12),
    lanes=st.integers(2, 6),
    batch_size=st.integers(1, 40),
    window=st.integers(1, 60),
    seed=st.integers(0, 99),
)
def test_with_lanes_every_row_comes_once_and_the_batches_are_those_of_one_process(
    groups: list[int], lanes: int, batch_size: int, window: int, seed: int
) -> None:
    assume(sum(n > 0 for n in groups) >= lanes)
    plan = EpochPlan(group_rows=tuple(groups), batch_size=batch_size, seed=seed, window=window, lanes=lanes)
    reached = [0] * lanes
    for step in range(plan.steps):
        (alone,) = lanes_of(plan, step, 1)
        for lane, start, stop in alone:
            assert reached[lane] == start <= stop
            reached[lane] = stop
            assert abs(stop - plan.lane_rows[lane] * min((step + 1) * batch_size, plan.rows) / plan.rows) <= lanes
        assert plan.share(step, 0, 1).rows == plan.batch_rows(step)
        for world in (w for w in range(2, lanes + 1) if lanes % w == 0):
            shares = [plan.share(step, rank, world) for rank in range(world)]
            assert [tuple(span) for share in shares for span in share.spans] == alone
            assert [share.first for share in shares] == [*accumulate([0, *(s.rows for s in shares[:-1])])]
    assert reached == list(plan.lane_rows)
    assert sorted(rows_of(plan)) == list(range(sum(groups)))


def test_windows_of_lanes_have_orders_of_their_own() -> None:
    plan = EpochPlan(group_rows=(50,) * 4, batch_size=10, seed=3, window=100, lanes=2)
    assert [[(w.index, w.lane, w.rows) for w in lane] for lane in plan.windows] == [
        [(0, 0, 50), (1, 0, 50)],
        [(2, 1, 50), (3, 1, 50)],
    ]
    orders = {tuple(plan.order(window).tolist()) for window in chain(*plan.windows)}
    assert len(orders) == 4


def test_lanes_that_processes_or_the_data_cannot_share_are_refused() -> None:
    with pytest.raises(ConfigError, match="`lanes` is 3, but the data has 2 row groups with rows"):
        EpochPlan(group_rows=(3, 0, 4), batch_size=1, lanes=3)
    plan = EpochPlan(group_rows=(3, 3, 4, 4), batch_size=2, lanes=4)
    with pytest.raises(ConfigError, match="4 lanes cannot be shared evenly by 3 processes") as error:
        plan.share(0, 0, 3)
    assert error.value.hint == "`lanes` must be 1 or a multiple of the number of processes, such as 6"
