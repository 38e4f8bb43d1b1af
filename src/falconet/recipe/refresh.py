"""`falconet run --refresh`: what people did since, learned from where the last training ended, in a bundle of its own.

The old bundle stays current until the new one is whole and has been compared with it. Everything is made in steps like
those of a recipe, so that a refresh that was killed carries on.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from falconet.client import Client
from falconet.errors import ArtifactError, DataError, ServiceError
from falconet.io.artifact import clean, read_manifest, write_file
from falconet.plugins import load_modules
from falconet.progress import note
from falconet.recipe.check import check, check_packages
from falconet.recipe.collect import collect
from falconet.recipe.config import Recipe
from falconet.recipe.generations import Generation, adopt, base_of, decide, next_of
from falconet.recipe.lock import locked
from falconet.recipe.names import inner_columns
from falconet.recipe.onward import is_kept, keep_events, learn_on, read_events
from falconet.recipe.run import Step, is_prepared, model_steps, run_steps, settings_of, step_key, steps
from falconet.recipe.training import Start
from falconet.recipe.versus import Versus, versus
from falconet.serve.current import BUNDLES, Current

FORMAT = 1  # of refresh.json
RESULT = "refresh.json"


@dataclass(frozen=True)
class Refreshed:
    """What came of a refresh: the names of the bundles, their comparison, and whether the new one is current."""

    old: str
    new: str
    bundle: Path
    events: int
    people: int
    new_people: int
    new_items: int
    compared: Versus
    margin: float
    accepted: bool

    def to_plain(self) -> dict[str, Any]:
        """As refresh.json has it."""
        plain = {name: value for name, value in asdict(self).items() if name != "bundle"}
        return {"format": FORMAT, **plain}


def refresh(recipe: Recipe, work: str | Path, events: str) -> Refreshed:
    """Make a bundle that knows the events, beside the current one, and make it current unless it is worse.

    `events`: a store, or a folder of exported events. Raises ArtifactError where `work` is not what `falconet run` made
    of this recipe, or another run holds it; DataError where nothing is new, or nothing can be compared by; what
    `collect` raises.
    """
    load_modules(recipe.modules)
    check(recipe)
    check_packages(recipe)
    work = Path(work)
    if not (work / "bundle").is_dir():
        raise ArtifactError(f"no bundle in `{work}` to go on from", hint="`falconet run RECIPE --out` makes the first")
    with locked(work):
        _check_whole(recipe, work)
        for name in (BUNDLES, "refresh"):
            (work / name).mkdir(exist_ok=True)
            clean(work / name)
        current = adopt(work)
        base, made = base_of(work, current), next_of(work, current)
        if is_kept(recipe, base, made, events):
            note(f"`{made.work}` was left unfinished: going on with the events that it had taken")
        else:
            keep_events(recipe, base, made, collect(events), events)
        return _refresh(recipe, work, current, base, made)


def tell(client: Client, found: Refreshed) -> None:
    """Have a server take up the new bundle. Raises ServiceError where it does not, although the bundle is current."""
    later = "the bundle is current: `falconet serve --watch` takes it up, or POST /v1/admin/reload"
    try:
        serves = client.reload()
    except (ServiceError, DataError) as error:
        raise ServiceError(f"the server was not told: {error.args[0]}", hint=later) from error
    wanted = read_manifest(found.bundle).sha256[: len(serves)]
    if serves != wanted:
        raise ServiceError(
            f"the server at `{client.url}` serves bundle {serves}, not {wanted}",
            hint=f"start it with `falconet serve {found.bundle.parent.parent}`, which follows what is current there",
        )


def _refresh(recipe: Recipe, work: Path, current: Current, base: Generation, made: Generation) -> Refreshed:
    run_steps(
        [
            _learn(recipe, work, base, made),
            *(
                step
                for step in model_steps(recipe, made.work, made.bundle, start=Start(base.work, recipe.refresh.epochs))
                if step.stage != "evaluate"
            ),
        ]
    )
    compared = versus(
        base.bundle, made.bundle, *_asked(recipe, base, made), inner_columns(recipe.columns), recipe.evaluate.k
    )
    result = _result(recipe, base, made, compared)
    write_file(made.work / RESULT, json.dumps(result.to_plain(), indent=1, sort_keys=True).encode())
    decide(work, current, made, accepted=result.accepted, keep=recipe.refresh.keep)
    return result


def _check_whole(recipe: Recipe, work: Path) -> None:
    """Refuse to go on from what another recipe made, or other raw files."""
    for step in steps(recipe, work):
        if step.stage != "evaluate" and not step.complete(step.key()):
            raise ArtifactError(
                f"`{work}` is not what this recipe makes of its raw files: `{step.name}` is missing or another",
                hint=f"`falconet run RECIPE --out {work}` makes it; --refresh goes on from there",
            )


def _learn(recipe: Recipe, work: Path, base: Generation, made: Generation) -> Step:
    def key() -> str:
        inputs = (read_manifest(base.work / name, name).sha256 for name in ("features", "split", "workflow"))
        reads = {**settings_of(recipe, "split", "columns", "prepare"), "held_out": recipe.refresh.held_out}
        return step_key("learn", reads, read_manifest(made.work / "events").sha256, *inputs)

    return Step(
        "new rows",
        "prepare",
        key,
        lambda k: is_prepared(made.work, k),
        lambda k: learn_on(recipe, work, base, made, step=k),
    )


def _asked(recipe: Recipe, base: Generation, made: Generation) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Who is asked for, with what they took next; and the events that a server would know of."""
    columns = inner_columns(recipe.columns)
    asked = pl.read_parquet(made.work / "split/asked/part-00000.parquet").head(recipe.refresh.people)
    known = [read_events(made).rows.join(asked, on=[columns.user, columns.item], how="anti", maintain_order="left")]
    if (base.work / "events").is_dir():
        known.insert(0, read_events(base).rows)
    return asked, pl.concat(known)


def _result(recipe: Recipe, base: Generation, made: Generation, compared: Versus) -> Refreshed:
    columns, events = inner_columns(recipe.columns), read_events(made)
    before, after = (
        {name: _rows(where.work / f"features/{name}/*.parquet") for name in ("users", "items")}
        for where in (base, made)
    )
    return Refreshed(
        old=base.name,
        new=made.name,
        bundle=made.bundle,
        events=events.events,
        people=events.rows[columns.user].n_unique(),
        new_people=after["users"] - before["users"],
        new_items=after["items"] - before["items"],
        compared=compared,
        margin=recipe.refresh.margin,
        accepted=not compared.falls_below(recipe.refresh.margin),
    )


def _rows(files: Path) -> int:
    return int(pl.scan_parquet(files).select(pl.len()).collect().item())
