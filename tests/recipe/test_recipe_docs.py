"""docs/recipes.md names every setting with its default, and its example is a recipe."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from falconet.models import MODELS
from falconet.nn import ItemLossConfig
from falconet.recipe.config import (
    BundleConfig,
    ColumnsConfig,
    DataConfig,
    EvaluateConfig,
    PrepareConfig,
    Recipe,
    RefreshConfig,
    RetrieverConfig,
    SplitConfig,
    read_recipe,
)
from falconet.recipe.space import TuneConfig
from falconet.train.settings import TrainConfig

PAGE = (Path(__file__).parent.parent.parent / "docs/recipes.md").read_text(encoding="utf-8")
PLACES = [
    ("**`[data]`**", DataConfig),
    ("**`[split]`**", SplitConfig),
    ("**`[columns]`**", ColumnsConfig),
    ("**`[prepare]`**", PrepareConfig),
    ("**`[retriever]`**", RetrieverConfig),
    ("`[retriever.config]`", MODELS["TwoTower"].Config),
    ("`objective`", ItemLossConfig),
    ("`[ranker.config]`", MODELS["MLP"].Config),
    ("`[retriever.train]`", TrainConfig),
    ("**`[evaluate]`**", EvaluateConfig),
    ("**`[bundle]`**", BundleConfig),
    ("**`[refresh]`**", RefreshConfig),
    ("**`[tune]`**", TuneConfig),
]


def test_the_example_is_a_recipe_for_files_without_ratings(tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 5
    (tmp_path / "shop.toml").write_text(blocks[0], encoding="utf-8")
    recipe = read_recipe(tmp_path / "shop.toml")
    (tmp_path / "several.toml").write_text('format = 1\ndata.path = "x"\n' + blocks[1], encoding="utf-8")
    assert list(read_recipe(tmp_path / "several.toml").retrievers) == ["TwoTower", "EASE"]
    (tmp_path / "tune.toml").write_text('format = 1\ndata.path = "x"\n' + blocks[2], encoding="utf-8")
    searched = read_recipe(tmp_path / "tune.toml").tune
    assert searched is not None
    assert list(searched.ranges) == ["retriever.config.dim", "retriever.train.learning_rate", "retriever.train.epochs"]
    (tmp_path / "moment.toml").write_text('format = 1\ndata.path = "x"\n' + blocks[3], encoding="utf-8")
    assert read_recipe(tmp_path / "moment.toml").prepare.context_columns == ("device", "timestamp")
    assert (recipe.data.reader, recipe.data.items, recipe.columns.rating) == ("files", "products.csv", None)


@pytest.mark.parametrize(("heading", "kind"), PLACES, ids=[kind.__qualname__ for _, kind in PLACES])
def test_every_setting_stands_in_its_table_with_its_default(heading: str, kind: Any) -> None:
    table = PAGE[PAGE.index("\n" + heading) :].split("|---|---|---|\n")[1].split("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    told = {name: row[1] for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert set(told) == {field.name for field in fields(kind)}
    for field in fields(kind):
        default = field.default
        if default not in (MISSING, None, "") and field.name not in ("seed", "monitor"):
            assert _toml(default) == told[field.name].strip("`"), field.name


def test_every_table_is_described() -> None:
    for field in fields(Recipe):
        assert f"`{field.name}`" in PAGE or f"`[{field.name}]`" in PAGE, field.name


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(x) for x in value)}]"
    if is_dataclass(value) and not isinstance(value, type):  # a table of what differs from its own defaults
        given = {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name) != f.default}
        return f"{{ {', '.join(f'{name} = {_toml(x)}' for name, x in given.items())} }}"
    return f'"{value}"' if isinstance(value, str) else str(value)
