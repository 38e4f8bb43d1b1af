from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import pytest

from falconet.config import config_hash, from_plain, to_plain
from falconet.errors import ConfigError
from falconet.ops import OPS


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int = 3


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    rate: float = 0.5
    kind: Literal["a", "b"] = "a"
    hidden: tuple[int, ...] = (1, 2)
    limit: int | None = None
    ends: str | Sequence[float] = ()
    others: tuple[Inner, ...] = ()
    inner: Inner = field(default_factory=Inner)


def test_a_config_survives_plain_values() -> None:
    config = Outer(name="x", hidden=(), limit=4, inner=Inner(size=9))
    assert from_plain(Outer, to_plain(config)) == config


def test_whole_numbers_are_numbers() -> None:
    assert from_plain(Outer, {"name": "x", "rate": 1}).rate == 1.0


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("TimeParts", {"parts": "hour"}),
        ("TimeParts", {"parts": ["hour", "weekday"]}),
        ("Bucketize", {"boundaries": 4}),
        ("Bucketize", {"boundaries": [1, 2.5]}),
        ("Bucketize", {"boundaries": {"price": [1, 2.5], "age": 3}}),
        ("DifferenceLag", {"partition_cols": ["user"], "shift": [1, -1]}),
        ("Groupby", {"groupby_cols": "user", "aggs": {"item": ["list", "count"], "time": "max"}}),
        ("AddTags", {"tags": ["user", "mine"]}),
    ],
)
def test_operators_take_lists_and_tables_as_files_have_them(name: str, settings: dict[str, object]) -> None:
    assert from_plain(OPS[name], settings) == OPS[name](**settings)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "x", "raet": 1}, "(?s)`recipe` has an unknown key `raet`.*did you mean `rate`"),
        ({}, "`recipe` lacks the key `name`"),
        ({"name": 3}, "`recipe.name` must be a string, not 3"),
        ({"name": "x", "rate": True}, "`recipe.rate` must be a number, not True"),
        ({"name": "x", "limit": 1.5}, "`recipe.limit` must be a whole number or nothing, not 1.5"),
        ({"name": "x", "kind": "c"}, "`recipe.kind` must be one of 'a', 'b', not 'c'"),
        ({"name": "x", "hidden": [1, "2"]}, r"`recipe.hidden\[1\]` must be a whole number"),
        ({"name": "x", "inner": {"sise": 1}}, "(?s)`recipe.inner` has an unknown key `sise`.*did you mean `size`"),
        ({"name": "x", "ends": 3}, "`recipe.ends` must be a string or a list of numbers, not 3"),
        ({"name": "x", "others": ""}, r"`recipe.others` must be a list of tables \(Inner\), not ''$"),
        ({"name": "x", "inner": 3}, "`recipe.inner` must be a table of settings, not 3"),
        ([], "`recipe` must be a table of settings"),
    ],
)
def test_a_wrong_setting_is_named(given: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_plain(Outer, given, where="recipe")


def test_the_hash_of_a_config_does_not_depend_on_the_order_of_keys() -> None:
    assert config_hash({"a": 1, "b": 2}) == config_hash({"b": 2, "a": 1})
    assert config_hash({"a": 1}) != config_hash({"a": 2})
