"""A recipe for what is not ours to set: raw ratings and the name of a protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from falconet.errors import DataError
from falconet.recipe.config import Recipe, recipe_of

RATINGS = "u.data"
COLUMNS = ("userId", "movieId", "rating", "timestamp")
FILMS = ("u.item", "u.genre")


def protocol_recipe(protocol: str, data: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe that measures Popular, EASE and the protocol's own models on the ratings in a folder.

    `data`: any MovieLens release, or a folder with `u.data` alone: user, item, rating and time between tabs, without a
    header. Raises ConfigError for an unknown protocol or setting, DataError where there is no such folder.
    """
    return recipe_of({"format": 1, "protocol": protocol, "data": _reader(Path(data))}, overrides)


def _reader(folder: Path) -> Mapping[str, Any]:
    if not folder.exists():
        raise DataError(
            f"no file or folder `{folder}`, looked for from `{Path.cwd()}`",
            hint="--data names a MovieLens release or a folder that holds `u.data`",
        )
    ratings = folder / RATINGS
    if not ratings.is_file() or all((folder / name).is_file() for name in FILMS):
        return {"reader": "movielens", "path": str(folder)}
    return {"reader": "files", "path": str(ratings), "separator": "\t", "names": list(COLUMNS)}
