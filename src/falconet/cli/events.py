"""`falconet events export`: what people did while falconet served, as Parquet for the next training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from falconet.cli.report import Db

app = typer.Typer(help="What people did while falconet served.", no_args_is_help=True)


@app.callback()
def events() -> None:
    """Events of a store."""


@app.command()
def export(
    db: Db,
    out: Annotated[Path, typer.Option(help="The folder for the Parquet files.")],
    since: Annotated[int, typer.Option(help="Only events after this number: `last` of the manifest before.")] = 0,
    types: Annotated[
        list[str] | None, typer.Option("--type", help="A type of event to write; all but `hide` by default.")
    ] = None,
    sessions: Annotated[
        bool, typer.Option("--sessions", help="Visitors without a user's id too; their `user_id` is null.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write --out anew where it exists.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no notes.")] = False,
) -> None:
    """Write events as Parquet that `falconet prepare` reads; prints the folder."""
    from falconet.progress import set_quiet
    from falconet.serve.export import export_events
    from falconet.serve.stores import open_existing

    set_quiet(quiet)
    store = open_existing(db)
    try:
        typer.echo(export_events(store, out, since=since, types=types or None, sessions=sessions, overwrite=overwrite))
    finally:
        store.close()
