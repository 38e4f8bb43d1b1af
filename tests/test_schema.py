from __future__ import annotations

from dataclasses import replace

import pytest

from falconet.errors import ColumnNotFoundError, SchemaError
from falconet.schema import Column, Schema, Tag, embedding_width, get_embedding_sizes

GENRES = Column(
    name="genres", dtype="int32", list="ragged", tags=frozenset({Tag.ITEM, Tag.CATEGORICAL}), cardinality=24, oov=1
)
AGE = Column(name="age", dtype="float32", list=3, tags=frozenset({Tag.USER, Tag.CONTINUOUS, "mine"}), source=("birth",))


def test_a_schema_survives_json() -> None:
    schema = Schema((GENRES, AGE))
    assert Schema.from_json(schema.to_json()) == schema


def test_a_schema_prints_as_a_table() -> None:
    watched = replace(GENRES, name="watched", domain="genres")
    assert str(Schema((GENRES, AGE, watched))).splitlines() == [
        "column   type        tags                  codes",
        "genres   int32[]     categorical item      24",
        "age      float32[3]  continuous mine user",
        "watched  int32[]     categorical item      24 of genres",
    ]


def test_select_wants_all_tags() -> None:
    schema = Schema((GENRES, AGE))
    assert schema.select(Tag.ITEM, Tag.CATEGORICAL).names == ("genres",)
    assert schema.select(Tag.ITEM, Tag.USER).names == ()
    assert schema.without_tags("mine").names == ("genres",)


def test_a_missing_column_brings_the_close_name() -> None:
    with pytest.raises(ColumnNotFoundError, match=r"(?s)schema has no column `genre`.*did you mean `genres`\?"):
        Schema((GENRES,))["genre"]


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(SchemaError, match="two columns `age`"):
        Schema((AGE, AGE))


def test_tags_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(SchemaError, match="`x` cannot be both categorical and continuous"):
        Column(name="x", dtype="int32", tags=frozenset({"categorical", "continuous"}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "`f` is not a falconet schema"),
        ('{"format": 2, "columns": []}', "format 2, this version reads 1"),
        ('{"format": 1, "columns": [{"name": "x", "dtype": "int8", "tag": []}]}', "(?s)unknown key `tag`.*`tags`"),
        ('{"format": 1, "columns": [{"name": "x"}]}', "`f` is not a falconet schema"),
    ],
)
def test_what_is_not_a_schema_is_refused(text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        Schema.from_json(text, where="`f`")


@pytest.mark.parametrize(("cardinality", "width"), [(6, 16), (1000, 77), (30_000, 512), (162_544, 512)])
def test_embedding_widths_follow_the_rule(cardinality: int, width: int) -> None:
    assert embedding_width(cardinality) == width


def test_sizes_of_categorical_columns() -> None:
    assert get_embedding_sizes(Schema((GENRES, AGE))) == {"genres": (24, 16)}
    with pytest.raises(SchemaError, match=r"(?s)`x` has no cardinality.*Categorify"):
        get_embedding_sizes(Schema((Column(name="x", dtype="int32", tags=frozenset({"categorical"})),)))
