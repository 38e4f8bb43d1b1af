"""Where codes stand: in dense and in scattered lists, for codes that are there and all others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from falconet.retrieval.places import Places

CODE = st.integers(-3, 40) | st.sampled_from([-(2**63), 10**6, 2**62, 2**63 - 1])


@given(codes=st.lists(st.integers(0, 30), max_size=12, unique=True), far=st.booleans(), asked=st.lists(CODE))
def test_every_code_has_its_place_and_all_others_have_none(codes: list[int], far: bool, asked: list[int]) -> None:
    codes = sorted([*codes, *([10**6] if far else [])])
    places = Places(torch.tensor(codes, dtype=torch.int64))
    found = places.of(torch.tensor(asked, dtype=torch.int64))
    assert found.tolist() == [codes.index(code) if code in codes else len(codes) for code in asked]
    back = places.codes(np.where(found.numpy() < len(codes), found.numpy(), -1))
    assert back.tolist() == [code if code in codes else -1 for code in asked]


@pytest.mark.parametrize("first", [0, 3, 10**6])
def test_codes_in_a_row_come_back_from_their_places(first: int) -> None:
    places = Places(torch.arange(first, first + 5))
    assert places.codes(np.array([4, -1, 0, 2])).tolist() == [first + 4, -1, first, first + 2]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_any_type_and_shape_may_be_asked_for(dtype: torch.dtype) -> None:
    found = Places(torch.tensor([2, 5])).of(torch.tensor([[5, 9], [2, 0]], dtype=dtype))
    assert found.tolist() == [[1, 2], [0, 2]]
    assert found.dtype == torch.int64
