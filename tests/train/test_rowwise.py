"""The rules of touched rows beside the same in plain Python, and rounding to bfloat16 by chance."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from falconet.train.rowwise import (
    Rule,
    follow,
    fresh_state,
    keys,
    move,
    numbers_per_row,
    pace,
    round_by_chance,
    shrink,
    touch,
)

RULES: tuple[Rule, ...] = ("rowwise_rmsprop", "rowwise_adagrad", "rowwise_adam", "lazy_adam", "sgd")
STEPS = (([1, 2, 4], 0.1), ([2], 0.1), ([0, 2, 3, 4], 0.05), ([1, 4], 0.2), ([2], 0.1))  # touched rows, rate


@dataclass
class Row:
    """One row and its state, in float64, a number at a time."""

    values: list[float]
    touches: int = 0
    square: float = 0.0
    mean: list[float] = field(default_factory=list)
    squares: list[float] = field(default_factory=list)

    def step(self, rule: Rule, gradient: list[float], rate: float) -> None:
        width = len(gradient)
        self.mean, self.squares = self.mean or [0.0] * width, self.squares or [0.0] * width
        self.touches += 1
        mean_square = sum(g * g for g in gradient) / width
        first, second, slow = 1 - 0.9**self.touches, 1 - 0.999**self.touches, 1 - 0.99**self.touches
        self.mean = [0.9 * m + 0.1 * g for m, g in zip(self.mean, gradient, strict=True)]
        self.squares = [0.999 * v + 0.001 * g * g for v, g in zip(self.squares, gradient, strict=True)]
        if rule == "rowwise_rmsprop":
            self.square = 0.99 * self.square + 0.01 * mean_square
            by = [rate * g / (math.sqrt(self.square / slow) + 1e-8) for g in gradient]
        elif rule == "rowwise_adagrad":
            self.square += mean_square
            by = [rate * g / (math.sqrt(self.square) + 1e-8) for g in gradient]
        elif rule == "rowwise_adam":
            self.square = 0.999 * self.square + 0.001 * mean_square
            by = [rate * m / first / (math.sqrt(self.square / second) + 1e-8) for m in self.mean]
        elif rule == "lazy_adam":
            pairs = zip(self.mean, self.squares, strict=True)
            by = [rate * m / first / (math.sqrt(v / second) + 1e-8) for m, v in pairs]
        else:
            by = [rate * g for g in gradient]
        self.values = [x - b for x, b in zip(self.values, by, strict=True)]


def gradient_of(step: int, rows: list[int]) -> Tensor:
    random = torch.Generator().manual_seed(step)
    return torch.randn(len(rows), 4, generator=random) * 10.0 ** (step - 2)


@pytest.mark.parametrize("rule", RULES)
def test_each_row_moves_as_its_rule_says_and_others_stay(rule: Rule) -> None:
    values = torch.randn(6, 4, generator=torch.Generator().manual_seed(9))
    plain = [Row(row) for row in values.double().tolist()]
    before = values.clone()
    state = fresh_state(rule, values)
    for step, (rows, rate) in enumerate(STEPS):
        gradient = gradient_of(step, rows)
        for row, row_gradient in zip(rows, gradient.double().tolist(), strict=True):
            plain[row].step(rule, row_gradient, rate)
        ids = torch.tensor(rows)
        young = touch(rule, state, ids)
        pace_U = pace(rule, state, ids, gradient.square().sum(1), 4, rate, young)
        move(values, ids, follow(rule, state, ids, gradient, pace_U, young))
    assert torch.allclose(values, torch.tensor([row.values for row in plain]), rtol=1e-5, atol=1e-6)
    assert torch.equal(values[5], before[5])
    assert all(not x[5].any() for x in state.values())
    assert sum(x[0].numel() for x in state.values()) == numbers_per_row(rule, 4)


def test_a_row_without_a_gradient_stays_and_is_no_division_by_zero() -> None:
    for rule in RULES:
        values = torch.ones(2, 3)
        state = fresh_state(rule, values)
        ids = torch.tensor([1])
        young = touch(rule, state, ids)
        step = follow(rule, state, ids, torch.zeros(1, 3), pace(rule, state, ids, torch.zeros(1), 3, 0.1, young), young)
        move(values, torch.tensor([1]), step)
        assert torch.equal(values, torch.ones(2, 3)), rule


def test_a_touched_row_may_lose_a_share_of_itself() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    ids = torch.tensor([1])
    move(values, ids, shrink(values, ids, torch.tensor([[-0.5, 0.0]]), 0.1))
    assert values.tolist() == [[1.0, 2.0], [pytest.approx(2.2), pytest.approx(3.6)]]


def as_rows(x: float, rows: int, width: int = 8) -> Tensor:
    return torch.full((rows, width), x)


def test_rounding_by_chance_is_unbiased() -> None:
    """Up with the probability of what is cut off: the share of 80,000 draws within 5 standard errors."""
    rows = 10_000
    for x in (1.001, -0.3333, 3e-5, 1e20, -7.77e-39):  # the last is subnormal
        exact = torch.tensor(x)
        bits = exact.view(torch.int32)
        down, up = ((bits & -65536) + step for step in (0, 65536))  # the neighbours that bfloat16 has
        low, high = (y.view(torch.float32).double() for y in (down, up))
        found = round_by_chance(as_rows(x, rows), keys("user", 1, 7, torch.arange(rows))).double()
        assert torch.equal(found.unique(), torch.stack([low, high]).sort().values)
        chance = float((exact.double() - low) / (high - low))
        share = float((found == high).double().mean())
        assert abs(share - chance) < 5 * math.sqrt(chance * (1 - chance) / found.numel()), x


def test_neighbouring_draws_have_nothing_to_do_with_each_other() -> None:
    ups = [
        round_by_chance(as_rows(1 + 2**-8, 4096, 64), keys(table, seed, step, torch.arange(4096))) > 1
        for table, seed, step in (("user", 1, 7), ("user", 1, 8), ("user", 2, 7), ("item", 1, 7))
    ]
    signs = [up.double() * 2 - 1 for up in ups]
    pairs = [signs[0] * other for other in signs[1:]]
    pairs += [signs[0][1:] * signs[0][:-1], signs[0][:, 1:] * signs[0][:, :-1]]
    for pair in pairs:
        assert abs(float(pair.mean())) < 5 / math.sqrt(pair.numel())
    for places in (0, 1):  # no row and no column is mostly up
        assert float(signs[0].mean(places).abs().max()) < 6 / math.sqrt(signs[0].shape[places])


def test_what_bfloat16_has_and_what_is_no_number_stays() -> None:
    x = torch.tensor([[0.0, -0.0, 1.0, -2.5, 384.0, math.inf, -math.inf, math.nan]]).repeat(1000, 1)
    found = round_by_chance(x, keys("user", 0, 0, torch.arange(1000)))
    assert found.dtype == torch.bfloat16
    assert torch.equal(found[:, :7].float(), x[:, :7])
    assert found[:, 7].isnan().all()


def test_a_draw_depends_on_seed_table_step_row_and_place_alone() -> None:
    x = torch.randn(50, 16, generator=torch.Generator().manual_seed(0))
    rows = torch.arange(100, 150)
    whole = round_by_chance(x, keys("user", 3, 5, rows))
    shuffled = torch.randperm(50, generator=torch.Generator().manual_seed(1))[:20]
    assert torch.equal(round_by_chance(x[shuffled], keys("user", 3, 5, rows[shuffled])), whole[shuffled])
    assert torch.equal(round_by_chance(x[:, :5], keys("user", 3, 5, rows)), whole[:, :5])
    for other in (
        keys("item", 3, 5, rows),
        keys("user", 4, 5, rows),
        keys("user", 3, 6, rows),
        keys("user", 3, 5, rows + 1),
    ):
        assert not torch.equal(round_by_chance(x, other), whole)


def test_small_steps_of_bfloat16_rows_are_not_lost() -> None:
    """Steps of a fiftieth of the gap between neighbours: rounded to the nearest, a row would never move."""
    values = torch.ones(2000, 4, dtype=torch.bfloat16)
    ids = torch.arange(2000)
    for step in range(100):
        move(values, ids, torch.full((2000, 4), 2**-7 / 50), keys("user", 0, step, ids))
    assert float(values.double().mean()) == pytest.approx(1 + 2**-7 * 2, abs=5 * 2**-7 * np.sqrt(100 / 50 / 8000))
