"""The Dockerfile and docs/deploying.md name what is there: files, extras, options of the command."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

from falconet.cli.main import app

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/deploying.md").read_text(encoding="utf-8")
OPTIONS = {flag for parameter in get_command(app).commands["serve"].params for flag in parameter.opts}  # type: ignore[attr-defined]


def test_the_image_is_made_from_files_and_extras_that_are_there() -> None:
    copied = [name for line in re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.M) for name in line.split()]
    assert {"pyproject.toml", "constraints.txt", "src"} <= set(copied)
    ignored = (ROOT / ".dockerignore").read_text().split()
    for name in copied:
        assert (ROOT / name).exists(), name
        assert name not in ignored
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {project["readme"], *project["license-files"]} <= set(copied)
    extras = re.search(r'"\.\[(.+)\]"', DOCKERFILE)
    assert extras is not None
    assert set(extras[1].split(",")) <= project["optional-dependencies"].keys()
    assert re.search(r"^torch==", (ROOT / "constraints.txt").read_text(), re.M)


def test_commands_have_the_options_that_they_are_given() -> None:
    command = json.loads(re.findall(r"^CMD (\[.+\])$", DOCKERFILE, re.M)[-1])
    assert command[0] == "serve"
    assert {flag for flag in command if flag.startswith("--")} <= OPTIONS
    told = re.findall(r"falconet serve [^\n`]*", PAGE)
    assert len(told) >= 2
    for line in told:
        assert set(re.findall(r"--[a-z-]+", line)) <= OPTIONS, line


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)]+)\)", PAGE))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / "docs" / link).exists()
