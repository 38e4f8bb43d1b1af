"""`falconet data`: stdout is the resulting path, messages go to stderr."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from falconet import progress
from falconet.cli.data import app
from falconet.datasets.movielens import open_movielens
from falconet.errors import ConfigError
from tiny_movielens import CSV, README, write_folder, write_zip


@pytest.fixture(autouse=True)
def loud() -> Iterator[None]:
    """`--quiet` is a setting of the process; undo it."""
    yield
    progress.set_quiet(False)


def run(*arguments: object) -> tuple[str, str]:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout, result.stderr


def test_get_prints_the_folder_and_says_the_licence(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {**CSV, "README.txt": README}, "ml-latest-small/")
    out, err = run("get", "latest-small", "--from", path, "--out", tmp_path / "data")
    assert out == f"{tmp_path / 'data' / 'ml-latest-small'}\n"
    assert "Usage License" in err


def test_get_can_be_quiet(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "ml-20m", {**CSV, "README.txt": README})
    assert run("get", "ml-20m", "--from", folder, "--quiet") == (f"{folder}\n", "")


def test_get_of_an_unknown_release_raises_for_main_to_show() -> None:
    with pytest.raises(ConfigError, match="unknown release `ml-26m`"):
        run("get", "ml-26m")


def test_synth_writes_what_was_asked_for(tmp_path: Path) -> None:
    out, _ = run("synth", "--users", 30, "--items", 40, "--rows", 300, "--seed", 3, "--out", tmp_path / "a", "-q")
    assert out == f"{tmp_path / 'a'}\n"
    data = open_movielens(tmp_path / "a")
    assert (data.release, sum(batch.num_rows for batch in data.ratings()), len(data.movies())) == ("synthetic", 300, 40)


def test_convert_prints_the_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "ml-tiny", CSV)
    assert run("convert", folder, "--out", tmp_path / "b") == (f"{tmp_path / 'b'}\n", "")
    assert len(open_movielens(tmp_path / "b").movies()) == 3


def test_list_shows_names_sizes_and_links() -> None:
    lines = run("list")[0].splitlines()
    assert lines[0].split() == ["name", "zip", "MB", "ratings", "users", "films", "page"]
    assert lines[6].split() == [
        "ml-25m", "262.0", "25,000,095", "162,541", "62,423", "https://grouplens.org/datasets/movielens/25m/",
    ]  # fmt: skip


def test_list_gives_the_same_numbers_as_json() -> None:
    rows = json.loads(run("list", "--json")[0])
    assert len(rows) == 8
    assert rows[5] == {
        "name": "ml-25m",
        "megabytes": 262.0,
        "ratings": 25000095,
        "users": 162541,
        "movies": 62423,
        "url": "https://files.grouplens.org/datasets/movielens/ml-25m.zip",
        "page": "https://grouplens.org/datasets/movielens/25m/",
    }
