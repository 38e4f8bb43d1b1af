"""docs/serving.md as it stands: its programs run on a bundle, its table of calls is that of the server."""

from __future__ import annotations

import re
import shutil
from dataclasses import fields
from pathlib import Path

import pytest

from falconet.serve.http.app import create_app
from falconet.serve.recommender import Recommender
from falconet.serve.request import Request
from falconet.serve.serving import Serving
from serving_world import World

PAGE = (Path(__file__).parents[2] / "docs/serving.md").read_text(encoding="utf-8")


def test_the_programs_run(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(world.bundle, tmp_path / "work/bundle")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for program in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(program.replace("42", str(world.users[5])), names)  # noqa: S102
    answer, after, more, drama = (names[name] for name in ("answer", "after", "more", "drama"))
    liked = answer.items[0].item_id  # type: ignore[attr-defined]
    assert [met.item_id for met in after.history][-1] == liked  # type: ignore[attr-defined]
    shown = [item.item_id for page in (after, more) for item in page.items]  # type: ignore[attr-defined]
    assert len(set(shown)) == 10
    assert liked not in shown
    assert all("Drama" in item.attributes["genres"] for item in drama.items)  # type: ignore[attr-defined]
    names["store"].close()  # type: ignore[attr-defined]


def test_every_field_of_a_request_is_described() -> None:
    table = PAGE[PAGE.index("## What can be asked") : PAGE.index("### Filters")]
    assert {field.name for field in fields(Request)} - set(re.findall(r"`(\w+)`", table)) == set()


def test_every_call_is_described(recommender: Recommender) -> None:
    paths = set(create_app(Serving(recommender)).openapi()["paths"])
    assert paths - set(re.findall(r"(/(?:v1|health|version|metrics)[\w/{}]*)", PAGE)) == set()
