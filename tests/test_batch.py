from __future__ import annotations

import pytest
import torch

from falconet.batch import Batch, Ragged


def test_ragged_slices_and_takes_rows() -> None:
    lists = Ragged.of([[1, 2], [], [3], [4, 5, 6]])
    assert lists[1:3].to_lists() == [[], [3]]
    assert lists[3:1].to_lists() == []
    assert lists.take(torch.tensor([3, 0, 0, 1])).to_lists() == [[4, 5, 6], [1, 2], [1, 2], []]
    assert lists.row_of_value().tolist() == [0, 0, 2, 3, 3, 3]


def test_ragged_of_no_rows() -> None:
    empty = Ragged.of([])
    assert (len(empty), empty.to_lists(), empty[0:0].to_lists()) == (0, [], [])


def test_ragged_refuses_a_stride() -> None:
    with pytest.raises(ValueError, match="step 1, not 2"):
        Ragged.of([[1], [2]])[::2]


def test_a_slice_of_a_batch_is_a_batch() -> None:
    batch = Batch.of(
        {"a": torch.arange(4), "b": Ragged.of([[1], [], [2, 3], [4]])},
        {"y": torch.arange(4.0)},
        weights=torch.ones(4),
    )
    part = batch[1:3]
    assert (part.rows, part.global_rows) == (2, 2)
    assert part.features["a"].tolist() == [1, 2]  # type: ignore[union-attr]
    assert part.features["b"].to_lists() == [[], [2, 3]]  # type: ignore[union-attr]
    assert part.targets["y"].tolist() == [1.0, 2.0]


def test_any_rows_of_lists_can_be_taken_in_any_order() -> None:
    """Beside plain lists: empty ones anywhere, repeats, none at all, and offsets with gaps between rows."""
    random = torch.Generator().manual_seed(0)
    for count in (0, 1, 2, 50):
        lists = [list(range(10 * i, 10 * i + i % 4)) for i in range(max(count, 1))]
        ragged = Ragged.of(lists)
        rows = torch.randint(0, len(lists), (count,), generator=random)
        taken = ragged.take(rows)
        assert taken.to_lists() == [lists[row] for row in rows.tolist()]
        assert taken.offsets.dtype == torch.int64
    assert Ragged.of([[], [], []]).take(torch.tensor([2, 0])).to_lists() == [[], []]
    gap = Ragged(torch.arange(9), torch.tensor([0, 2, 6, 7]))  # row 1 stands for nothing
    assert gap.take(torch.tensor([2, 0, 2])).to_lists() == [[6], [0, 1], [6]]
