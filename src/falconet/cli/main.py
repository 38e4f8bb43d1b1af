"""The `falconet` command: parse, call the library once, print. Heavy imports wait until a command runs."""

from __future__ import annotations

import errno
import os
import signal
import sys
from typing import Annotated

import typer

from falconet.cli import data, doctor, events, export, launch, models, recipe, recommend, report, serve
from falconet.errors import FalconetError
from falconet.plugins import load_modules

app = typer.Typer(
    help="Recommender systems end to end, on whatever machine you have. `falconet demo` shows all of it in a minute.",
    no_args_is_help=True,
    rich_markup_mode="markdown",  # the default takes `[tune]` for a style and drops it
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(show: bool) -> None:
    if show:
        from falconet.io.artifact import falconet_version

        typer.echo(falconet_version())
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    module: Annotated[
        list[str] | None,
        typer.Option(
            help="Load a module or a .py file first, with models or operators of your own; as often as needed."
        ),
    ] = None,
) -> None:
    """What stands before every command."""
    load_modules(module or ())


app.add_typer(data.app, name="data")
for command in (
    recipe.prepare,
    recipe.train,
    recipe.evaluate,
    recipe.bundle,
    recipe.run,
    recipe.tune,
    recipe.demo,
):
    app.command()(command)
app.command()(recommend.recommend)
app.command()(export.export)
app.command()(serve.serve)
app.command()(serve.rollback)
app.add_typer(report.app, name="report")
app.add_typer(events.app, name="events")
app.command()(models.models)
app.command()(doctor.doctor)
app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
)(launch.launch)


_ELSEWHERE = "choose another folder, one that you may write to"
_HINTS = {
    errno.EACCES: _ELSEWHERE,
    errno.EPERM: _ELSEWHERE,
    errno.EROFS: _ELSEWHERE,
    errno.ENOSPC: "the disk is full: make room, or choose a folder on another one",
}


def main() -> None:
    """Run the command. A user's mistake ends with `error: …` and exit code 1, without a traceback.

    Ctrl-C ends with 130 and SIGTERM with 143, both after what is half written has been removed.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        app()
    except FalconetError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
    except OSError as error:  # a full disk, a folder one may not write to
        if error.errno is None:
            raise
        about = f": `{error.filename}`" if error.filename else ""
        hint = _HINTS.get(error.errno)
        typer.echo(f"error: {os.strerror(error.errno)}{about}" + (f"\n\nhint: {hint}" if hint else ""), err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
