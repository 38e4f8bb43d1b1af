"""Recipes are checked before any work starts, down to the settings of the models."""

from __future__ import annotations

from pathlib import Path

import pytest

from falconet.errors import ConfigError, DataError
from falconet.recipe.config import read_recipe

ROOT = Path(__file__).parent.parent.parent
DEMO = ROOT / "src/falconet/recipe/demo.toml"
RECIPES = sorted([DEMO, *(ROOT / "recipes").glob("*.toml")])


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_the_shipped_recipes_are_right(path: Path) -> None:
    assert read_recipe(path).format == 1


def test_a_setting_can_be_overridden() -> None:
    recipe = read_recipe(DEMO, ["data.path=some/where", "bundle.candidates=70", "split.ratio=0.5"])
    assert (recipe.data.path, recipe.bundle.candidates, recipe.split.ratio) == ("some/where", 70, 0.5)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("retreiver.model=TwoTower", "(?s)unknown key `retreiver`.*did you mean `retriever`"),
        ("retriever.model=TwoTowers", "(?s)`recipe.retriever.model` is `TwoTowers`.*did you mean `TwoTower`"),
        ("retriever.train.epoch=3", "(?s)`recipe.retriever.train` has an unknown key `epoch`.*did you mean `epochs`"),
        ("ranker.config.hiden=[]", "(?s)`recipe.ranker.config` has an unknown key `hiden`.*did you mean `hidden`"),
        ("split.kind=randm", "(?s)`recipe.split.kind` must be one of 'random'.*not 'randm'.*did you mean `random`"),
        ("split.ratio=1.5", "`split.ratio` is 1.5"),
        ("bundle.candidates=many", "`recipe.bundle.candidates` must be a whole number, not 'many'"),
        ("evaluate.k=500", "`bundle.candidates` is 100, but `evaluate` judges lists of 500"),
        ("evaluate.metrics=['ndgc@10']", "(?s)`evaluate.metrics` has no `ndgc@10`.*did you mean `ndcg@10`"),
        ("format=2", "recipe format 2, this version reads 1"),
        ("nothing", "(?s)`--set nothing` is not a setting.*--set table.key=value"),
        ("seed.x=1", "`seed` is a value, not a table"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_recipe(DEMO, [override])


def test_a_missing_recipe_and_broken_toml_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no recipe at `.*none\.toml`"):
        read_recipe(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("[data\n")
    with pytest.raises(ConfigError, match=r"broken\.toml` is not TOML"):
        read_recipe(tmp_path / "broken.toml")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=-1", "`seed` is -1"),
        ("split.seed=-1", "`split.seed` is -1"),
        ("prepare.positive=nan", "`prepare.positive` is nan"),
        ("prepare.max_items=0", "`prepare.max_items` is 0"),
        ("evaluate.k=0", "`evaluate.k` is 0"),
        ("data.path=", "`data.path` is empty"),
        ("data.items=films.csv", '(?s)`data.items` is for `data.reader = "files"`, not "movielens"'),
        ("columns.item=", "`columns.item` is empty"),
        ("retriever.model=MLP", "(?s)`recipe.retriever.model` is `MLP`, which is no retriever.*TwoTower"),
        ("ranker.model=TwoTower", "(?s)`recipe.ranker.model` is `TwoTower`, which is no ranker.*MLP"),
    ],
)
def test_a_value_out_of_range_is_refused_before_any_work(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_recipe(DEMO, [override])


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"(?s)cannot be read: .*a recipe is a TOML file"):
        read_recipe(tmp_path)


def test_a_recipe_starts_from_settings_that_work(tmp_path: Path) -> None:
    (tmp_path / "least.toml").write_text('format = 1\n[data]\npath = "x"\n[ranker.train]\nepochs = 3\n')
    recipe = read_recipe(tmp_path / "least.toml")
    assert (recipe.retriever.model, recipe.retriever.batch_size) == ("TwoTower", 512)
    assert recipe.retriever.train["epochs"] == 8
    assert recipe.ranker.config == {"hidden": []}
    assert recipe.ranker.train == {"epochs": 3, "learning_rate": 0.05, "schedule": "linear"}
