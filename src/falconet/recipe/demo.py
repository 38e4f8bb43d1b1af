"""The demo: generated data, the recipe beside this file, and recommendations for two people."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path

from falconet.progress import aligned
from falconet.recipe.config import Recipe, read_recipe
from falconet.serve.answers import Recommendation
from falconet.serve.recommender import Recommender

ABOUT = "100,000 generated ratings of 1,000 films: features, two models, their comparison, and what a server needs"
COMMAND = "FALCONET_COMMAND"  # how the falconet command was called, where that is not its name


def demo_recipe(data: Path) -> Recipe:
    """The demo's recipe for the MovieLens-shaped folder `data`."""
    with as_file(files("falconet.recipe") / "demo.toml") as path:
        recipe = read_recipe(path)
    return replace(recipe, data=replace(recipe.data, path=str(data)))


def prepare_demo(out: Path) -> Recipe:
    """Generate the demo's data below `out` unless it is there, and give the recipe for it."""
    from falconet.datasets.layout import KIND
    from falconet.datasets.synthetic import synthesize
    from falconet.io.artifact import is_complete

    data = out / "raw"
    if not is_complete(data, KIND):
        shutil.rmtree(data, ignore_errors=True)
        synthesize(data)
    return demo_recipe(data)


def two_people(bundle: Path, k: int = 5) -> list[tuple[str, Recommendation]]:
    """What the demo recommends: to somebody known to training, and to a visitor who just met three items."""
    recommender = Recommender.load(bundle)
    known = recommender.sample_users()[0]
    visitor = recommender.start_items(3)
    titles = ", ".join(item.title for item in visitor)
    return [
        (f"For user {known.user_id}", recommender.recommend(known.user_id, k=k)),
        (f"For a new visitor who watched {titles}", recommender.recommend(history=[i.item_id for i in visitor], k=k)),
    ]


def next_commands(out: Path) -> str:
    """What to try after the demo, a line for each command."""
    call = os.environ.get(COMMAND, "falconet")
    known = Recommender.load(out / "bundle").sample_users()[-1].user_id
    lines = [
        ("next:", f"{call} serve {out / 'bundle'}", "the page, and the HTTP API"),
        ("", f"{call} recommend {out / 'bundle'} --user {known}", "one answer"),
        ("", f"{call} data list", "MovieLens releases, to run recipes/movielens.toml on"),
        ("", "docs/recipes.md", "the same for your own files"),
    ]
    return aligned(lines)
