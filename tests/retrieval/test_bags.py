"""One user's affinities are, bit for bit, those of the same user among others, and lists taken late are the same."""

from __future__ import annotations

import pytest
import torch

from falconet.batch import Batch, Ragged, TakenRows
from falconet.retrieval.candidates import CandidateRows
from falconet.retrieval.sources import Found
from falconet.schema import Column, Schema, Tag

ITEMS, CODES = 50, 9


def rows_of(longest: int, chance: torch.Generator) -> CandidateRows:
    """Over items with up to so many values each."""
    number = {"dtype": "int32", "nullable": False}
    item = frozenset({Tag.ITEM, Tag.CATEGORICAL})
    past = frozenset({Tag.USER, Tag.SEQUENCE, Tag.CATEGORICAL})
    schema = Schema(
        (
            Column(name="item", tags=item | {Tag.ID}, cardinality=3 + ITEMS, **number),
            Column(name="kinds", tags=item, cardinality=CODES, list="ragged", **number),
            Column(name="history", tags=past, cardinality=3 + ITEMS, list="ragged", domain="item", **number),
        )
    )
    lengths = torch.randint(0, longest + 1, (ITEMS,), generator=chance).tolist()
    kinds = [torch.randint(0, CODES, (n,), generator=chance).tolist() for n in (longest, *lengths[1:])]
    codes = torch.arange(3, 3 + ITEMS)
    items = {"item": codes, "kinds": Ragged.of(kinds, dtype=torch.int32), "log_popularity": codes.float()}
    return CandidateRows(schema, Batch.of(items))


@pytest.mark.parametrize("longest", [0, 1, 3, 16, 17, 40])
@pytest.mark.parametrize("history", [[], [3], [3, 2, 3, 9], list(range(3, 40))])
def test_one_user_has_the_affinities_that_it_has_among_others(longest: int, history: list[int]) -> None:
    chance = torch.Generator().manual_seed(longest)
    made = rows_of(longest, chance)
    codes = torch.stack([3 + torch.randperm(ITEMS, generator=chance) for _ in range(2)])[:, :30]
    codes[0, 0] = 3  # which has as many values as any
    scores = torch.randn(2, 30, generator=chance)
    lists = [history, [5, 6]]
    both = made.rows(Batch.of({"history": Ragged.of(lists)}), Found.of_one(codes, scores))
    alone = made.rows(Batch.of({"history": Ragged.of(lists[:1])}), Found.of_one(codes[:1], scores[:1]))
    affinity = alone.features["kinds_affinity"]
    assert isinstance(affinity, torch.Tensor)
    assert torch.equal(affinity, both.features["kinds_affinity"][:30])  # type: ignore[arg-type]
    assert bool(affinity.any()) == (longest > 0 and len(history) > 0)


def test_rows_that_are_taken_late_are_those_that_are_taken_at_once() -> None:
    lists, rows = Ragged.of([[1, 2], [], [3], [4, 5, 6]]), torch.tensor([3, 1, 1, 0])
    late, now = TakenRows(lists, rows), lists.take(rows)
    assert len(late) == 4
    assert torch.equal(late.values, now.values)
    assert torch.equal(late.offsets, now.offsets)
    assert late.take(torch.tensor([3])).to_lists() == [[1, 2]]
    assert late[1:4].to_lists() == [[], [], [1, 2]]
    assert Batch.of({"x": late})[:1].features["x"].to_lists() == [[4, 5, 6]]  # type: ignore[union-attr]
