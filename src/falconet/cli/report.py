"""`falconet report ab`: what came of A/B tests, as a table or as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from falconet.serve.ab import Report

app = typer.Typer(help="What came of A/B tests.", no_args_is_help=True)
Db = Annotated[str, typer.Argument(help="The events: a file (SQLite), postgresql://... or redis://...", metavar="DB")]


@app.callback()
def reports() -> None:
    """Reports of what was served."""


@app.command("ab")
def ab(
    db: Db,
    scenarios: Annotated[Path, typer.Option(help="The file that `falconet serve --scenarios` had.")],
    types: Annotated[
        list[str] | None, typer.Option("--type", help="A type of event that counts; all but `hide` by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Which share of the people of each variant responded, and whether it differs from the first."""
    from falconet.serve.ab import report, to_plain
    from falconet.serve.scenarios import Scenarios
    from falconet.serve.stores import open_existing

    tests = Scenarios.read(scenarios)
    store = open_existing(db)
    try:
        found = report(store, tests, types or None)
    finally:
        store.close()
    if as_json:
        typer.echo(json.dumps(to_plain(found), indent=1))
        return
    for name, one in found.items():
        typer.echo(_table(name, one))


def _table(name: str, one: Report) -> str:
    """A scenario as text."""
    from falconet.progress import aligned

    lines = [(name, "people", "lists", "events", "responding", "95 %", "to first", "95 %", "p")]
    for variant, result in one.variants.items():
        share, apart = result.responding, result.to_first
        lines.append(
            (
                variant,
                f"{result.people:,}",
                f"{result.lists:,}",
                f"{result.events:,}",
                "" if share is None else f"{share.value:.2%}",
                "" if share is None else f"{share.low:.2%} to {share.high:.2%}",
                "" if apart is None else f"{apart.value:+.2%}",
                "" if apart is None else f"{apart.low:+.2%} to {apart.high:+.2%}",
                "" if apart is None else f"{apart.p:.4f}",
            )
        )
    said = [aligned(lines)]
    if not one.split_fits:
        said.append(
            f"people are not split as the weights say (p = {one.split_p:.2g}): "
            "something loses people of one variant, so do not trust the figures"
        )
    if one.in_several:
        said.append(f"{one.in_several:,} people had several variants and are left out")
    if one.unknown:
        said.append(f"{one.unknown:,} lists of variants that the scenario does not name are left out")
    return "\n".join(said)
