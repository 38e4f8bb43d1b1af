"""`falconet recommend BUNDLE`: recommendations for one person, as a table or JSON, or for all of a file, as Parquet."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from falconet.errors import ConfigError

if TYPE_CHECKING:
    from falconet.serve.answers import Recommendation

PIPED_WIDTH = 120  # columns of the table where there is no terminal to ask


def recommend(
    bundle: Annotated[Path, typer.Argument(help="The folder `falconet bundle` wrote.", metavar="BUNDLE")],
    user: Annotated[str | None, typer.Option(help="The id of a user; unknown ones get what is popular.")] = None,
    history: Annotated[
        str | None, typer.Option(help="Item ids a new visitor met, oldest first: --history 1,50,260")
    ] = None,
    k: Annotated[int, typer.Option("-k", help="How many items.", min=1)] = 10,
    db: Annotated[
        str | None, typer.Option(help="Events to take into account: a file (SQLite), postgresql://... or redis://...")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    users: Annotated[
        Path | None,
        typer.Option(help="Everybody in this file: Parquet, or CSV with names in its first line. Needs --out."),
    ] = None,
    column: Annotated[str, typer.Option(help="The column of --users with the ids.")] = "user_id",
    out: Annotated[Path | None, typer.Option(help="The folder for the recommendations of --users.")] = None,
    filter: Annotated[str | None, typer.Option(help="What must hold for an item: --filter 'year >= 1990'")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write --out anew where it exists.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no notes.")] = False,
) -> None:
    """Recommend items to a user, to somebody who met the items of --history, or to all --users of a file."""
    from falconet.progress import note, set_quiet
    from falconet.serve.recommender import Recommender
    from falconet.serve.stores import open_existing

    set_quiet(quiet)
    if (users is None) != (out is None):
        given, missing = ("--users", "--out") if out is None else ("--out", "--users")
        raise ConfigError(f"`{given}` without `{missing}`", hint="--users FILE --out FOLDER")
    if users is None and (overwrite or column != "user_id"):
        name = "--overwrite" if overwrite else "--column"
        raise ConfigError(f"`{name}` is of `--users`", hint="--users FILE --out FOLDER, or leave it out")
    if users is not None and (user is not None or history is not None):
        raise ConfigError("`--users` goes with neither `--user` nor `--history`")
    store = None if db is None else open_existing(db)
    try:
        recommender = Recommender.load(bundle, store, threads=1 if users is None else None)  # None: all cores
        if users is not None and out is not None:
            typer.echo(recommender.recommend_users(users, out, column=column, overwrite=overwrite, k=k, filter=filter))
            return
        items = None if history is None else [item.strip() for item in history.split(",") if item.strip()]
        answer = recommender.recommend(user, history=items, k=k, filter=filter)
        if unknown := [item for item in items or () if recommender.bundle.engine.catalogue.code(item) is None]:
            note(f"not in the catalogue, left out: {', '.join(unknown)}")
    finally:
        if store is not None:
            store.close()
    if as_json:
        typer.echo(json.dumps(asdict(answer), indent=1, ensure_ascii=False, default=str))
    else:
        show(answer)


def show(answer: Recommendation) -> None:
    """Print an answer as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, caption_justify="left")
    for name, side in (("", "right"), ("item", "right"), ("title", "left"), ("retriever", "right"), ("score", "right")):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    table.add_column("why")
    for item in answer.items:
        first = f"{item.retriever_score:.3f} (#{item.retriever_rank})"
        table.add_row(str(item.rank), str(item.item_id), item.title, first, f"{item.score:.3f}", item.reason)
    width = None if sys.stdout.isatty() else PIPED_WIDTH
    console = Console(highlight=False, markup=False, width=width)
    console.print(table)
    if answer.cold_start:
        console.print("cold start: this person was not in the training data")
