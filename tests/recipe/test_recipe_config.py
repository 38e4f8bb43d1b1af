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
    assert list(recipe.retrievers) == ["retriever"]
    retriever = recipe.retrievers["retriever"]
    assert (retriever.model, retriever.batch_size, retriever.train["epochs"]) == ("TwoTower", 512, 8)
    assert recipe.ranker.config == {
        "hidden": [],
        "columns": ["*_standing", "*_affinity", "history_length*", "log_popularity*"],
    }
    assert recipe.ranker.train == {"epochs": 3, "learning_rate": 0.05, "schedule": "linear"}


SEVERAL = """
format = 1
[data]
path = "x"
[[retriever]]
model = "TwoTower"
[[retriever]]
name = "neighbours"
model = "ItemKNN"
weight = 0.5
[retriever.config]
shrink = 5.0
"""


def test_several_retrievers_have_names_and_settings_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "several.toml").write_text(SEVERAL)
    recipe = read_recipe(tmp_path / "several.toml", ["retriever.0.train.epochs=2", "retriever.1.weight=0"])
    assert {name: one.model for name, one in recipe.retrievers.items()} == {
        "TwoTower": "TwoTower",
        "neighbours": "ItemKNN",
    }
    assert recipe.retrievers["TwoTower"].train["epochs"] == 2
    assert (recipe.retrievers["neighbours"].weight, recipe.retrievers["neighbours"].config) == (0.0, {"shrink": 5.0})


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("retriever.2.weight=1", "(?s)`retriever` has no number 2.*from 0 to 1"),
        ("retriever.weight=1", r"(?s)there are 2 `retriever`.*`retriever.0.weight` is the first's"),
        (
            "retriever.1.name=Ease",
            r"`recipe.retriever\[1\]` is a model called `Ease`, which would stand in",
        ),
        ("retriever.1.name=TwoTower", r"(?s)`recipe.retriever\[1\]`: another model of the report is called `TwoTower`"),
        ("retriever.1.name=merged", r"(?s)`recipe.retriever\[1\]`: another model .* `merged`"),
        ("retriever.1.name=twotower", r"(?s)`recipe.retriever\[1\]`: another model .* `twotower`"),
        ("retriever.1.name=Ranker", r"`recipe.retriever\[1\].name` is `Ranker`, which is another folder"),
        ("retriever.1.name=scout", r"`recipe.retriever\[1\].name` is `scout`, which is another folder"),
        ("retriever.1.name=retriever", "what all of them are called together"),
        ("retriever.1.name=../x", "`retriever.name` is '../x'"),
        ("retriever.1.weight=-1", "`retriever.weight` is -1"),
        ("retriever.1.train.epochs=3", r"(?s)`recipe.retriever\[1\].train`: `ItemKNN` has no training to set `epochs`"),
        ("retriever.1.model=MLP", r"`recipe.retriever\[1\].model` is `MLP`, which is no retriever"),
        ("retriever=[]", "`retriever` is empty"),
        ("bundle.verb=' '", "`bundle.verb` is empty"),
    ],
)
def test_what_is_wrong_with_one_of_several_retrievers_is_named(tmp_path: Path, override: str, message: str) -> None:
    (tmp_path / "several.toml").write_text(SEVERAL)
    with pytest.raises(ConfigError, match=message):
        read_recipe(tmp_path / "several.toml", [override])


def test_the_verb_follows_the_data(tmp_path: Path) -> None:
    (tmp_path / "several.toml").write_text(SEVERAL)
    films = read_recipe(tmp_path / "several.toml")
    files = read_recipe(tmp_path / "several.toml", ["data.reader=files"])
    said = read_recipe(tmp_path / "several.toml", ["bundle.verb=bought"])
    assert (films.verb, files.verb, said.verb) == ("watched", "chose", "bought")
