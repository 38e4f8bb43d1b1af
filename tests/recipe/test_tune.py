"""A search of settings: what it measures, what it keeps after a kill, and which spaces it refuses."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from falconet.cli.main import app
from falconet.datasets.synthetic import synthesize
from falconet.errors import ArtifactError, ConfigError, FalconetError
from falconet.recipe import tune as tuning
from falconet.recipe.config import read_recipe
from falconet.recipe.lock import locked
from falconet.recipe.run import run
from falconet.recipe.tune import Tuned, table_text, tune

optuna = pytest.importorskip("optuna")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthesize(tmp_path_factory.mktemp("raw") / "data", users=80, items=60, rows=2_500, seed=3)


def plain(data: Path, space: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "data": {"path": str(data)},
        "prepare": {"history": "others"},
        "retriever": {"model": "EASE", "config": {"regularisation": 100.0}},
        "tune": {"space": space, "trials": 3, **changed.pop("tune", {})},
        **changed,
    }


@pytest.fixture(scope="module")
def found(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tuned, Path]:
    work = tmp_path_factory.mktemp("tuned") / "work"
    return tune(
        plain(data, {"retriever.config.regularisation": [1.0, 100.0, 10_000.0]}, tune={"trials": 8}), work
    ), work


def test_the_recipe_as_it_stands_is_tried_first_and_the_best_is_a_recipe(found: tuple[Tuned, Path], data: Path) -> None:
    tuned, work = found
    assert tuned.tried[0].settings == {"retriever.config.regularisation": 100.0}
    assert tuned.as_it_stands == tuned.tried[0].value
    assert tuned.best.value == max(one.value for one in tuned.tried if one.value is not None)
    assert len({one.value for one in tuned.tried}) > 1
    best = read_recipe(tuned.recipe)
    assert best.retriever[0].config["regularisation"] == tuned.best.settings["retriever.config.regularisation"]
    assert best.data.path == str(data)
    assert best.tune is None
    assert work / "tune/best.toml" == tuned.recipe
    assert "8 complete" in table_text(tuned)


def test_trials_are_measured_on_training_rows_alone(found: tuple[Tuned, Path]) -> None:
    import polars as pl

    _, work = found
    key = ["userId", "movieId"]
    parts = {
        name: pl.read_parquet(work / name / "*.parquet").select(key)
        for name in ("split/train", "split/test", "tune/work/split/train", "tune/work/split/test")
    }
    again = pl.concat([parts["tune/work/split/train"], parts["tune/work/split/test"]])
    assert again.sort(key).equals(parts["split/train"].sort(key))
    assert not len(again.join(parts["split/test"], on=key))
    assert not (work / "report.json").exists()


def test_a_trial_is_what_the_recipe_gives_on_that_part(found: tuple[Tuned, Path], tmp_path: Path) -> None:
    """The figure in the report of a recipe whose data are the training rows, split in the same way."""
    tuned, work = found
    raw = {
        "reader": "files",
        "path": str(work / "split/train"),
        "items": str(work / "data/movies.parquet"),
    }
    recipe = {**plain(work, {}), "data": raw, "split": {"seed": tuning.AGAIN}, "columns": {"item_features": ["genres"]}}
    recipe["retriever"]["config"]["regularisation"] = tuned.best.settings["retriever.config.regularisation"]
    recipe["ranker"] = {"train": {"epochs": 1}}
    from falconet.recipe.config import recipe_of

    report = run(recipe_of(recipe), tmp_path / "work")
    assert report["models"]["retriever"]["ranking"]["ndcg@10"]["value"] == tuned.best.value


def test_a_search_goes_on_where_it_was_killed(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = plain(data, {"retriever.config.regularisation": {"low": 1.0, "high": 1000.0, "log": True}})
    measure, seen = tuning.Search._measure, list[dict[str, Any]]()

    def killed_in_the_second(self: tuning.Search, settings: Any, trial: Any) -> float:
        seen.append(dict(settings))
        if len(seen) == 2:
            raise KeyboardInterrupt
        return measure(self, settings, trial)

    monkeypatch.setattr(tuning.Search, "_measure", killed_in_the_second)
    with pytest.raises(KeyboardInterrupt):
        tune(recipe, tmp_path / "work")
    tuned = tune(recipe, tmp_path / "work")
    assert seen[2] == seen[1]
    assert [one.state for one in tuned.tried] == ["complete"] * 3, "the killed one is no trial that failed"
    number = len(seen)
    assert tune(recipe, tmp_path / "work").best == tuned.best
    assert len(seen) == number, "nothing is left to try"
    assert len(tune(recipe, tmp_path / "work", trials=4).tried) == 4


def test_settings_that_killed_twice_are_not_tried_a_third_time(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = plain(data, {"retriever.config.regularisation": {"low": 1.0, "high": 1000.0, "log": True}})
    measure, seen = tuning.Search._measure, list[dict[str, Any]]()

    def kills(self: tuning.Search, settings: Any, trial: Any) -> float:
        seen.append(dict(settings))
        if settings == seen[0]:
            raise KeyboardInterrupt
        return measure(self, settings, trial)

    monkeypatch.setattr(tuning.Search, "_measure", kills)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            tune(recipe, tmp_path / "work")
    tuned = tune(recipe, tmp_path / "work", trials=2)
    assert seen.count(seen[0]) == 2
    assert [one.state for one in tuned.tried] == ["complete"] * 2


def test_training_that_is_behind_ends_early_and_leaves_nothing_wrong(data: Path, tmp_path: Path) -> None:
    retriever = {"model": "MF", "batch_size": 256, "train": {"epochs": 4, "precision": "float32"}}
    space = {"retriever.train.table_learning_rate": {"low": 1e-6, "high": 0.05, "log": True}}
    tuned = tune(plain(data, space, retriever=retriever, tune={"trials": 14}), tmp_path / "work")
    states = {one.state for one in tuned.tried}
    assert states == {"complete", "pruned"}
    assert all(one.value is None for one in tuned.tried if one.state == "pruned")
    assert tuned.best.settings["retriever.train.table_learning_rate"] > 0.001


def test_both_stages_are_searched_together_and_the_retriever_is_trained_once(data: Path, tmp_path: Path) -> None:
    ranker = {"batch_size": 256, "train": {"epochs": 1}}
    space = {"ranker.train.learning_rate": [0.01, 0.05], "bundle.candidates": [20, 30]}
    recipe = plain(data, space, ranker=ranker, tune={"trials": 1})
    tuned = tune(recipe, tmp_path / "work")
    made = (tmp_path / "work/tune/work/runs/retriever/manifest.json").stat().st_mtime_ns
    assert tuned.of == "two_stage"
    assert len(tune(recipe, tmp_path / "work", trials=3).tried) == 3
    assert (tmp_path / "work/tune/work/runs/retriever/manifest.json").stat().st_mtime_ns == made


def test_a_trial_that_fails_is_named_and_others_go_on(data: Path, tmp_path: Path) -> None:
    space = {"retriever.config.regularisation": [1e-300, 100.0]}
    tuned = tune(plain(data, space, tune={"metric": "recall@10"}), tmp_path / "work")
    assert {one.settings["retriever.config.regularisation"] for one in tuned.tried if one.value is not None} >= {100.0}
    with pytest.raises(FalconetError, match="no metric `recal@10`"):
        tune(plain(data, space, tune={"metric": "recal@10", "trials": 1}), tmp_path / "work")


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({}, "no `\\[tune.space\\]`"),
        ({"retriever.config.regularisation": []}, "has no values"),
        ({"retriever.config.regularisation": 3}, "is 3"),
        ({"retriever.config.regularisation": {"low": 1.0}}, "a list of values"),
        ({"retriever.config.regularisation": {"low": 2.0, "high": 1.0}}, "goes from 2.0 to 1.0"),
        ({"retriever.config.regularisation": {"low": 0, "high": 1, "log": True}}, "`log` needs a `low` above 0"),
        ({"retriever.config.regularisation": {"low": 0, "high": 4, "stepp": 2}}, "has no `stepp`"),
        ({"retriever.config.regularisation": {"low": 0, "high": 4, "step": 0.5}}, "`step` is 0.5"),
        ({"retriever.config.regularisation": {"low": "a", "high": 4}}, "`low` is 'a'"),
        ({"retriever.config.regularisation": {"low": 1, "high": 4, "log": 1}}, "`log` is 1"),
        (
            {"retriever.config.regularization": [1.0, 2.0]},
            r"retriever.config.regularization = 1.0[\s\S]*regularisation",
        ),
        ({"retriever.config.regularisation": [1.0, "much"]}, 'retriever.config.regularisation = "much"'),
        ({"evaluate.k": [5, 10]}, "`tune.space` has `evaluate.k`"),
        ({"tune.trials": [5, 10]}, "`tune.space` has `tune.trials`"),
    ],
)
def test_a_space_that_cannot_be_searched_is_refused_before_any_work(
    data: Path, tmp_path: Path, space: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        tune(plain(data, space), tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_other_wishes_are_refused(data: Path, tmp_path: Path) -> None:
    space = {"retriever.config.regularisation": [1.0, 2.0]}
    with pytest.raises(ConfigError, match=r"`tune\.of` is `twostage`"):
        tune(plain(data, space, tune={"of": "twostage"}), tmp_path / "work")
    with pytest.raises(ConfigError, match=r"`tune\.trials` is 0"):
        tune(plain(data, space, tune={"trials": 0}), tmp_path / "work")
    with locked(tmp_path / "work/tune"), pytest.raises(ArtifactError, match="another falconet is working"):
        tune(plain(data, space), tmp_path / "work")


def test_the_command_prints_a_table_and_what_to_do_next(data: Path, tmp_path: Path) -> None:
    import tomli_w

    recipe = tmp_path / "recipe.toml"
    recipe.write_text(tomli_w.dumps(plain(data, {"retriever.config.regularisation": [1.0, 100.0]})))
    out = str(tmp_path / "work")
    done = CliRunner().invoke(app, ["tune", str(recipe), "--out", out, "--trials", "2", "--set", "seed=3", "-q"])
    assert done.exit_code == 0, done.output
    assert "the recipe as it stands" in done.output
    assert f"falconet run {out}/tune/best.toml --out {out}" in done.output
    assert tomllib.loads((tmp_path / "work/tune/best.toml").read_text())["seed"] == 3
