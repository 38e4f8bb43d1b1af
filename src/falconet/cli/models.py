"""`falconet models`: which models there are, and what one can be told."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer


def models(
    name: Annotated[str | None, typer.Argument(help="One model, with its settings; left out: all of them.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the same as JSON, with all settings.")] = False,
) -> None:
    """List the models that `model = …` in a recipe may name, or the settings of one."""
    from falconet.models import describe
    from falconet.models import list as names

    found = [describe(one) for one in (names() if name is None else (name,))]
    if as_json:
        typer.echo(json.dumps(found if name is None else found[0], indent=1))
    else:
        typer.echo("\n".join(_row(one) for one in found) if name is None else "\n".join(_settings(found[0])))


def _row(model: dict[str, Any]) -> str:
    return f"{model['name']:<14}{model['kind']:<27}{model['about']}"


def _settings(model: dict[str, Any]) -> list[str]:
    defaults = {name: one["default"] for name, one in model["settings"].items()}
    rows = [f"{name:<18}{'(not set)' if x is None else json.dumps(x)}" for name, x in defaults.items()]
    return [f"{model['name']}, a {model['kind']}: {model['about']}", "", *(rows or ["It has no settings."])]
