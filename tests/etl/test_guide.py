"""docs/etl.md and docs/operators.md as they stand: their programs run, and every operator is there as it is."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import inspect
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from falconet import ops

GUIDE = Path(__file__).parents[2] / "docs" / "etl.md"
OPERATORS = GUIDE.with_name("operators.md")
OURS = {name: op for name, op in ops.OPS.items() if op.__module__.startswith("falconet.")}


def test_the_guide_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)
    assert len(blocks) == 3
    program = "\n".join(
        [*blocks, "print(row)", "print(table.rows())", "print(back['user'].to_list())", "print(more.rows)"]
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    row, table, back, more = done.stdout.splitlines()[-4:]
    assert row.startswith("{'user': 4, 'item': ")
    assert table == "[(4, 'ann', 3), (5, 'bob', 2), (6, 'cid', 1)]"
    assert back == "['ann', 'bob', 'ann', 'cid', 'bob', 'ann']"
    assert more == "8"
    rows = {folder.name: pl.read_parquet(folder / "*.parquet").height for folder in (tmp_path / "features").iterdir()}
    assert rows == {"all": 6, "train": 3, "valid": 1, "test": 2}


def test_the_guide_names_every_operator() -> None:
    named = set(re.findall(r"`(\w+)`", GUIDE.read_text()))
    assert OURS.keys() - named == set()


def test_the_examples_of_operators_give_what_they_say() -> None:
    text = OPERATORS.read_text(encoding="utf-8").replace("```python", "").replace("```", "")
    examples = doctest.DocTestParser().get_doctest(text, {}, OPERATORS.name, str(OPERATORS), 0)
    runner = doctest.DocTestRunner()
    runner.run(examples)
    assert len(examples.examples) > len(OURS)
    assert runner.summarize().failed == 0


@pytest.mark.parametrize("name", sorted(OURS))
def test_an_operator_s_parameters_are_those_of_the_guide(name: str) -> None:
    """With their defaults; `...` where there is none and a name is needed."""
    text = OPERATORS.read_text(encoding="utf-8")
    (heading,) = re.findall(rf"^### .*\b{name}\b.*$", text, re.M)
    parameters = inspect.signature(OURS[name]).parameters
    if not parameters and "four without parameters" in text.partition(heading)[2].splitlines()[1]:
        return
    (written,) = re.findall(rf"`({name}\(.*?\))`", text.partition(heading)[2].splitlines()[1])
    call = ast.parse(written, mode="eval").body
    assert isinstance(call, ast.Call)
    needed = [p for p in parameters.values() if p.default is p.empty]
    assert [arg.id for arg in call.args if isinstance(arg, ast.Name)] == [
        p.name for p in needed if p.kind is not p.KEYWORD_ONLY
    ]
    made = {f.name: f.default_factory for f in dataclasses.fields(OURS[name]) if callable(f.default_factory)}
    assert {k.arg: ast.literal_eval(k.value) for k in call.keywords} == {
        p.name: ... if p in needed else made[p.name]() if p.name in made else p.default
        for p in parameters.values()
        if p not in needed or p.kind is p.KEYWORD_ONLY
    }
