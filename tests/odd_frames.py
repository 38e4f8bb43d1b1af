"""Frames nobody would write by hand: nulls, NaN, infinities, empty strings, names in many alphabets, whole numbers
beyond 2^53, empty and null lists, one row or none.
"""

from __future__ import annotations

from typing import Any

import polars as pl
from hypothesis import strategies as st

WORDS = ["", "a", "A", "ß", "日本", "\U0001f600", "a_b", "é", "null", " "]
WHOLE = [0, 1, -1, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 7, 7, 300]
REAL = [0.0, -0.0, 1.5, -2.5, 1e300, 5e-324, float("nan"), float("inf"), -float("inf"), 0.1]

frames = st.lists(
    st.fixed_dictionaries(
        {
            "word": st.one_of(st.none(), st.sampled_from(WORDS)),
            "whole": st.one_of(st.none(), st.sampled_from(WHOLE)),
            "small": st.one_of(st.none(), st.integers(-128, 127)),
            "real": st.one_of(st.none(), st.sampled_from(REAL)),
            "words": st.one_of(st.none(), st.lists(st.one_of(st.none(), st.sampled_from(WORDS)), max_size=3)),
            "reals": st.one_of(st.none(), st.lists(st.one_of(st.none(), st.sampled_from(REAL)), max_size=3)),
            "time": st.one_of(st.none(), st.integers(0, 5)),
            "flag": st.one_of(st.none(), st.integers(0, 1)),
        }
    ),
    max_size=8,
)
SCHEMA = {
    "word": pl.String(),
    "whole": pl.Int64(),
    "small": pl.Int8(),
    "real": pl.Float64(),
    "words": pl.List(pl.String()),
    "reals": pl.List(pl.Float64()),
    "time": pl.Int64(),
    "flag": pl.Int8(),
}


def frame_of(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA)
