"""No operator of ours is without its contract."""

from __future__ import annotations

import ast
from pathlib import Path

from falconet import ops

HERE = Path(__file__).parent


def contracts(path: Path) -> set[str]:
    """The operators that the contract tests of a file are about: `op = ops.Clip(...)` in a class of tests."""
    return {
        line.value.func.attr
        for test in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(test, ast.ClassDef) and test.name.startswith("Test")
        for line in test.body
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "op"
        if isinstance(line.value, ast.Call) and isinstance(line.value.func, ast.Attribute)
    }


def test_every_operator_has_a_contract_test() -> None:
    tested = {name for file in HERE.glob("test_*.py") for name in contracts(file)}
    assert {name for name, op in ops.OPS.items() if op.__module__.startswith("falconet.")} - tested == set()
