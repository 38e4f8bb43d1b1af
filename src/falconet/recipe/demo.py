"""The demo: generated data, the recipe beside this file, and recommendations for two people."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from falconet.recipe.config import Recipe, read_recipe


def demo_recipe(data: Path) -> Recipe:
    """The demo's recipe for the MovieLens-shaped folder `data`."""
    with as_file(files("falconet.recipe") / "demo.toml") as path:
        recipe = read_recipe(path)
    return replace(recipe, data=replace(recipe.data, path=str(data)))


def prepare_demo(out: Path) -> Recipe:
    """Generate the demo's data below `out` unless it is there, and give the recipe for it."""
    from falconet.datasets.synthetic import synthesize

    data = out / "raw"
    if not (data / "ratings").is_dir():
        synthesize(data)
    return demo_recipe(data)


def show_people(bundle: Path, k: int = 5) -> dict[str, Any]:
    """Recommendations for a known user and for a new visitor who liked three items: as text and as plain values."""
    raise SystemExit(bundle, k)
