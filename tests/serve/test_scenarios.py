"""Scenarios of A/B tests: who has which variant, and what is wrong with a file of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from falconet.errors import ConfigError
from falconet.serve.events import Who
from falconet.serve.request import Request
from falconet.serve.scenarios import Scenario, Scenarios, Variant

HOME = """
[[scenario]]
name = "home"
[[scenario.variants]]
name = "as-is"
weight = 3
[[scenario.variants]]
name = "diverse"
diversity = 0.3
boosts = { "'Drama' in genres" = 0.5 }
"""


def read(tmp_path: Path, text: str) -> Scenarios:
    (tmp_path / "ab.toml").write_text(text)
    return Scenarios.read(tmp_path / "ab.toml")


def test_a_file_is_read_and_a_variant_changes_what_it_names_alone(tmp_path: Path) -> None:
    as_is, diverse = read(tmp_path, HOME).of("home").variants
    request = Request(user_id=7, k=3, temperature=0.5)
    assert as_is.apply(request) == request
    changed = diverse.apply(request)
    assert (changed.k, changed.temperature, changed.diversity) == (3, 0.5, 0.3)
    assert changed.boosts == {"'Drama' in genres": 0.5}


def test_shares_are_those_of_the_weights_and_a_person_keeps_a_variant(tmp_path: Path) -> None:
    home = read(tmp_path, HOME).of("home")
    had = [home.variant(Who("user", user)).name for user in range(20_000)]
    assert abs(Counter(had)["diverse"] / 20_000 - 0.25) < 0.0125  # four standard deviations
    assert had == [read(tmp_path, HOME).of("home").variant(Who("user", user)).name for user in range(20_000)]
    assert [user for user in range(24) if had[user] == "diverse"] == [9, 17]  # for ever


def test_two_scenarios_and_users_and_sessions_are_drawn_apart() -> None:
    variants = (Variant(name="a"), Variant(name="b"))
    one, two = (Scenario(name=name, variants=variants) for name in ("one", "two"))
    pairs = Counter((one.variant(Who("user", n)).name, two.variant(Who("user", n)).name) for n in range(4000))
    assert all(abs(count - 1000) < 120 for count in pairs.values())
    kinds = Counter((one.variant(Who("user", n)).name, one.variant(Who("session", n)).name) for n in range(4000))
    assert all(abs(count - 1000) < 120 for count in kinds.values())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HOME.replace("diversity", "diversty"), "unknown key `diversty`"),
        (HOME.replace("0.3", "3"), r"variant `diverse`: `diversity` is 3"),
        (HOME.replace("weight = 3", "weight = 0"), r"variant `as-is` has the weight 0"),
        (HOME.replace('"diverse"', '"as-is"'), "each with a name of its own"),
        (HOME + HOME, "two scenarios have the name `home`"),
        (HOME.replace("'Drama' in genres", "$g in genres"), "boosts have no parameters, but `.g in genres` does"),
        ("[[scenario", "is not TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(tmp_path, text)


def test_a_name_that_is_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean `home`"):
        read(tmp_path, HOME).of("hom")
    with pytest.raises(ConfigError, match="`falconet serve --scenarios FILE` names them"):
        Scenarios().of("home")
    with pytest.raises(ConfigError, match="no file of scenarios"):
        Scenarios.read(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read: "):
        Scenarios.read(tmp_path)
