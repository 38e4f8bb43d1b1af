"""The order in which values get their codes."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falconet.etl import codes
from falconet.etl.codes import by_count


@pytest.mark.parametrize("block", [1, 3, 1 << 20])
def test_the_largest_counts_come_first_and_equal_ones_in_their_order(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes, "_BLOCK", block)
    assert by_count(pl.Series("n", [1, 7, 1, 9, 7, 1])).to_list() == [3, 1, 4, 0, 2, 5]
    assert by_count(pl.Series("n", [], dtype=pl.Int64)).to_list() == []

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.integers(0, 5) | st.integers(0, 2**62), max_size=40))
    def check(counts: list[int]) -> None:
        want = sorted(range(len(counts)), key=lambda i: -counts[i])
        assert by_count(pl.Series("n", counts, dtype=pl.Int64)).to_list() == want

    check()
