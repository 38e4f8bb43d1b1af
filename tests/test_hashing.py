"""The stable hash is fixed for good: values computed once, by hand of docs/contracts.md."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from falconet.errors import DataError
from falconet.hashing import hash_uint64, splitmix64, stable_hash

GOLDEN: list[tuple[Any, int, int]] = [  # value, seed 0, seed 7
    (0, 12035550249420947055, 13309476754707697221),
    (1, 627405149472732430, 4414019431610648415),
    (-1, 3303439293501059696, 12225420764836534112),
    (2**63 - 1, 14389535693014737104, 500464802628977885),
    (-(2**63), 6018453421592093069, 9098656213007624980),
    (True, 627405149472732430, 4414019431610648415),
    (3.0, 14416117309360870529, 7758145696617331093),
    (-0.0, 12035550249420947055, 13309476754707697221),
    (0.5, 14364269161511417787, 3697970500475575296),
    (1e300, 15000092118704511539, 8092470165865076240),
    (float("inf"), 18364958198460773663, 5988430861817228720),
    ("", 12035550249420947055, 13309476754707697221),
    ("a", 7654031746014058981, 17307912314138778387),
    ("ab", 12386939440792260800, 3379018775343991001),
    ("ba", 2260930025459531264, 16818181520036111326),
    ("é", 2249997629263327305, 2141236130026522631),
    ("falconet", 6063035399429035140, 10231241901196500359),
    (dt.date(2020, 1, 2), 741643472003955650, 17430846851599947073),
    (dt.datetime(2020, 1, 2, 3, 4, 5, 6), 4279698658534234382, 9913735678842189501),
    ((1, 2), 15686512057667197151, 3631408169848256862),
    ((2, 1), 9222504313415374825, 8534032055177397483),
    (("a", 1), 826983404826382163, 13780717838581716097),
]


@pytest.mark.parametrize(("value", "zero", "seven"), GOLDEN, ids=lambda x: repr(x)[:24])
def test_golden_values(value: Any, zero: int, seven: int) -> None:
    assert (stable_hash(value), stable_hash(value, seed=7)) == (zero, seven)


def test_the_finaliser_is_splitmix64() -> None:
    """The first outputs of Vigna's splitmix64.c from state 1234567."""
    golden, state = 0x9E3779B97F4A7C15, 1234567
    got = [splitmix64((state + i * golden) % 2**64) for i in range(3)]
    assert got == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_null_and_nan_have_no_hash_alone_or_among_columns() -> None:
    assert [stable_hash(x) for x in (None, float("nan"), (1, None), ("a", float("nan")))] == [None] * 4


def test_equal_values_of_other_types_are_equal() -> None:
    assert stable_hash(3) == stable_hash(3.0) == stable_hash(np.int8(3)) == stable_hash(np.float32(3))
    assert stable_hash(0.5) == stable_hash(np.float32(0.5))
    assert stable_hash((5,)) == stable_hash([5]) == stable_hash(5)


def test_a_time_is_the_same_instant_in_every_zone() -> None:
    east = dt.timezone(dt.timedelta(hours=9))
    noon = dt.datetime(2020, 1, 2, 12, tzinfo=dt.UTC)
    assert stable_hash(noon) == stable_hash(noon.astimezone(east)) == stable_hash(noon.replace(tzinfo=None))


def test_what_has_no_hash_is_refused_by_its_type() -> None:
    with pytest.raises(DataError, match="bytes"):
        stable_hash(b"1")  # type: ignore[arg-type]


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.integers(0, 2**64 - 1))
def test_arrays_hash_like_single_values(values: list[int], seed: int) -> None:
    array = np.array(values, dtype=np.int64).view(np.uint64)
    assert hash_uint64(array, seed).tolist() == [stable_hash(x, seed) for x in values]
