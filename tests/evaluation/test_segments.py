"""Segments, lists and examples against counts by hand, on the world whose popular lists are known.

Items 3 4 5 6 7 were seen by 3 3 2 1 0 people. Users 0, 1 and 3 are tested, who had seen 3, 2 and 2; Popular gives them
6 7, 5 6 7 and 3 6 7; in the test they take 6, then 5 and 7 (and two unknown items), then an unknown one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from falconet.evaluation.evaluate import EvaluationConfig, evaluate


@pytest.fixture
def report(small: Path) -> dict[str, Any]:
    return evaluate(small, {}, EvaluationConfig(k=2))


def test_segments_are_thirds_of_what_was_done(report: dict[str, Any]) -> None:
    users, items = report["segments"]["users"], report["segments"]["items"]
    assert users["low"] == {"users": 2, "seen": [2, 2]}
    assert users["high"] == {"users": 1, "seen": [3, 3]}
    assert users["middle"] == {"users": 0, "seen": None}
    assert users["cold"]["users"] == 3
    # Of nine interactions 3 has the first third, 4 the second; 5, 6 and 7 the rest. Relevant are 6, 5 and 7.
    assert {name: one["items"] for name, one in items.items()} == {"head": 1, "mid": 1, "tail": 3, "cold": 5}
    assert items["head"]["train"] == pytest.approx(1 / 3)
    assert (items["head"]["test"], items["tail"]["test"]) == (0.0, 1.0)


def test_figures_of_segments_are_those_of_their_users_and_items(report: dict[str, Any]) -> None:
    popular = report["models"]["Popular"]
    # User 0 finds 6, users 1 and 3 one of four and nothing.
    assert popular["users"]["high"]["recall@2"]["value"] == 1.0
    assert popular["users"]["low"]["recall@2"]["value"] == pytest.approx((1 / 4 + 0) / 2)
    assert popular["users"]["middle"]["recall@2"] == {"value": None, "low": None, "high": None}
    # Of the tail user 0 finds 6 of 6, user 1 finds 5 of 5 and 7; nobody takes the head.
    assert popular["items"]["tail"]["recall@2"]["value"] == pytest.approx((1 + 1 / 2) / 2)
    assert popular["items"]["head"]["recall@2"]["value"] is None
    # Lists of two: 6 7, 5 6, 3 6.
    assert popular["items"]["head"]["share"] == pytest.approx(1 / 6, abs=1e-6)
    assert popular["items"]["tail"]["share"] == pytest.approx(5 / 6, abs=1e-6)
    assert popular["lists"]["coverage@2"] == pytest.approx(4 / 5)


def test_diversity_compares_the_lists_of_attributes(report: dict[str, Any]) -> None:
    # Item 6 is in every list and has no genres, so it has nothing in common with the other one.
    assert report["models"]["Popular"]["lists"]["diversity@2"] == pytest.approx(1.0)


def test_examples_are_people_of_little_middling_and_much_activity(report: dict[str, Any]) -> None:
    examples = report["examples"]
    assert [one["seen"] for one in examples] == [2, 2, 3]
    assert [one["user"] for one in examples] == ["1", "3", "0"]
    assert [one["test"] for one in examples] == [4, 1, 1]
    assert examples[0]["lists"]["Popular"] == [{"title": "5", "taken": True}, {"title": "6", "taken": False}]
    assert examples[0]["last"] == ["4", "3"]
