"""What people bring: a table of users, operators and models of their own, named in the recipe."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from falconet.errors import ColumnNotFoundError, ConfigError, DataError, SchemaError
from falconet.etl.op import OPS
from falconet.io.footer import read_schema
from falconet.models import MODELS
from falconet.models.store import load_model
from falconet.plugins import load_modules
from falconet.progress import set_quiet
from falconet.recipe.config import Recipe, read_recipe
from falconet.recipe.run import run
from falconet.serve.recommender import Recommender

RECIPE = """
format = 1
modules = ["{folder}/shop_parts.py"]

[data]
reader = "files"
path = "{folder}/clicks.csv"
items = "{folder}/products.csv"
users = "{folder}/people.csv"

[columns]
user = "user"
item = "item"
time = "when"
rating = ""
title = "name"

[prepare]
history = "others"

[[prepare.features]]
columns = ["price"]
ops = [{{ op = "Halve", times = 2 }}, {{ op = "Normalize" }}]

[retriever]
model = "ByAge"
[retriever.train]
epochs = 2
learning_rate = 0.01

[ranker.config]
columns = ["*_standing", "age", "city"]
[ranker.train]
epochs = 2

[evaluate]
k = 5
metrics = ["ndcg@5"]

[bundle]
candidates = 8
"""

PARTS = '''
from dataclasses import dataclass

import polars as pl

from falconet import ops
from falconet.models import MODELS, TwoTower
from falconet.schema import Column


@ops.OPS.register()
@dataclass(frozen=True, kw_only=True)
class Halve(ops.ColumnOp):
    """Half of a number, so many times; nulls stay null."""

    times: int = 1

    def expr(self, x: pl.Expr, column: Column) -> pl.Expr:
        return x / 2.0**self.times


@MODELS.register()
class ByAge(TwoTower):
    """A tower that must know how old people are."""

    def __init__(self, schema, config) -> None:
        super().__init__(schema, config)
        assert "age" in schema.names
'''


COUNTS = """
import pathlib
file = pathlib.Path(__file__).with_suffix(".txt")
file.write_text((file.read_text() if file.exists() else "") + "x")
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Thirty people of two ages, each of whom likes one half of twelve products."""
    draw = random.Random(3)
    clicks = ["user,item,when"]
    for u in range(30):
        liked = [i for i in range(12) if i % 2 == u % 2]
        clicks += [f"u{u},p{i},{100 * u + n}" for n, i in enumerate(draw.sample(liked, 5))]
    (tmp_path / "clicks.csv").write_text("\n".join(clicks))
    products = [f"p{i},Product {i},{10 * i}.5" for i in range(12)]
    (tmp_path / "products.csv").write_text("\n".join(["item,name,price", *products]))
    people = [f"u{u},{20 + 40 * (u % 2)},{'Bonn' if u % 3 else 'Graz'}" for u in range(28)]  # of two nothing is known
    (tmp_path / "people.csv").write_text("\n".join(["user,age,city", *people]))
    (tmp_path / "shop_parts.py").write_text(PARTS)
    return tmp_path


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    for registry, name in ((OPS, "Halve"), (MODELS, "ByAge")):
        registry._classes.pop(name, None)
    sys.modules.pop("shop_parts", None)


def recipe(folder: Path, *settings: str) -> Recipe:
    (folder / "shop.toml").write_text(RECIPE.format(folder=folder))
    return read_recipe(folder / "shop.toml", settings)


def test_users_and_own_parts_reach_the_models_the_bundle_and_its_answers(shop: Path) -> None:
    run(recipe(shop), shop / "work")
    train, users = read_schema(shop / "work/features/train"), read_schema(shop / "work/features/users")
    for name, tags in (("age", {"user", "continuous"}), ("city", {"user", "categorical"})):
        assert tags <= train[name].tags
        assert tags <= users[name].tags
    assert {"item", "continuous"} <= train["price"].tags
    people = pl.read_parquet(shop / "work/features/users/part-00000.parquet")
    old = people.filter(pl.col("user_id") == "u1")["age"].item()
    young = people.filter(pl.col("user_id") == "u0")["age"].item()
    assert old > 0 > young
    assert people.filter(pl.col("user_id") == "u29")["age"].item() == 0.0
    assert type(load_model(shop / "work/runs/retriever/model")).__name__ == "ByAge"
    assert load_model(shop / "work/runs/ranker/model").config.columns == ("retriever_standing", "age", "city")
    recommender = Recommender.load(shop / "work/bundle", threads=None)
    for who in ("u1", "u29", "nobody"):
        assert len(recommender.recommend(who, k=5).items) == 5
    reasons = [item.reason for item in recommender.recommend("u1", k=5).items]
    assert any(reason.startswith("Because you chose Product") for reason in reasons)


def test_a_module_whose_code_was_changed_makes_what_it_made_anew(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_quiet(False)
    run(recipe(shop), shop / "work", only="prepare")
    run(recipe(shop), shop / "work", only="prepare")
    assert "prepare: unchanged, skipped" in capsys.readouterr().err
    (shop / "shop_parts.py").write_text(PARTS.replace("2.0**", "4.0**"))
    sys.modules.pop("shop_parts")
    for registry, name in ((OPS, "Halve"), (MODELS, "ByAge")):
        registry._classes.pop(name)
    run(recipe(shop), shop / "work", only="prepare")
    assert "prepare: done" in capsys.readouterr().err


def test_a_bundle_with_a_model_of_ones_own_says_what_is_missing(shop: Path) -> None:
    run(recipe(shop), shop / "work")
    MODELS._classes.pop("ByAge")
    sys.modules.pop("shop_parts")
    with pytest.raises(ConfigError, match=r"(?s)unknown model `ByAge`.*falconet --module"):
        Recommender.load(shop / "work/bundle", threads=None)
    load_modules([str(shop / "shop_parts.py")])
    assert Recommender.load(shop / "work/bundle", threads=None).describe()["models"]["retrievers"] == {
        "retriever": "ByAge"
    }


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("modules=['nowhere.py']", "(?s)no module `nowhere.py`, looked for from"),
        ("modules=['no.such.thing']", "(?s)the module `no.such.thing` cannot be loaded: ModuleNotFoundError"),
        ("prepare.features.0.ops=[{op='Halv'}]", r"(?s)`recipe.prepare.features\[0\].ops\[0\].op` is 'Halv'.*`Halve`"),
        ("prepare.features.0.ops=[{op='Halve', tims=2}]", r"(?s)ops\[0\]` has an unknown key `tims`.*`times`"),
        ("prepare.features.0.ops=[]", "`prepare.features` has an entry without columns or without ops"),
        ("retriever.model=ByAg", "(?s)`recipe.retriever.model` is `ByAg`.*`ByAge`"),
    ],
)
def test_what_is_not_there_is_named_before_any_work(shop: Path, setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recipe(shop, setting)


@pytest.mark.parametrize(
    ("setting", "error", "message"),
    [
        ("columns.user_features=['ag']", ColumnNotFoundError, r"(?s)`columns.user_features`.* no column `ag`.*`age`"),
        ("columns.user_features=['user']", ConfigError, "`columns.user_features` has `user`, which is the id"),
        ("prepare.features.0.columns=['item']", ConfigError, "`prepare.features` has `item`, which is an id"),
        ("prepare.features.0.columns=['prise']", ColumnNotFoundError, "(?s)no column `prise`.*`price`"),
        (
            "prepare.features=[{columns=['city'], ops=[{op='FillMissing', fill_val='x'}]}]",
            SchemaError,
            "`city` is neither categorical nor continuous",
        ),
        ("data.users=nowhere.csv", DataError, "(?s)no file or folder `nowhere.csv`.*`data.users`"),
    ],
)
def test_what_the_tables_do_not_have_is_named_before_anything_is_trained(
    shop: Path, setting: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(recipe(shop, setting), shop / "work")
    assert not (shop / "work/runs").exists()


def test_a_user_who_comes_twice_is_named(shop: Path) -> None:
    with (shop / "people.csv").open("a") as file:
        file.write("\nu3,20,Bonn")
    with pytest.raises(DataError, match="the table of users has 1 users more than once, among them `u3`"):
        run(recipe(shop), shop / "work")


def test_a_column_of_items_and_users_alike_has_two_names(shop: Path) -> None:
    people = (shop / "people.csv").read_text().replace("user,age,city", "user,age,price")
    (shop / "people.csv").write_text(people)
    run(recipe(shop, "ranker.config.columns=['*']"), shop / "work", only="prepare")
    assert {"price", "user_price", "age"} < set(read_schema(shop / "work/features/train").names)


def test_a_module_is_loaded_once_and_its_own_error_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "once_only.py").write_text(COUNTS)
    (tmp_path / "broken_part.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    load_modules(["once_only.py", "folder/../once_only.py", "once_only"])
    assert (tmp_path / "once_only.txt").read_text() == "x"
    with pytest.raises(ConfigError, match="the module `broken_part` cannot be loaded: ZeroDivisionError"):
        load_modules(["broken_part"])
    sys.modules.pop("once_only")
    (tmp_path / "json.py").write_text("")
    with pytest.raises(ConfigError, match=r"`json.py` is called like the module `json`, which is loaded"):
        load_modules(["json.py"])
