"""Filter expressions: plain Python's answers, and errors that say where."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from falconet.errors import DataError, FalconetError
from falconet.serve.filters import Filters

YEARS = [1979, 1986, None, 2001, 1999]
GENRES = [["Horror", "Sci-Fi"], ["Action", "Sci-Fi"], [], None, ["Comedy"]]
TITLES = ["Alien", "Aliens", "It's", "Amélie", 'The "Thing"']
COLUMNS = {
    "title": pa.chunked_array([TITLES[:2], TITLES[2:]]),
    "year": pa.array(YEARS, pa.int32()),
    "genres": pa.array(GENRES),
    "adult": pa.array([True, False, None, False, True]),
    "run time": pa.array([1.5, 2.0, float("nan"), None, 0.0]),
}
FILTERS = Filters(COLUMNS)


@pytest.mark.parametrize(
    ("expression", "parameters", "rows"),
    [
        ("year >= 1986", {}, [1, 3, 4]),
        ("1986 <= year", {}, [1, 3, 4]),
        ("year != 1979", {}, [1, 3, 4]),
        ("not year == 1979", {}, [1, 2, 3, 4]),
        ("year is null", {}, [2]),
        ("year is not null and year < 1990", {}, [0, 1]),
        ("'Sci-Fi' in genres", {}, [0, 1]),
        ("'Sci-Fi' not in genres", {}, [2, 4]),
        ("genres in ['Comedy', 'Horror']", {}, [0, 4]),
        ("genres not in $some", {"some": ["Comedy"]}, [0, 1, 2]),
        ("$one in genres", {"one": "Comedy"}, [4]),
        ("$any in genres", {"any": ["Comedy", "Action"]}, [1, 4]),
        ("year in [1979, 2001]", {}, [0, 3]),
        ("year not in [1979]", {}, [1, 3, 4]),
        ("year in $years", {"years": []}, []),
        ('title == \'It\'\'s\' or title == "The ""Thing"""', {}, [2, 4]),
        ("title == 'Amélie'", {}, [3]),
        ("adult", {}, [0, 4]),
        ("not adult", {}, [1, 2, 3]),
        ("adult == false", {}, [1, 3]),
        ("`run time` > 1.25e0", {}, [0, 1]),
        ("`run time` >= -0.5", {}, [0, 1, 4]),
        ("year > $from and (adult or 'Action' in genres)", {"from": 1980}, [1, 4]),
        ("adult or year > 1980 and year < 1990", {}, [0, 1, 4]),
        ("1 == 1", {}, [0, 1, 2, 3, 4]),
        ("2 in [1]", {}, []),
        ("year > 1985.5", {}, [1, 3, 4]),
    ],
)
def test_an_expression_holds_for_these_rows(expression: str, parameters: dict[str, object], rows: list[int]) -> None:
    for _ in range(2):  # the second time it is remembered
        assert np.flatnonzero(FILTERS.mask(expression, parameters)).tolist() == rows  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("expression", "parameters", "message"),
    [
        ("yaer > 3", {}, "character 1: items have no column `yaer`"),
        ("year >", {}, "character 7: a column, a value or a .parameter is expected"),
        ("year", {}, "character 5: a comparison is expected"),
        ("(year > 3", {}, r"character 10: `\)` is expected"),
        ("year > 3)", {}, r"character 9: `\)` is not expected here"),
        ("year > 3 year", {}, "character 10: `year` is not expected"),
        ("year = 3", {}, "character 6: this is not understood"),
        ("year > 3 # note", {}, "character 10: this is not understood"),
        ("year > 'a'", {}, "character 6: `year` and `'a'` cannot be compared"),
        ("year in ['a']", {}, r"character 1: `year` and `\[\.\.\.\]` cannot be compared"),
        *(
            (expression, {"x": value}, "cannot be compared")
            for value in (2**64, -(2**63) - 1, 10**30, "\ud800")
            for expression in ("title == $x", "$x in genres", "title in [$x]", "genres in [$x]", "$x == title")
        ),
        ("year < $x", {"x": 10**30}, "`year` and `\\$x` cannot be compared"),
        ("title == '\ud800'", {}, "character 7: `title` and `'\ud800'` cannot be compared"),
        ("genres == 'Comedy'", {}, "character 1: `genres` is a list"),
        ("'Comedy' in title", {}, "character 13: `title` is no list"),
        ("year in genres", {}, "character 1: one side of `in` must be values"),
        ("year in [title]", {}, "character 10: `title` cannot stand in a list"),
        ("year in [1 2]", {}, "character 12: `,` is expected"),
        ("year > $from", {}, "character 8: no value is given for `.from`"),
        ("year > 99999999999999999999", {}, "character 8: `9+` does not fit"),
        ("title == 'open", {}, "character 10: this is not understood"),
        ("", {}, "character 1: a column"),
        ("(" * 50 + "year > 1" + ")" * 50, {}, "too many brackets"),
        ("not " * 50 + "year > 1", {}, "too many brackets or `not`"),
        ("year > 1 or " * 200 + "adult", {}, "the filter has 2,405 characters"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(expression: str, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        FILTERS.mask(expression, parameters)  # type: ignore[arg-type]


@given(st.text("yeargnsin tolad0123456789.<>=!()[],'\"$`-", max_size=40), st.integers())
def test_any_text_is_an_answer_or_an_error_of_ours(expression: str, value: int) -> None:
    try:
        mask = FILTERS.mask(expression, {"a": value} if "$a" in expression else {})
    except FalconetError:
        return
    assert mask.shape == (5,)


TERMS = st.sampled_from(
    [
        ("year > 1980", [False, True, False, True, True]),
        ("adult", [True, False, False, False, True]),
        ("'Sci-Fi' in genres", [True, True, False, False, False]),
    ]
)


@given(
    st.recursive(
        TERMS,
        lambda inner: st.one_of(
            inner.map(lambda x: (f"not ({x[0]})", [not y for y in x[1]])),
            st.tuples(inner, inner).map(
                lambda x: (f"({x[0][0]}) and ({x[1][0]})", [a and b for a, b in zip(x[0][1], x[1][1], strict=True)])
            ),
            st.tuples(inner, inner).map(
                lambda x: (f"({x[0][0]}) or ({x[1][0]})", [a or b for a, b in zip(x[0][1], x[1][1], strict=True)])
            ),
        ),
        max_leaves=8,
    )
)
def test_and_or_not_are_pythons(case: tuple[str, list[bool]]) -> None:
    assert FILTERS.mask(case[0]).tolist() == case[1]


def test_columns_are_listed_and_no_items_are_no_rows() -> None:
    assert FILTERS.columns["genres"] == "list<item: string>"
    assert Filters({"year": pa.array([], pa.int32())}).mask("year > 3").shape == (0,)
