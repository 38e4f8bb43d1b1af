"""Calls with arguments that do not fit end with an error of falconet that has a hint."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from torch import nn

import falconet as fl
from falconet.arguments import explained
from falconet.errors import ConfigError, FalconetError
from falconet.loader.transforms import Negatives, Padding, SampleWeights
from falconet.models import MODELS
from falconet.schema import Schema
from falconet.testing.models import EXAMPLE

SCHEMA = Schema(EXAMPLE)


@explained
def bake(flour: int, *, sugar: int = 0) -> int:
    """A function of one needed argument."""
    return flour + sugar + len(flour)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "settings", "message", "hint"),
    [
        ((), {"flour": 1, "suger": 2}, "bake has no `suger`", r"did you mean `sugar`\?"),
        ((), {"sugar": 2}, "bake needs `flour`", r"bake\(flour=...\)"),
        ((1, 2), {}, "bake was given 2 values without a name", r"bake\(sugar=...\)"),
        ((1,), {"flour": 2}, "bake was given `flour` twice, by its place and by its name", "once is enough"),
    ],
)
def test_what_does_not_fit_is_named(
    arguments: tuple[Any, ...], settings: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{message}\n\nhint: {hint}$"):
        bake(*arguments, **settings)


def test_a_call_that_takes_any_name_lacks_what_it_needs_alone() -> None:
    @explained
    def mix(flour: int, **more: int) -> int:
        return flour + sum(more.values())

    assert mix(1, sugar=2) == 3
    with pytest.raises(ConfigError, match=r"mix needs `flour`(?s:.*)mix\(flour=\.\.\.\)$"):
        mix(sugar=2)
    with pytest.raises(ConfigError, match="mix was given 2 values without a name"):
        mix(1, 2)


def test_an_error_within_stays_what_it_is() -> None:
    with pytest.raises(TypeError, match=r"has no len\(\)"):
        bake(1, sugar=2)
    assert list(inspect.signature(bake).parameters) == ["flour", "sugar"]
    assert bake.__doc__ == "A function of one needed argument."


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fl.models.DLRM.Config(top=64), r"`DLRM\.Config\.top` must be a list of(?s:.*)hint: \[64\]"),
        (lambda: fl.models.MLP.Config(dims=8), r"MLP\.Config has no `dims`(?s:.*)`dim`"),
        (lambda: fl.models.MLP.Config(8), r"MLP\.Config was given 1 values(?s:.*)MLP\.Config\(pooling=\.\.\.\)"),
        (lambda: fl.models.MLP.Config(dim="8"), r"`MLP\.Config\.dim` must be a whole number or nothing, not '8'"),
        (lambda: fl.models.MLP(), r"MLP needs `schema`"),
        (lambda: fl.models.MLP.from_schema(SCHEMA, hidden=[8]), r"MLP\.from_schema has no `hidden`"),
        (lambda: fl.models.MLP.from_schema("features/train"), r"MLP was given a str as schema(?s:.*)loader\.schema"),
        (lambda: fl.models.MLP.from_schema(SCHEMA, {"dim": 8}), r"MLP was given settings of type builtins\.dict"),
        (lambda: fl.models.MLP.from_schema(SCHEMA, fl.models.MLP.Config), "MLP.Config, not an object of it"),
        (lambda: fl.ops.Categorify(freq_treshold=3), "Categorify has no `freq_treshold`(?s:.*)`freq_threshold`"),
        (lambda: fl.TrainConfig(epoch=3), "TrainConfig has no `epoch`(?s:.*)`epochs`"),
        (lambda: fl.TrainConfig(3), "TrainConfig was given 1 values without a name"),
        (lambda: fl.TrainConfig(epochs="3"), r"`TrainConfig\.epochs` must be a whole number, not '3'"),
        (lambda: fl.Trainer(), "Trainer needs `config`"),
        (lambda: fl.Trainer(fl.TrainConfig(), path="run"), "Trainer has no `path`"),
        (lambda: fl.Trainer(fl.TrainConfig()).fit(None, [], val=[]), r"Trainer\.fit has no `val`(?s:.*)`valid`"),
        (lambda: fl.Loader("nowhere", batch_size=2, shufle=True), "Loader has no `shufle`(?s:.*)`shuffle`"),
        (lambda: fl.Loader("nowhere"), "Loader needs `batch_size`"),
        (lambda: fl.Loader("nowhere", batch_size=2, columns="user"), r"`columns` is 'user'(?s:.*)columns=\['user'\]"),
        (lambda: fl.Loader("nowhere", batch_size=2, transforms=len), "`transforms` is <built-in"),
        (lambda: fl.Loader(pl.DataFrame({"a": [1]}), batch_size=2), "a Loader reads files(?s:.*)to_parquet"),
        (lambda: fl.nn.Supervised(nn.Linear(1, 1)), "Supervised needs `loss`"),
        (lambda: fl.nn.Supervised("net", len), "Supervised was given 'net' as a network"),
        (lambda: fl.nn.Supervised(nn.Linear(1, 1), "mse"), "Supervised was given 'mse' as a loss(?s:.*)MSELoss"),
        (lambda: fl.TensorBoard(), "TensorBoard needs `folder`"),
        (lambda: fl.MLflow("name", trackin_uri="x"), "MLflow has no `trackin_uri`"),
        (lambda: fl.Runtime.start(2), r"Runtime\.start was given 1 values(?s:.*)device"),
        (lambda: Padding(length=3), "Padding has no `length`(?s:.*)`lengths`"),
        (lambda: Padding(lengths=3), r"`Padding\.lengths` must be"),
        (lambda: Negatives(column="item", count="3"), "Negatives `count` is '3'"),
        (lambda: SampleWeights(), "SampleWeights needs `function`"),
        (lambda: fl.MapLoader([(1, 2)], batch=2), "MapLoader has no `batch`(?s:.*)`batch_size`"),
        (lambda: fl.MapLoader([(1, 2)], batch_size=2, shuffle="yes"), "`shuffle` must be True or False, not 'yes'"),
    ],
)  # fmt: skip
def test_common_mistakes_are_explained(call: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


def test_rows_that_are_no_pairs_are_refused_also_where_a_batch_has_two() -> None:
    model = fl.nn.Supervised(nn.Linear(1, 1), nn.MSELoss(reduction="none"))
    with pytest.raises(FalconetError, match=r"the rows of list are not pairs \(X, y\)"):
        fl.Trainer(fl.TrainConfig()).fit(model, fl.MapLoader([1, 2, 3], batch_size=2))


@pytest.mark.parametrize("name", MODELS)
def test_the_settings_of_every_model_are_checked(name: str) -> None:
    config = MODELS[name].Config
    with pytest.raises(ConfigError, match="has no `embedding_dimension`"):
        config(embedding_dimension=8)
    for setting in inspect.signature(config).parameters:
        with pytest.raises(ConfigError, match=rf"Config\.{setting}"):
            config(**{setting: object()})


def test_lists_do_for_tuples_and_settings_for_settings() -> None:
    assert fl.models.MLP.Config(hidden=[8, 4]) == fl.models.MLP.Config(hidden=(8, 4))  # type: ignore[arg-type]
    assert fl.models.TwoTower.Config(objective=fl.models.TwoTower.Config().objective) == fl.models.TwoTower.Config()


def test_a_name_that_the_package_has_not_is_an_attribute_error_that_python_can_explain() -> None:
    with pytest.raises(AttributeError) as error:
        _ = fl.Trainr
    assert (error.value.name, error.value.obj) == ("Trainr", fl)
    assert not hasattr(fl, "Trainr")


def test_files_that_are_not_parquet_are_pointed_on(tmp_path: Path) -> None:
    pl.DataFrame({"a": [1]}).write_csv(tmp_path / "a.csv")
    with pytest.raises(FalconetError, match=r"(?s)not a whole Parquet file.*fl\.Dataset reads CSV"):
        fl.Loader(tmp_path / "a.csv", batch_size=1)


def test_columns_that_are_no_numbers_are_said_to_be_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pl.DataFrame({"a": [1, 2], "title": ["x", "y"], "y": [0.0, 1.0]}).write_parquet(tmp_path / "a.parquet")
    loader = fl.Loader(tmp_path, batch_size=2, targets=["y"])
    assert loader.schema.names == ("a", "y")
    for _ in range(2):
        list(loader.batches())
    assert capsys.readouterr().err.count("left out, as these are no numbers: title (string)") == 1
    list(fl.Loader(tmp_path, batch_size=2, columns=["a"]).batches())
    assert "left out" not in capsys.readouterr().err
