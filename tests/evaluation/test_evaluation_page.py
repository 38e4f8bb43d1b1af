"""docs/evaluation.md: its commands and its program run in this order, and its protocols are those that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from falconet.cli.main import app
from falconet.datasets.synthetic import synthesize
from falconet.recipe.protocol import PROTOCOLS

PAGE = (Path(__file__).parent.parent.parent / "docs/evaluation.md").read_text(encoding="utf-8")
RECIPE = """format = 1
data.path = "data"
prepare.history = "others"
retriever.model = "ItemKNN"
ranker.train.epochs = 1
bundle.candidates = 20
"""


def test_commands_and_program_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    synthesize(tmp_path / "data", users=40, items=40, rows=1_200, seed=3)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "ml-100k").mkdir()
    rows = [(user, 1 + (user % 2 * 15 + n * 7) % 30, 1 + n % 5, n) for user in range(1, 31) for n in range(8)]
    (tmp_path / "ml-100k/u.data").write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    (commands,) = re.findall(r"```console\n(.*?)```", PAGE, re.S)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    invoked("run recipe.toml")
    of_recipe, of_protocol = (invoked(line.split("#")[0]) for line in re.findall(r"^\$ falconet (.*)$", commands, re.M))
    assert "ItemKNN" not in of_recipe
    assert "two_stage" in of_recipe
    assert "BiVAE *" in of_protocol
    for name in ("Popular", "EASE", "ItemKNN", "SAR", "BPR"):
        assert re.search(rf"^.?\s*{name} ", of_protocol, re.M), name
    capsys.readouterr()
    exec(compile(program, "docs/evaluation.md", "exec"), {})  # noqa: S102 (our own page)
    assert 0 <= float(capsys.readouterr().out) <= 1
    assert json.loads((tmp_path / "mine/report.json").read_bytes())["models"].keys() == {"Popular", "EASE", "mine"}
    assert (tmp_path / "mine/report.html").is_file()


def invoked(line: str) -> str:
    """What a command prints to stdout."""
    done = CliRunner().invoke(app, line.split())
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_every_protocol_is_listed_in_order() -> None:
    assert re.findall(r"^\| `([\w-]+)` \|", PAGE, re.M) == list(PROTOCOLS)
