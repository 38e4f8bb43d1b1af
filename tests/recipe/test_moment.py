"""What the moment of an interaction was like: read from the raw files, learned, evaluated, asked for, refreshed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from falconet.errors import ColumnNotFoundError, ConfigError, FalconetError, SchemaError
from falconet.evaluation.cut import CandidateConfig, cut_users
from falconet.evaluation.tables import read_items, read_users
from falconet.io.footer import read_schema
from falconet.progress import set_quiet
from falconet.recipe.config import Recipe, recipe_of
from falconet.recipe.prepare import prepare
from falconet.recipe.refresh import refresh
from falconet.recipe.run import compare, run
from falconet.serve.events import Event
from falconet.serve.recommender import Recommender
from falconet.serve.stores.sqlite import SqliteStore

USERS, ITEMS, HOUR = 120, 48, 3_600
DEVICE = {"columns": ["device"], "ops": [{"op": "Categorify"}]}
HOURS = {"columns": ["when"], "ops": [{"op": "TimeParts", "parts": ["hour"]}, {"op": "Categorify"}]}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half of the items are taken on phones, half on a tv; of each half one half before noon."""
    random, rows = np.random.default_rng(0), []
    for user in range(USERS):
        time = 1_600_000_000 + int(random.integers(10**7))
        for _ in range(14):
            time += int(random.integers(HOUR, 30 * HOUR))
            tv = int(random.integers(2))
            item = 24 * tv + 12 * (time // HOUR % 24 >= 12) + int(random.integers(12))
            rows.append((f"u{user}", f"i{item}", time, ["phone", "tv"][tv]))
    folder = tmp_path_factory.mktemp("raw")
    events = pl.DataFrame(rows, schema=["user", "item", "when", "device"], orient="row")
    events.unique(["user", "item"], keep="last", maintain_order=True).write_csv(folder / "events.csv")
    items = pl.DataFrame({"item": [f"i{i}" for i in range(ITEMS)], "device": ["a", "b"] * (ITEMS // 2)})
    items.write_csv(folder / "items.csv")
    return folder


def recipe(raw: Path, context: list[dict[str, Any]], **tables: Any) -> Recipe:
    train = {"epochs": 15, "precision": "float32", "learning_rate": 0.01}
    plain = {
        "format": 1,
        "data": {"reader": "files", "path": str(raw / "events.csv")},
        "split": {"kind": "leave_last"},
        "columns": {"user": "user", "item": "item", "time": "when", "rating": "", "title": ""},
        "prepare": {"context": context},
        "retriever": {"model": "TwoTower", "batch_size": 128, "config": {"dim": 16}, "train": train},
        "ranker": {
            "config": {"columns": ["*_standing", *(["device", "when_hour"] if context else [])]},
            "batch_size": 128,
            "train": {"precision": "float32"},
        },
        "bundle": {"candidates": 20},
        "refresh": {"margin": 1.0},
    }
    return recipe_of({**plain, **tables})


@pytest.fixture(scope="module")
def work(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("moment") / "work"
    run(recipe(raw, [DEVICE, HOURS]), work)
    return work


def test_what_is_said_of_the_moment_decides_what_is_found(work: Path, raw: Path, tmp_path: Path) -> None:
    with_, without = (
        compare(recipe(raw, context, compare=[{"model": "TwoTower", "config": {"dim": 16}, "train": train}]), folder)
        for train in [{"epochs": 15, "precision": "float32", "learning_rate": 0.01}]
        for context, folder in (([DEVICE, HOURS], tmp_path / "with"), ([], tmp_path / "without"))
    )
    recall = [one["models"]["TwoTower"]["ranking"]["recall@10"]["value"] for one in (with_, without)]
    assert recall[0] > 1.6 * recall[1]


def test_features_of_the_moment_are_context_and_users_have_those_of_their_first_test_row(work: Path) -> None:
    for table in ("train", "users"):
        schema = read_schema(work / "features" / table)
        assert set(schema.select("context").names) == {"device", "when_hour"}
    assert not read_schema(work / "features/items").select("context").names
    known = {"phone", "tv"}
    train = pl.read_parquet(work / "split/train/*.parquet")
    ranked = train["device"].value_counts().sort("count", descending=True)["device"].to_list()
    code = {device: 3 + place for place, device in enumerate(ranked)}
    assert set(code) == known
    test = dict(pl.read_parquet(work / "split/test/*.parquet").select("user", "device").rows())
    users = pl.read_parquet(work / "features/users/*.parquet")
    assert dict(users.select("user_id", "device").rows()) == {user: code[device] for user, device in test.items()}


def test_a_ranker_learns_from_the_moments_of_held_out_rows(work: Path) -> None:
    users, items = read_users(work / "features/users"), read_items(work / "features/items")
    rows = pl.read_parquet(work / "features/train/*.parquet")
    pairs = {(u, i): (device, hour) for u, i, device, hour in rows.select("user", "item", "device", "when_hour").rows()}
    chosen, cut = cut_users(users, items.schema, CandidateConfig(), work / "features/train")
    features = cut.features.features
    found = zip(*(features[name].tolist() for name in ("user", "device", "when_hour")), strict=True)  # type: ignore[union-attr]
    for row, (user, *moment) in enumerate(found):
        assert tuple(moment) in {pairs[user, item] for item in cut.relevant.to_lists()[row]}
    assert not torch.equal(features["device"], users.take(chosen).features.features["device"])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="users have context columns, and no `rows`"):
        cut_users(users, items.schema, CandidateConfig())


def test_a_request_says_the_moment(work: Path) -> None:
    recommender = Recommender.load(work, threads=None)
    kinds = {one["name"]: (one["kind"], one["values"]) for one in recommender.describe()["context"]}
    assert kinds["when"] == ("time", None)
    assert (kinds["device"][0], sorted(kinds["device"][1])) == ("text", ["phone", "tv"])

    def mean(**context: Any) -> float:
        """Of the numbers of the first ten items."""
        asked = [recommender.recommend(f"u{u}", k=10, context=context, exclude_seen=False) for u in range(20)]
        lists = [answer.items for answer in asked]
        return float(np.mean([int(str(item.item_id)[1:]) for items in lists for item in items]))

    assert mean(device="phone", when="2020-01-01T09:00") < 16 < 32 < mean(device="tv", when="2020-01-01T21:00")
    assert mean(device="tv", when="2020-01-01T09:00") < mean(device="tv", when="2020-01-01T21:00")
    nine = recommender.recommend("u1", context={"when": "2020-01-01T09:30"})
    for same in ("2020-01-01T10:30+01:00", 1_577_871_000):
        again = recommender.recommend("u1", context={"when": same})
        assert [(item.item_id, item.score) for item in again.items] == [(i.item_id, i.score) for i in nine.items]


def test_a_refresh_knows_the_time_of_events_and_nothing_else_of_their_moment(
    work: Path, raw: Path, tmp_path: Path
) -> None:
    shutil.copytree(work, tmp_path / "work")
    store = SqliteStore(tmp_path / "events.db")
    new = [(u, 1_700_000_000 + HOUR * (6 * u + j)) for u in range(30) for j in range(3)]
    store.add_events(
        [
            Event(event_id=f"{n}", user_id=f"u{u}", item_id=f"i{(7 * n) % ITEMS}", type="click", time=time * 10**6)
            for n, (u, time) in enumerate(new)
        ]
    )
    store.close()
    found = refresh(recipe(raw, [DEVICE, HOURS]), tmp_path / "work", str(tmp_path / "events.db"))
    assert found.accepted
    parts = [pl.read_parquet(tmp_path / f"work/refresh/0002/split/{name}/*.parquet") for name in ("train", "test")]
    rows = pl.concat(parts).filter(pl.col("when") >= 1_700_000_000)
    assert len(rows) == len({(u, 7 * n % ITEMS) for n, (u, _) in enumerate(new)})
    assert rows["device"].null_count() == len(rows)
    features = pl.read_parquet(tmp_path / "work/refresh/0002/features/train/*.parquet")
    assert 1 in features["device"].to_list()  # the code of what is missing
    assert (features["when_hour"] > 2).all()


def test_held_out_users_have_the_moment_of_their_first_test_row(raw: Path, tmp_path: Path) -> None:
    prepare(recipe(raw, [DEVICE], split={"kind": "users", "known": 5}), tmp_path / "work", step="x")
    assert read_schema(tmp_path / "work/features/held_out")["device"].tags >= {"context", "categorical"}
    test = pl.read_parquet(tmp_path / "work/split/test/*.parquet").sort("when", maintain_order=True)
    first = dict(test.group_by("user", maintain_order=True).first().select("user", "device").rows())
    found = pl.read_parquet(tmp_path / "work/features/held_out/*.parquet").select("user_id", "device").rows()
    assert {(first[user], code) for user, code in found} in ({("tv", 3), ("phone", 4)}, {("tv", 4), ("phone", 3)})
    known = pl.read_parquet(tmp_path / "work/features/users/*.parquet")["device"]
    assert set(known) == {1}  # nobody of them is in the test


def test_columns_of_items_that_are_called_like_one_of_the_moment_get_another_name(raw: Path, tmp_path: Path) -> None:
    data = {"reader": "files", "path": str(raw / "events.csv"), "items": str(raw / "items.csv")}
    prepare(recipe(raw, [DEVICE], data=data), tmp_path / "work", step="x")
    schema = read_schema(tmp_path / "work/features/train")
    assert "context" in schema["device"].tags
    assert "item" in schema["item_device"].tags


@pytest.mark.parametrize(
    ("context", "error", "message"),
    [
        ({"columns": ["user"], "ops": [{"op": "Categorify"}]}, ConfigError, "`prepare.context` has `user`, which is"),
        (
            {"columns": ["seen"], "ops": [{"op": "Categorify"}]},
            ConfigError,
            "`seen`, a name that features give",
        ),
        ({"columns": ["device"], "ops": []}, ConfigError, "`prepare.context` has an entry without columns or without"),
        ({"columns": ["device"], "ops": [{"op": "Categorifi"}]}, ConfigError, r"(?s)context\[0\].ops.*`Categorify`"),
        (
            {"columns": ["devise"], "ops": [{"op": "Categorify"}]},
            ColumnNotFoundError,
            "(?s)`devise`.*context",
        ),
        ({"columns": ["device"], "ops": [{"op": "Rename", "postfix": "_x"}]}, SchemaError, "`device_x` is neither cat"),
        (
            {"columns": ["device"], "ops": [{"op": "Categorify"}, {"op": "Rename", "name": "weight"}]},
            ConfigError,
            "`prepare.context` makes `weight`, a name that features give to something else",
        ),
        (
            {
                "columns": ["when"],
                "ops": [{"op": "DifferenceLag", "partition_cols": ["user"]}, {"op": "Normalize"}],
            },
            ConfigError,
            "`prepare.context`: `when_difference_lag_1` comes from DifferenceLag, which looks at other rows",
        ),
    ],
)
def test_what_cannot_be_a_moment_is_named(
    raw: Path, tmp_path: Path, context: dict[str, Any], error: type[FalconetError], message: str
) -> None:
    with pytest.raises(error, match=message):
        prepare(recipe(raw, [context]), tmp_path / "work", step="x")


@pytest.mark.parametrize(("role", "other"), [("time", "row"), ("rating", "weight")])
def test_a_column_of_the_moment_called_like_a_role_that_stands_for_another_is_named(
    raw: Path, role: str, other: str
) -> None:
    """A column of times called `row` is `time` inside: what would another column `time` be?"""
    columns = {"user": "user", "item": "item", "time": "when", "rating": "", "title": "", role: other}
    with pytest.raises(ConfigError, match=f"`prepare.context` has `{role}`, a name that features give"):
        recipe(raw, [{"columns": [role], "ops": [{"op": "Categorify"}]}], columns=columns)


def with_values(raw: Path, folder: Path, values: list[Any]) -> dict[str, Any]:
    """`data` of a recipe whose interactions have such values, in turn, in the column `value`."""
    events = pl.read_csv(raw / "events.csv")
    many = pl.Series("value", (values * len(events))[: len(events)])
    events.with_columns(many).write_parquet(folder / "events.parquet")
    return {"reader": "files", "path": str(folder / "events.parquet")}


def test_lists_cannot_be_a_moment_as_no_request_could_say_them(raw: Path, tmp_path: Path) -> None:
    data = with_values(raw, tmp_path, [["a"], ["a", "b"]])
    with pytest.raises(SchemaError, match=r"`prepare.context` has `value`, which holds lists \(List\(String\)\)"):
        prepare(recipe(raw, [{"columns": ["value"], "ops": [{"op": "Categorify"}]}], data=data), tmp_path, step="x")


def test_times_that_were_written_as_floats_beside_a_gap_are_times(raw: Path, tmp_path: Path) -> None:
    events = pl.read_csv(raw / "events.csv").with_columns(pl.col("when").cast(pl.Float64))
    events = events.with_columns(when=pl.when(pl.col("when") % 7 > 0).then("when"))
    for name, gap in (("null", events), ("nan", events.fill_null(float("nan")))):
        gap.write_parquet(tmp_path / f"{name}.parquet")
        data = {"reader": "files", "path": str(tmp_path / f"{name}.parquet")}
        prepare(recipe(raw, [HOURS], data=data), tmp_path / name, step="x")
        found = pl.read_parquet(tmp_path / name / "features/train/*.parquet")
        assert found["seconds_since_1970"].null_count() == (found["when_hour"] == 1).sum() > 0
    halves = {"reader": "files", "path": str(tmp_path / "halves.parquet")}
    events.with_columns(pl.col("when") + 0.5).write_parquet(halves["path"])
    with pytest.raises(SchemaError, match="`when` holds no times, it is Float64"):
        prepare(recipe(raw, [HOURS], data=halves), tmp_path / "halves", step="x")


def test_numbers_of_the_moment_that_are_not_finite_are_missing(raw: Path, tmp_path: Path) -> None:
    data = with_values(raw, tmp_path, [1.0, 3.0, float("inf"), float("nan"), None])
    ops = [{"op": "Normalize"}, {"op": "FillMissing", "fill_val": 0.0}]
    prepare(recipe(raw, [{"columns": ["value"], "ops": ops}], data=data), tmp_path / "work", step="x")
    for table in ("train", "users"):
        found = pl.read_parquet(tmp_path / f"work/features/{table}/*.parquet")["value"].round(1)
        assert found.unique().len() == 3
        assert found.is_between(-2, 2).all()
        assert (found == 0).any()


def test_who_is_not_in_the_test_has_the_moment_of_which_nothing_is_said(raw: Path, tmp_path: Path) -> None:
    values = {"number": [1.0, 2.0], "bool": [True, False]}
    for name, of_kind in values.items():
        (tmp_path / name).mkdir()
        data = with_values(raw, tmp_path / name, of_kind)
        context = [{"columns": ["value"], "ops": [{"op": "AddTags", "tags": ["continuous"]}]}]
        prepare(recipe(raw, context, data=data, split={"kind": "users"}), tmp_path / name / "work", step="x")
        users = read_users(tmp_path / name / "work/features/users").features.features["value"]
        assert isinstance(users, torch.Tensor)
        assert not users.any()


def test_a_moment_that_is_the_same_in_every_row_is_named(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_quiet(False)
    in_years = {
        "columns": ["when"],
        "ops": [{"op": "TimeParts", "parts": ["hour"], "unit": "ns"}, {"op": "Categorify"}],
    }
    prepare(recipe(raw, [DEVICE, in_years]), tmp_path / "work", step="x")
    said = capsys.readouterr().err
    assert "`when_hour` is the same in every row" in said
    assert "`device` is the same" not in said


def test_a_recipe_with_operators_is_read_before_anything_else_is_imported() -> None:
    code = (
        "from falconet.recipe.config import recipe_of; print(recipe_of({'format': 1, 'data': {'path': 'x'}, "
        "'prepare': {'context': [{'columns': ['timestamp'], 'ops': [{'op': 'TimeParts', 'parts': ['hour']}]}]}})"
        ".prepare.context_columns)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("('timestamp',)", 0), done.stderr
