"""What `--help` prints has every word that stands in the source, brackets and all."""

import re
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from falconet.cli.main import app


def _commands(command: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Every command under `command`, with the words that call it."""
    below = getattr(command, "commands", {})
    return [(path, command)] + [found for name, sub in below.items() for found in _commands(sub, (*path, name))]


COMMANDS = _commands(typer.main.get_command(app))


def _letters(text: str) -> str:
    """`text` without spaces, frames and the marks of code, which depend on the width of the terminal."""
    return re.sub(r"[\s`│╭╮╰╯─]", "", text)


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(path) or "falconet" for path, _ in COMMANDS])
def test_help_says_all_that_the_source_says(path: tuple[str, ...], command: Any) -> None:
    shown = CliRunner().invoke(app, [*path, "--help"], terminal_width=250, env={"COLUMNS": "250", "NO_COLOR": "1"})
    assert shown.exit_code == 0, shown.output
    assert _letters(command.help or "") in _letters(shown.output)
    for parameter in command.params:
        words = getattr(parameter, "help", None)
        assert words is None or getattr(parameter, "hidden", False) or _letters(words) in _letters(shown.output)
