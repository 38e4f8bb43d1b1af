"""`falconet prepare | train | evaluate | bundle | run | demo`: a recipe, step by step or at once."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from falconet.recipe.protocol import PROTOCOLS

if TYPE_CHECKING:
    from falconet.recipe.config import Recipe

RecipeFile = Annotated[Path, typer.Argument(help="The recipe, a TOML file.", metavar="RECIPE")]
Out = Annotated[Path, typer.Option("--out", help="The working folder.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Change a setting: --set table.key=value, as often as you like.")
]
Json = Annotated[bool, typer.Option("--json", help="Print numbers as JSON instead of a table.")]
WORSE = 3  # the exit code where a refresh is not made current
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no notes.")]


def _read(recipe: Path, settings: list[str] | None, quiet: bool) -> Recipe:
    from falconet.progress import set_quiet
    from falconet.recipe.config import read_recipe

    set_quiet(quiet)
    return read_recipe(recipe, settings or ())


def prepare(recipe: RecipeFile, out: Out = Path("work"), settings: Settings = None, quiet: Quiet = False) -> None:
    """Raw files to features: fit the workflow, split, write train, test, users and items."""
    from falconet.recipe.run import run as run_steps

    run_steps(_read(recipe, settings, quiet), out, only="prepare")
    typer.echo(out / "features")


def train(
    recipe: RecipeFile,
    stage: Annotated[str | None, typer.Option(help="`retriever` or `ranker`; both by default.")] = None,
    out: Out = Path("work"),
    settings: Settings = None,
    quiet: Quiet = False,
) -> None:
    """Train the retrievers, then the ranker on what they return."""
    from falconet.errors import ConfigError
    from falconet.recipe.run import run as run_steps

    if stage not in (None, "retriever", "ranker"):
        raise ConfigError(f"--stage is `{stage}`", hint="`retriever` or `ranker`")
    plan = _read(recipe, settings, quiet)
    for name in ("retriever", "ranker") if stage is None else (stage,):
        run_steps(plan, out, only=name)
        for model in plan.retrievers if name == "retriever" else (name,):
            typer.echo(out / "runs" / model)


def evaluate(
    recipe: Annotated[Path | None, typer.Argument(help="The recipe, a TOML file.", metavar="RECIPE")] = None,
    protocol: Annotated[
        str | None, typer.Option(help=f"Without a recipe: how to split and measure: {', '.join(PROTOCOLS)}.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Without a recipe: a MovieLens release, or a folder with `u.data`.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The working folder. Default: work; without a recipe work-PROTOCOL.", show_default=False),
    ] = None,
    settings: Settings = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare models with Popular and EASE on the test rows; write report.json and report.html.

    With RECIPE, what was trained by it and what it names under `[[compare]]`. With --protocol and --data, the
    protocol's own models on those ratings, beside the figures that others published for it.
    """
    from falconet.errors import ConfigError
    from falconet.progress import set_quiet
    from falconet.recipe.comparison import protocol_recipe
    from falconet.recipe.run import compare
    from falconet.recipe.run import run as run_steps

    if recipe is not None:
        if protocol is not None or data is not None:
            raise ConfigError(
                "--protocol and --data are for an evaluation without a recipe",
                hint=f'`protocol = "…"` and `[data] path` in `{recipe}`, or --set protocol=…, say the same',
            )
        plan = _read(recipe, settings, quiet)
        _show_report(run_steps(plan, out or Path("work"), only="evaluate"), plan, as_json)
        return
    if protocol is None or data is None:
        raise ConfigError(
            "nothing says what to evaluate", hint="falconet evaluate RECIPE, or --protocol NAME --data FOLDER"
        )
    set_quiet(quiet)
    plan = protocol_recipe(protocol, data, settings or ())
    _show_report(compare(plan, out or Path(f"work-{protocol}")), plan, as_json)


def bundle(recipe: RecipeFile, out: Out = Path("work"), settings: Settings = None, quiet: Quiet = False) -> None:
    """Put workflow, models, index and catalogue into one folder that `falconet serve` reads."""
    from falconet.recipe.run import run as run_steps

    run_steps(_read(recipe, settings, quiet), out, only="bundle")
    typer.echo(out / "bundle")


def run(
    recipe: RecipeFile,
    out: Out = Path("work"),
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Go on from what is there with --events, to a bundle of its own.")
    ] = False,
    events: Annotated[
        str | None,
        typer.Option(
            help="With --refresh: a file (SQLite), postgresql://..., redis://..., or exported events. "
            "Default: events.db in --out."
        ),
    ] = None,
    reload: Annotated[
        str | None, typer.Option(help="With --refresh: the address of a server that is told of the new bundle.")
    ] = None,
    token: Annotated[
        str | None, typer.Option(help="What the server of --reload asks for.", envvar="FALCONET_TOKEN")
    ] = None,
    settings: Settings = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """The whole road: prepare, train both stages, evaluate, bundle. Complete and unchanged steps are skipped.

    With --refresh, what people did since is learned as well, and the new bundle is compared with the current one. Where
    it is worse by more than `refresh.margin` it is kept and not made current; the exit code is then 3.
    """
    from falconet.errors import ConfigError
    from falconet.progress import note
    from falconet.recipe.demo import COMMAND
    from falconet.recipe.run import run as run_steps

    if not refresh:
        for name, given in (("events", events), ("reload", reload)):
            if given is not None:
                raise ConfigError(f"--{name} is for --refresh", hint="falconet run RECIPE --refresh --events …")
        plan = _read(recipe, settings, quiet)
        _show_report(run_steps(plan, out), plan, as_json)
        note(f"\nthe same with charts and lists: {out / 'report.html'}")
        note(f"next: {os.environ.get(COMMAND, 'falconet')} serve {out}    # the page, and the HTTP API")
        return
    _refresh(_read(recipe, settings, quiet), out, events or str(out / "events.db"), reload, token, as_json)


def _refresh(plan: Recipe, out: Path, events: str, reload: str | None, token: str | None, as_json: bool) -> None:
    from falconet.client import Client
    from falconet.recipe.refresh import refresh, tell
    from falconet.recipe.versus import table_text

    if reload is not None:
        with Client(reload, token=token) as client:
            client.version()  # a wrong address is known before the work
    found = refresh(plan, out, events)
    if as_json:
        typer.echo(json.dumps(found.to_plain(), indent=1))
    else:
        new = [f"{n:,} {what}" for n, what in ((found.new_people, "people"), (found.new_items, "items")) if n]
        known = f"; new to the models: {', '.join(new)}" if new else ""
        typer.echo(f"{found.events:,} new events of {found.people:,} people{known}")
        typer.echo(f"asked for {found.compared.people:,} people, whose next item was held out:\n")
        typer.echo(table_text(found.compared, found.old, found.new) + "\n")
    if not found.accepted:
        typer.echo(
            f"`{found.bundle}` is worse by more than `refresh.margin` = {found.margin:.0%} allows: {found.old} stays",
            err=True,
        )
        raise typer.Exit(WORSE)
    why = ", as nothing says that it is worse" if found.compared.tells_nothing else ""
    typer.echo(f"`{found.bundle}` is current{why}", err=True)
    if reload is not None:
        with Client(reload, token=token) as client:
            tell(client, found)


def tune(
    recipe: RecipeFile,
    out: Out = Path("work"),
    trials: Annotated[int | None, typer.Option(help="How many in all; `tune.trials` of the recipe by default.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds after which no further trial begins.")] = None,
    settings: Settings = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search settings on a part of the training rows, over the recipe's `[tune.space]`; write OUT/tune/best.toml.

    What was tried is kept: a search that was stopped goes on, and more --trials add to it.
    """
    from falconet.progress import set_quiet
    from falconet.recipe.config import read_toml
    from falconet.recipe.overrides import overridden
    from falconet.recipe.tune import table_text
    from falconet.recipe.tune import tune as search

    set_quiet(quiet)
    found = search(overridden(read_toml(recipe), settings or ()), out, trials=trials, timeout=timeout)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=1, default=str))
        return
    typer.echo(table_text(found))
    typer.echo(f"\nfalconet run {found.recipe} --out {out}    # with the best settings, measured on the test")


def demo(
    out: Annotated[Path, typer.Option("--out", help="The folder to work in.")] = Path("falconet-demo"),
    serve: Annotated[bool, typer.Option("--serve", help="Open the page afterwards.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """The whole road on generated data, in about a minute: a table, and recommendations for two people."""
    from falconet.cli.recommend import show
    from falconet.progress import note, set_quiet
    from falconet.recipe.demo import ABOUT, next_commands, prepare_demo, two_people
    from falconet.recipe.run import run as run_steps

    set_quiet(quiet)
    note(f"{ABOUT}; everything is kept in `{out}`")
    plan = prepare_demo(out)
    report = run_steps(plan, out)
    people = two_people(out / "bundle")
    if as_json:
        answers = {title: asdict(answer) for title, answer in people}
        typer.echo(json.dumps({"report": report, "recommendations": answers}, indent=1, ensure_ascii=False))
    else:
        _show_report(report, plan, False)
        for title, answer in people:
            typer.echo(f"\n{title}:\n")
            show(answer)
    if not serve:
        note("\n" + next_commands(out))
    else:
        from falconet.cli.serve import serve as serve_bundle

        serve_bundle(out / "bundle", open_page=True)


def _show_report(report: dict[str, Any], plan: Recipe, as_json: bool) -> None:
    from falconet.evaluation.report import table_text

    typer.echo(json.dumps(report, indent=1) if as_json else table_text(report, plan.evaluate.metrics))
