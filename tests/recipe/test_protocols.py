"""Protocols by their definitions, computed here in plain Python from the raw rows, and what `--protocol` gives."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from falconet.cli.main import app
from falconet.errors import ConfigError, DataError
from falconet.evaluation.report import table_text
from falconet.recipe.comparison import COLUMNS, protocol_recipe
from falconet.recipe.config import Recipe, recipe_of
from falconet.recipe.prepare import prepare
from falconet.recipe.protocol import PROTOCOLS
from falconet.recipe.run import compare, run

Row = tuple[int, int, int, int]


def made_rows() -> list[Row]:
    """45 users of two tastes among 40 items, with ties in time, items of one row and ratings from 1 to 5."""
    rows = []
    for user in range(1, 46):
        for n in range(4 + user % 9):
            item = 1 + user % 2 * 20 + (user * 7 + n * 3) % 20
            rows.append((user, item, 1 + (user + item * n) % 5, 100 * user + n // 2))
    return [*rows, (1, 99, 5, 0)]


ROWS = made_rows()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("raw")
    (made / "u.data").write_text("".join("\t".join(map(str, row)) + "\n" for row in ROWS))
    return made


def parts(protocol: str, folder: Path, work: Path, *overrides: str) -> dict[str, list[Row]]:
    prepare(protocol_recipe(protocol, folder, overrides), work, step="step")
    return {
        path.name: pl.read_parquet(path / "*.parquet").sort("row").select(COLUMNS).rows()
        for path in (work / "split").iterdir()
        if path.is_dir()
    }


def of_users(rows: list[Row]) -> dict[int, list[Row]]:
    found = defaultdict(list)
    for row in rows:
        found[row[0]].append(row)
    return found


@pytest.mark.parametrize("protocol", ["user-ratio", "leave-last-out", "global-time", "ms-stratified"])
def test_every_row_is_in_one_part(protocol: str, folder: Path, tmp_path: Path) -> None:
    found = parts(protocol, folder, tmp_path)
    assert sorted(found) == ["test", "train"]
    assert Counter(found["train"] + found["test"]) == Counter((u, i, float(r), t) for u, i, r, t in ROWS)


def test_user_ratio_takes_a_fifth_of_each_user(folder: Path, tmp_path: Path) -> None:
    train = of_users(parts("user-ratio", folder, tmp_path)["train"])
    for user, rows in of_users(ROWS).items():
        assert len(train[user]) == math.floor(len(rows) * 0.8 + 0.5)


def test_leave_last_out_takes_the_last_of_ties_in_the_file(folder: Path, tmp_path: Path) -> None:
    test = parts("leave-last-out", folder, tmp_path)["test"]
    last = {user: sorted(rows, key=lambda row: row[3])[-1] for user, rows in of_users(ROWS).items()}
    assert sorted(test) == sorted(last.values())


def test_global_time_takes_all_from_one_moment_on(folder: Path, tmp_path: Path) -> None:
    found = parts("global-time", folder, tmp_path)
    times = sorted(row[3] for row in ROWS)
    cut = times[int(len(times) * 0.8)]
    assert {row[3] < cut for row in found["train"]} == {True}
    assert {row[3] >= cut for row in found["test"]} == {True}


def test_ms_stratified_takes_a_quarter_of_each_item_half_to_even(folder: Path, tmp_path: Path) -> None:
    train = Counter(row[1] for row in parts("ms-stratified", folder, tmp_path)["train"])
    whole = Counter(row[1] for row in ROWS)
    assert set(whole.values()) & {1, 2, 6, 10}  # where rules of rounding differ
    assert train == {item: round(0.75 * n) for item, n in whole.items()}


def test_vae_holds_out_users_with_a_fifth_of_what_they_liked(folder: Path, tmp_path: Path) -> None:
    found = parts("vae", folder, tmp_path, "split.held_out=0.3")
    liked = {user: rows for user, rows in of_users([r for r in ROWS if r[2] >= 4]).items() if len(rows) >= 5}
    train, known, test = (of_users(found[name]) for name in ("train", "known", "test"))
    assert set(train) | set(known) == set(liked)
    assert not set(train) & set(known)
    assert len(known) == round(0.3 * len(liked))
    for user in known:
        assert len(known[user]) == math.floor(0.8 * len(liked[user]) + 0.5)
        assert sorted(known[user] + test[user]) == sorted(liked[user])
    for user in train:
        assert sorted(train[user]) == sorted(liked[user])


def test_cold_users_are_known_by_their_first_five_rows(folder: Path, tmp_path: Path) -> None:
    found = parts("cold-users", folder, tmp_path, "split.held_out=0.3")
    whole, train, known = of_users(ROWS), of_users(found["train"]), of_users(found["known"])
    assert set(train) | set(known) == set(whole)
    assert not set(train) & set(known)
    for user in known:
        in_time = sorted(whole[user], key=lambda row: row[3])  # ties stand in file order
        assert Counter(known[user]) == Counter(in_time[:5])
        assert Counter(of_users(found["test"])[user]) == Counter(in_time[5:])
    table = pl.read_parquet(tmp_path / "features/held_out/*.parquet")
    assert table["history"].list.len().max() == 5
    assert table["relevant"].list.len().sum() + table["relevant_unknown"].sum() == len(found["test"])


def test_cold_items_are_in_no_training_row_but_in_the_catalogue(folder: Path, tmp_path: Path) -> None:
    films = [*range(1, 41), 99, 500, 501]  # nobody took the last two
    kinds = pl.DataFrame({"movieId": films, "kind": [f"k{film % 3}" for film in films]})
    kinds.write_csv(tmp_path / "items.csv", separator="\t")
    overrides = [f"data.items={tmp_path / 'items.csv'}", "split.held_out=0.3", "columns.item_features=['kind']"]
    found = parts("cold-items", folder, tmp_path / "work", *overrides)
    train, test = (Counter(row[1] for row in found[name]) for name in ("train", "test"))
    assert train + test == Counter(row[1] for row in ROWS)
    assert not set(train) & set(test)
    taken = len(train) + len(test)
    assert len(test) == round(0.3 * taken)
    items = pl.read_parquet(tmp_path / "work/features/items/*.parquet")
    assert dict(items.select("item_id", "count").rows()) == {film: train[film] for film in films}
    assert items["movieId"].to_list() == list(range(3, 3 + len(films)))  # the most frequent ones have the first codes
    order = items["item_id"].to_list()
    assert order[: len(train)] == sorted(train, key=lambda film: (-train[film], film))
    assert sorted(order) == films
    assert order[len(train) :] != sorted(order[len(train) :])  # what has no count stands in an order that says nothing
    assert items["kind"].min() >= 3  # features of the untrained are those of the table
    users = pl.read_parquet(tmp_path / "work/features/users/*.parquet")
    assert users["relevant"].list.len().sum() == sum(row[0] in of_users(found["train"]) for row in found["test"])
    assert users["relevant_unknown"].sum() == 0


def test_untrained_items_need_a_table_of_items(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)`prepare.untrained_items` without a table of items.*`data.items`"):
        parts("cold-items", folder, tmp_path)


def test_strangers_without_times_are_known_by_the_first_rows_of_the_file(folder: Path, tmp_path: Path) -> None:
    without = ["split.held_out=0.3", "columns.time=''", "prepare.history='others'"]
    prepare(protocol_recipe("cold-users", folder, without), tmp_path, step="step")
    known = pl.read_parquet(tmp_path / "split/known/*.parquet").sort("row").select("userId", "movieId").rows()
    assert {len(rows) for rows in of_users(known).values()} <= {4, 5}
    for user, rows in of_users(known).items():
        assert rows == [row[:2] for row in of_users(ROWS)[user][:5]]


def test_strangers_have_what_is_known_of_them(folder: Path, tmp_path: Path) -> None:
    found = parts("vae", folder, tmp_path, "split.held_out=0.3")
    items = pl.read_parquet(tmp_path / "features/items/*.parquet")
    raw = dict(items.select("movieId", "item_id").rows())
    table = pl.read_parquet(tmp_path / "features/held_out/*.parquet")
    known, test, trained = of_users(found["known"]), of_users(found["test"]), {row[1] for row in found["train"]}
    assert table["user_id"].to_list() == sorted(known)
    for row in table.to_dicts():
        there = [item for _, item, _, _ in known[row["user_id"]] if item in trained]
        asked = [item for _, item, _, _ in test[row["user_id"]]]
        assert [raw[code] for code in row["seen"]] == [raw[code] for code in row["history"]] == there
        assert sorted(raw[code] for code in row["relevant"]) == sorted(set(asked) & trained)
        assert row["relevant_unknown"] == len([item for item in asked if item not in trained])
    everybody = pl.read_parquet(tmp_path / "features/users/*.parquet")
    assert set(everybody["user_id"]) == {row[0] for row in found["train"]}
    assert everybody["relevant"].list.len().sum() == 0


@pytest.fixture(scope="module")
def stratified(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    work = tmp_path_factory.mktemp("stratified") / "work"
    recipe = protocol_recipe("ms-stratified", folder, ["compare=[{model='ItemKNN', name='Neighbours'}]"])
    return work, compare(recipe, work)


def test_figures_are_those_of_the_papers_formulas(folder: Path, stratified: tuple[Path, dict[str, Any]]) -> None:
    """Popular on the split, by hand: MAP and recall divided by all relevant items, seen ones left out."""
    work, report = stratified
    train, test = (
        of_users([row[:4] for row in pl.read_parquet(work / "split" / name / "*.parquet").rows()])
        for name in ("train", "test")
    )
    codes = dict(pl.read_parquet(work / "features/items/*.parquet").select("item_id", "movieId").rows())
    counts = Counter(row[1] for rows in train.values() for row in rows)
    order = sorted(counts, key=lambda item: (-counts[item], codes[item]))
    sums: Counter[str] = Counter()
    asked = [user for user in test if user in train]
    for user in asked:
        seen, relevant = {row[1] for row in train[user]}, {row[1] for row in test[user]}
        hits = [item in relevant for item in [item for item in order if item not in seen][:10]]
        gains = [1 / math.log2(place + 2) for place in range(10)]
        sums["map@10"] += sum(sum(hits[: i + 1]) / (i + 1) for i, hit in enumerate(hits) if hit) / len(relevant)
        sums["recall@10"] += sum(hits) / len(relevant)
        sums["precision@10"] += sum(hits) / 10
        sums["ndcg@10"] += sum(g for g, hit in zip(gains, hits, strict=False) if hit) / sum(gains[: len(relevant)])
    figures = report["models"]["Popular"]["ranking"]
    for metric, whole in sums.items():
        assert figures[metric]["value"] == pytest.approx(whole / len(asked), abs=1e-6)
    assert report["protocol"]["users"] == len(asked)


def test_published_figures_stand_beside_ours(stratified: tuple[Path, dict[str, Any]]) -> None:
    work, report = stratified
    assert report == json.loads((work / "report.json").read_bytes())
    assert list(report["models"]) == ["Popular", "EASE", "Neighbours"]
    assert report["published"]["models"]["SAR"]["ndcg@10"] == 0.382
    assert report["published"]["data"] == "MovieLens-100k"


def test_what_is_unchanged_is_not_done_again(
    folder: Path, stratified: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    work, report = stratified
    recipe = protocol_recipe("ms-stratified", folder, ["compare=[{model='ItemKNN', name='Neighbours'}]"])
    assert compare(recipe, work) == report
    assert "compare: unchanged, skipped" in capsys.readouterr().err


def test_held_out_users_are_evaluated(folder: Path, tmp_path: Path) -> None:
    report = compare(protocol_recipe("vae", folder, ["split.held_out=0.3"]), tmp_path / "work")
    assert list(report["models"]) == ["Popular", "EASE", "ItemKNN", "SAR", "IALS"]
    assert report["protocol"]["recall_by"] == "min_k"
    assert {"ndcg@100", "recall@20", "recall@50"} < set(report["models"]["EASE"]["ranking"])
    assert report["models"]["EASE"]["ranking"]["ndcg@100"]["value"] > 0


def test_cold_users_are_evaluated_by_models_that_read_a_history(folder: Path, tmp_path: Path) -> None:
    overrides = ["split.held_out=0.3", "compare=[{model='ItemKNN'}, {model='MultVAE', train={epochs=2}}]"]
    report = compare(protocol_recipe("cold-users", folder, overrides), tmp_path / "work")
    assert list(report["models"]) == ["Popular", "EASE", "ItemKNN", "MultVAE"]
    segments = report["segments"]["users"].values()
    assert max(one["seen"][1] for one in segments if one["users"]) == 5
    value = {name: model["ranking"]["recall@10"]["value"] for name, model in report["models"].items()}
    assert value["ItemKNN"] > 1.5 * value["Popular"]  # two tastes: five rows say which


@pytest.mark.parametrize("known", [5, 0])
def test_cold_users_are_evaluated_by_what_a_table_says_of_them(known: int, tmp_path: Path) -> None:
    """Two tastes, which a column of users names: a model that reads no history tells them by that alone."""
    rows = [(u, 1 + u % 2 * 20 + (u * 7 + n * 3) % 20, 100 * u + n) for u in range(1, 81) for n in range(9)]
    pl.DataFrame(rows, schema=["who", "what", "at"], orient="row").write_csv(tmp_path / "rows.csv")
    sides = [(u, "ab"[u % 2]) for u in range(1, 81)]
    pl.DataFrame(sides, schema=["who", "side"], orient="row").write_csv(tmp_path / "people.csv")
    plan = recipe_of(
        {
            "format": 1,
            "data": {"path": str(tmp_path / "rows.csv"), "reader": "files", "users": str(tmp_path / "people.csv")},
            "split": {"kind": "users", "held_out": 0.3, "known": known},
            "columns": {"user": "who", "item": "what", "time": "at", "rating": "", "user_features": ["side"]},
            "prepare": {"history": "none"},
            "compare": [{"model": "TwoTower", "batch_size": 64, "train": {"epochs": 8}}],
        }
    )
    report = compare(plan, tmp_path / "work")
    value = {name: model["ranking"]["recall@10"]["value"] for name, model in report["models"].items()}
    assert value["TwoTower"] > 2 * value["Popular"]
    assert report["protocol"]["users"] == 24
    assert report["data"]["users"] == 56
    assert {tuple(one["seen"]) for one in report["segments"]["users"].values() if one["users"]} == {(known, known)}


def test_cold_items_are_found_by_their_features_alone(tmp_path: Path) -> None:
    """Two tastes, which a column of items names: of items that nobody took so far, people get those of their taste."""
    rows = [(u, 1 + u % 2 * 30 + (u * 7 + n * 11) % 30, 100 * u + n) for u in range(1, 81) for n in range(12)]
    pl.DataFrame(rows, schema=["who", "what", "at"], orient="row").write_csv(tmp_path / "rows.csv")
    films = [(film, "ab"[film > 30], f"film {film}") for film in range(1, 61)]
    pl.DataFrame(films, schema=["what", "side", "title"], orient="row").write_csv(tmp_path / "items.csv")
    towers = {"model": "TwoTower", "batch_size": 64, "train": {"epochs": 8}}
    plan = recipe_of(
        {
            "format": 1,
            "protocol": "cold-items",
            "data": {"path": str(tmp_path / "rows.csv"), "reader": "files", "items": str(tmp_path / "items.csv")},
            "split": {"held_out": 0.2},
            "columns": {"user": "who", "item": "what", "time": "at", "rating": "", "item_features": ["side"]},
            "evaluate": {"k": 3, "metrics": ["ndcg@3"]},
            "retriever": {**towers, "config": {"unknown_items": 0.5}},
            "ranker": {"model": "MLP", "batch_size": 256, "config": {"hidden": []}, "train": {"epochs": 1}},
            "bundle": {"candidates": 20},
            "compare": [],
        }
    )
    run(plan, tmp_path / "work")
    report = json.loads((tmp_path / "work/report.json").read_bytes())
    assert list(report["models"]) == ["Popular", "EASE", "retriever", "two_stage"]
    value = {name: model["ranking"]["ndcg@3"]["value"] for name, model in report["models"].items()}
    assert value["retriever"] > 1.5 * max(value["Popular"], value["EASE"])
    assert report["protocol"]["items"] == "untrained"
    sizes = {name: one["items"] for name, one in report["segments"]["items"].items()}
    assert sizes == {"head": 0, "mid": 0, "tail": 12, "cold": 12}
    assert report["data"] | {"sha256": ""} == {
        "users": 80, "items": 60, "train": len(rows) - report["data"]["test"], "test": report["data"]["test"],
        "unknown": 0, "sha256": "",
    }  # fmt: skip
    untrained = {f"film {film}" for film in pl.read_parquet(tmp_path / "work/split/test/*.parquet")["what"].unique()}
    for person in report["examples"]:
        assert {one["title"] for shown in person["lists"].values() for one in shown} <= untrained
        assert not untrained & set(person["last"])
    assert "those that training has no row of among 60 items compete" in table_text(report, ["ndcg@3"])
    assert "of which those compete that training has no row of" in (tmp_path / "work/report.html").read_text()


def test_untrained_items_are_asked_for_where_there_are_none(folder: Path, tmp_path: Path) -> None:
    plan = protocol_recipe("user-ratio", folder, ["evaluate.items=untrained", "compare=[]"])
    with pytest.raises(DataError, match=r"(?s)no item that training has no row of.*`prepare.untrained_items = true`"):
        compare(plan, tmp_path)


def test_the_models_of_every_protocol_are_there(folder: Path) -> None:
    for name in PROTOCOLS:
        recipe = protocol_recipe(name, folder)
        last = "IALS" if recipe.split.kind == "users" else "BPR"
        wanted = ["TwoTower"] if name == "cold-items" else ["ItemKNN", "SAR", last]
        assert [one.name for one in recipe.compare] == wanted


def recipe(**tables: Any) -> Recipe:
    return recipe_of({"format": 1, "data": {"path": "x"}, **tables})


@pytest.mark.parametrize(
    ("tables", "match"),
    [
        ({"protocol": "ms-stratifed"}, r"(?s)no protocol `ms-stratifed`.*did you mean `ms-stratified`"),
        ({"protocol": "vae", "split": {"ratio": 0.5}}, "`split.ratio` is 0.5, the protocol `vae` says 0.8"),
        ({"evaluate": {"metrics": ["ndcg"]}}, "(?s)`evaluate.metrics` has `ndcg`.*like `ndcg@10`"),
        ({"split": {"held_out": 1.0}}, "`split.held_out` is 1.0"),
        ({"split": {"kind": "users", "known": -1}}, "(?s)`split.known` is -1.*at least 0"),
        ({"split": {"last": 2}}, '(?s)`split.last` is 2, `split.kind` is `random`.*kind = "leave_last"'),
        ({"split": {"known": 3}}, '(?s)`split.known` is 3, `split.kind` is `random`.*kind = "users"'),
        ({"split": {"min_items": 0}}, "`split.min_items` is 0"),
        ({"compare": [{"model": "EASEE"}]}, r"(?s)`recipe.compare\[0\].model` is `EASEE`.*did you mean `EASE`"),
        ({"compare": [{"model": "DLRM"}]}, r"`recipe.compare\[0\].model` is `DLRM`, which is no retriever"),
        ({"compare": [{"model": "EASE"}, {"model": "EASE"}]}, r"compare\[1\]`: another model .* is called `EASE`"),
        ({"compare": [{"model": "EASE", "name": "../x"}]}, "`compare.name` is '../x'"),
    ],
)
def test_a_wrong_setting_is_named(tables: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        recipe(**tables)


def test_a_rating_to_cut_at_needs_ratings(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`split.min_rating` is 4\.0, but `columns.rating` is empty"):
        parts("vae", folder, tmp_path, "columns.rating=''")


def test_a_split_without_rows_says_so(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the split of `.*u.data` has 0 training and 0 test rows"):
        parts("user-ratio", folder, tmp_path, "split.min_rating=6")


@pytest.mark.parametrize(
    ("protocol", "rows", "hint"),
    [
        ("leave-last-out", [(user, user % 3) for user in range(9)], "a user's only row is for training"),
        ("cold-users", [(7, item) for item in range(20)], "at least two users are needed"),
        ("user-ratio", [(user, user % 3) for user in range(9)], "`split.ratio`"),
    ],
)
def test_a_split_without_rows_says_what_suits_the_data(
    tmp_path: Path, protocol: str, rows: list[tuple[int, int]], hint: str
) -> None:
    lines = [f"{user}\t{item}\t4\t{place}\n" for place, (user, item) in enumerate(rows)]
    (tmp_path / "u.data").write_text("".join(lines))
    with pytest.raises(DataError, match=r"training and 0 test rows") as caught:
        parts(protocol, tmp_path, tmp_path)
    assert hint in str(caught.value.hint)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file or folder `.*nowhere`"):
        protocol_recipe("vae", tmp_path / "nowhere")


def test_without_a_recipe_the_working_folder_is_not_that_of_recipes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr("falconet.recipe.run.compare", lambda plan, work: asked.append(work))
    monkeypatch.setattr("falconet.cli.recipe._show_report", lambda *_: None)
    for out in ([], ["--out", "elsewhere"]):
        done = CliRunner().invoke(app, ["evaluate", "--protocol", "vae", "--data", str(folder), *out])
        assert done.exit_code == 0, done.output
    assert asked == [Path("work-vae"), Path("elsewhere")]
