"""`falconet data`: get a MovieLens release, make synthetic data, convert to Parquet. stdout is the resulting path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Get, make and convert data.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print numbers as JSON instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no notes.")]


@app.command()
def get(
    name: Annotated[
        str, typer.Argument(help="A release, like ml-latest-small or 25m; `data list` shows all.", metavar="NAME")
    ],
    out: Annotated[Path, typer.Option("--out", help="The folder to put it in.")] = Path("data"),
    source: Annotated[
        Path | None,
        typer.Option("--from", help="A zip that is here already, or a folder, which is used where it lies."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Download a MovieLens release, resuming what a cut connection left; prints its folder."""
    from falconet.datasets.download import download
    from falconet.progress import set_quiet

    set_quiet(quiet)
    typer.echo(download(name, out, source=source))


@app.command()
def synth(
    users: Annotated[int, typer.Option(help="How many users.")] = 2000,
    items: Annotated[int, typer.Option(help="How many films.")] = 1000,
    rows: Annotated[int, typer.Option(help="How many ratings.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Decides every value: the same seed, the same bytes.")] = 0,
    out: Annotated[Path, typer.Option("--out", help="The folder to write.")] = Path("data/synthetic"),
    quiet: Quiet = False,
) -> None:
    """Make MovieLens-shaped data with known structure; prints its folder."""
    from falconet.datasets.synthetic import synthesize
    from falconet.progress import set_quiet

    set_quiet(quiet)
    typer.echo(synthesize(out, users=users, items=items, rows=rows, seed=seed))


@app.command("list")
def list_releases(as_json: Json = False) -> None:
    """The MovieLens releases with their sizes and links."""
    from falconet.datasets.releases import BASE_URL, RELEASES

    rows = [
        {
            "name": release.name,
            "megabytes": release.megabytes,
            "ratings": release.ratings,
            "users": release.users,
            "movies": release.movies,
            "url": BASE_URL + release.zip_name,
            "page": release.page,
        }
        for release in RELEASES.values()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    typer.echo(f"{'name':<16}{'zip MB':>8}{'ratings':>12}{'users':>9}{'films':>8}  page")
    for row in rows:
        typer.echo(
            f"{row['name']:<16}{row['megabytes']:>8,.1f}{row['ratings']:>12,}{row['users']:>9,}{row['movies']:>8,}"
            f"  {row['page']}"
        )


@app.command()
def convert(
    path: Annotated[Path, typer.Argument(help="The folder or zip of a MovieLens release.", metavar="PATH")],
    out: Annotated[Path, typer.Option("--out", help="The folder to write.")],
    quiet: Quiet = False,
) -> None:
    """Write a release as Parquet (ratings/ and movies.parquet); prints its folder."""
    from falconet.datasets.movielens import convert as convert_release
    from falconet.progress import set_quiet

    set_quiet(quiet)
    typer.echo(convert_release(path, out))
