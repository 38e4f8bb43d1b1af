"""A refresh from end to end on a tiny data set: what is learned, what is compared, what stays when it fails."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from falconet.cli.main import app
from falconet.errors import ArtifactError, ConfigError, DataError
from falconet.io.artifact import read_manifest
from falconet.models.store import load_model
from falconet.progress import set_quiet
from falconet.recipe import refresh as module
from falconet.recipe.config import ColumnsConfig, Recipe, recipe_of
from falconet.recipe.refresh import Refreshed, refresh
from falconet.recipe.run import run
from falconet.recipe.versus import Versus, versus
from falconet.serve.bundle import load_bundle
from falconet.serve.current import bundle_folder, read_current, rollback
from falconet.serve.deeds import Deeds
from falconet.serve.events import Event, Who
from falconet.serve.export import export_events
from falconet.serve.recommender import Recommender
from falconet.serve.stores.sqlite import SqliteStore

USERS, ITEMS = 24, 30
DAY = 86_400


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """Clicks in blocks of ten items; products with a kind and a price."""
    folder = tmp_path_factory.mktemp("raw")
    block = [10 * (u % 3) for u in range(USERS)]
    clicks = [(u, block[u] + (u + 3 * j) % 10, 1_600_000_000 + u + j * DAY) for u in range(USERS) for j in range(6)]
    pl.DataFrame(clicks, schema=["u", "i", "t"], orient="row").write_parquet(folder / "clicks.parquet")
    products = pl.DataFrame({"i": range(ITEMS), "name": [f"thing {i}" for i in range(ITEMS)]})
    products.with_columns(kind=pl.lit(["a"]), price=pl.col("i") * 1.5).write_parquet(folder / "products.parquet")
    paths = {"reader": "files", "path": str(folder / "clicks.parquet"), "items": str(folder / "products.parquet")}
    train = {"epochs": 1, "precision": "float32"}
    return recipe_of(
        {
            "format": 1,
            "data": paths,
            "split": {"kind": "leave_last"},
            "columns": {"user": "u", "item": "i", "time": "t", "rating": "", "title": "name"},
            "retriever": {"model": "TwoTower", "batch_size": 64, "config": {"dim": 8}, "train": train},
            "ranker": {"model": "MLP", "config": {"hidden": [], "columns": ["*_standing"]}, "train": train},
            "bundle": {"candidates": 10},
            "refresh": {"margin": 1.0, "held_out": 0.5},
        }
    )


@pytest.fixture(scope="module")
def made(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("made") / "work"
    run(recipe, work)
    return work


def click(work: Path, *pairs: tuple[int, int], start: int = 0) -> str:
    """Put clicks of (user, item) into the store of a working folder; where it is."""
    store = SqliteStore(work / "events.db")
    store.add_events(
        [
            Event(event_id=f"{start + n}", user_id=u, item_id=i, type="click", time=(1_700_000_000 + start + n) * 10**6)
            for n, (u, i) in enumerate(pairs)
        ]
    )
    store.close()
    return str(work / "events.db")


NEW = tuple((u, (10 * (u % 3) + 12 + j) % ITEMS) for u in range(8) for j in range(3))
MORE = ((100, 3), (100, 200), (100, 5), (101, 200), (101, 3), (102, 200))


@pytest.fixture(scope="module")
def refreshed(recipe: Recipe, made: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Refreshed]:
    work = tmp_path_factory.mktemp("refreshed") / "work"
    shutil.copytree(made, work)
    where = click(work, *NEW, *MORE)
    store = SqliteStore(where)
    store.put_item(200, features={"title": "a new thing", "kind": ["b"], "price": 7.0})
    store.put_item(3, features={"price": 99.0})
    store.close()
    return work, refresh(recipe, work, where)


@pytest.fixture
def work(refreshed: tuple[Path, Refreshed], tmp_path: Path) -> Path:
    shutil.copytree(refreshed[0], tmp_path / "work")
    return tmp_path / "work"


def test_the_new_bundle_knows_what_happened(refreshed: tuple[Path, Refreshed], made: Path) -> None:
    work, found = refreshed
    assert (found.old, found.new, found.events, found.people, found.accepted) == ("0001", "0002", 30, 11, True)
    assert bundle_folder(work) == found.bundle == work / "bundles/0002"
    old, new = load_bundle(made / "bundle").engine, load_bundle(work).engine
    assert new.people.row(100) is not None
    assert new.catalogue.titles[new.catalogue.ids.row(200) or 0] == "a new thing"
    assert new.catalogue.attributes(new.catalogue.ids.row(3) or 0)["price"] == 99.0
    assert found.new_items == len(new.catalogue) - len(old.catalogue) >= 1
    for item in old.catalogue.ids.values:  # those that were known keep their codes
        assert new.catalogue.code(item) == old.catalogue.code(item)
    assert Recommender.load(work).recommend(100, k=5).cold_start is False


def test_nothing_is_lost_and_nothing_is_told_beforehand(refreshed: tuple[Path, Refreshed], made: Path) -> None:
    work, found = refreshed
    parts = {name: pl.read_parquet(work / f"refresh/0002/split/{name}/*.parquet") for name in ("train", "test")}
    raw = [pl.read_parquet(made / f"split/{name}/*.parquet") for name in ("train", "test")]
    pairs = ["u", "i"]
    want = {*pl.concat(raw).select(pairs).rows(), *NEW, *MORE}
    assert {*parts["train"].select(pairs).rows(), *parts["test"].select(pairs).rows()} == want
    assert not {*parts["train"].select(pairs).rows()} & {*parts["test"].select(pairs).rows()}
    assert len(parts["test"]) == found.compared.people > 0
    assert pl.concat(parts.values())["row"].is_unique().all()


def test_what_was_put_is_learned_from_a_store_and_from_an_export_alike(recipe: Recipe, tmp_path: Path) -> None:
    towns = pl.DataFrame({"u": range(USERS), "town": ["Bern", "Chur"] * (USERS // 2)})
    towns.write_parquet(tmp_path / "towns.parquet")
    recipe = replace(
        recipe,
        data=replace(recipe.data, users=str(tmp_path / "towns.parquet")),
        columns=replace(recipe.columns, user_features=("town",)),
    )
    run(recipe, tmp_path / "stored")
    shutil.copytree(tmp_path / "stored", tmp_path / "exported")
    where = click(tmp_path / "stored", *NEW, *MORE)
    store = SqliteStore(where)
    store.put_item(200, features={"title": "a new thing", "kind": ["b"], "price": 7.0})
    store.put_item(3, features={"price": 99.0})
    for user in (4, 100):  # one who is known as being from Bern, and somebody new
        store.put_user(user, {"town": "Chur"})
    export_events(store, tmp_path / "events")
    store.close()
    features = []
    for name, events in (("stored", where), ("exported", str(tmp_path / "events"))):
        found = refresh(recipe, tmp_path / name, events)
        tables = [pl.read_parquet(tmp_path / f"{name}/refresh/0002/features/{t}/*.parquet") for t in ("users", "items")]
        features.append(tables)
        users = dict(tables[0].select("user_id", "town").rows())
        assert (users[4], users[100], users[6]) == (users[5], users[5], users[0])
        catalogue = load_bundle(found.bundle).engine.catalogue
        assert catalogue.titles[catalogue.ids.row(200) or 0] == "a new thing"
        assert catalogue.attributes(catalogue.ids.row(3) or 0)["price"] == 99.0
    assert all(one.equals(other) for one, other in zip(*features, strict=True))


def test_the_result_is_a_file_of_numbers(refreshed: tuple[Path, Refreshed]) -> None:
    work, found = refreshed
    plain = json.loads((work / "refresh/0002/refresh.json").read_bytes())
    assert plain == json.loads(json.dumps(found.to_plain()))
    assert set(plain["compared"]["models"]["new"]) == {"ndcg@10", "recall@10"}
    assert set(plain["compared"]["apart"]["ndcg@10"]) == {"value", "low", "high", "p"}
    assert plain["format"] == 1


def test_training_begins_with_the_weights_there_were(refreshed: tuple[Path, Refreshed], made: Path) -> None:
    work, _ = refreshed
    old, new = (load_model(w / "runs/retriever/model").state_dict() for w in (made, work / "refresh/0002"))
    name = next(n for n in old if n.startswith("item_tower") and old[n].shape[0] > 20)
    same = (old[name] - new[name][: len(old[name])]).abs().mean()
    fresh = old[name].abs().mean()
    assert len(new[name]) > len(old[name])
    assert same < fresh / 2


def test_without_new_events_nothing_changes(recipe: Recipe, work: Path) -> None:
    before = read_current(work / "bundles")
    with pytest.raises(DataError, match=r"no new events in `.*events\.db`: 30 are there, and all were learned from"):
        refresh(recipe, work, str(work / "events.db"))
    assert read_current(work / "bundles") == before


def test_one_that_was_killed_carries_on_with_the_events_it_had(
    recipe: Recipe, work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = click(work, (1, 2), (2, 25), (3, 20), start=50)
    served = read_manifest(bundle_folder(work)).sha256

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for name in ("versus", "decide"):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, die)
            with pytest.raises(KeyboardInterrupt):
                refresh(recipe, work, where)
        assert read_manifest(bundle_folder(work)).sha256 == served
        click(work, (4, 1), start=60)
    set_quiet(False)
    capsys.readouterr()
    found = refresh(recipe, work, where)
    said = capsys.readouterr().err
    assert "was left unfinished" in said
    assert said.count("unchanged, skipped") == 6
    assert (found.new, found.events, bundle_folder(work).name) == ("0003", 3, "0003")
    assert rollback(work).bundle == "0002"
    before = read_current(work / "bundles")
    again = refresh(recipe, work, where)  # from 0002, which knows none of the new events
    assert (again.old, again.new, again.events) == ("0002", "0004", 4)
    assert before is not None
    assert read_current(work / "bundles") == replace(before, bundle="0004", newest=4, before=("0001", "0002"))
    assert not (work / "refresh/0003").exists()


def worse(*_: Any) -> Versus:
    figure = {"value": 0.5, "low": 0.4, "high": 0.6}
    old = {"ndcg@10": figure, "recall@10": figure}
    apart = {"value": -0.1, "low": -0.2, "high": 0.0, "p": 0.1}
    low = {name: {**figure, "value": 0.4} for name in old}
    return Versus(9, 10, {"old": old, "new": low}, {"ndcg@10": apart, "recall@10": apart})


def test_one_that_is_worse_is_kept_and_not_made_current(
    recipe: Recipe, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = click(work, (1, 2), (2, 25), (3, 20), start=50)
    monkeypatch.setattr(module, "versus", worse)
    found = refresh(replace(recipe, refresh=replace(recipe.refresh, margin=0.19)), work, where)
    assert (found.accepted, bundle_folder(work).name) == (False, "0002")
    assert load_bundle(work / "bundles/0003").engine.people.row(100) is not None
    monkeypatch.setattr(module, "refresh", lambda *_: found)
    (tmp_path / "shop.toml").write_text('format = 1\ndata.path = "x"\n')
    shown = CliRunner().invoke(app, ["run", str(tmp_path / "shop.toml"), "--refresh", "--out", str(work)])
    assert shown.exit_code == 3
    assert "0003 (new)  0.4000" in shown.output
    assert "is worse by more than `refresh.margin` = 19% allows: 0002 stays" in shown.output


def test_where_neither_has_a_hit_the_new_one_is_current_and_it_is_said(
    recipe: Recipe, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zero = {"value": 0.0, "low": 0.0, "high": 0.0}
    figures = {"ndcg@10": zero, "recall@10": zero}
    nothing = Versus(2, 10, {"old": figures, "new": figures}, {name: {**zero, "p": 1.0} for name in figures})
    assert nothing.tells_nothing
    assert not worse().tells_nothing
    assert not replace(nothing, models={**worse().models, "new": figures}).tells_nothing  # the old one had some
    assert replace(nothing, models={**worse().models, "new": figures}).falls_below(0.9)
    where = click(work, (1, 2), (2, 25), (3, 20), start=50)
    monkeypatch.setattr(module, "versus", lambda *_: nothing)
    found = refresh(recipe, work, where)
    assert (found.accepted, bundle_folder(work).name) == (True, "0003")
    monkeypatch.setattr(module, "refresh", lambda *_: found)
    (tmp_path / "shop.toml").write_text('format = 1\ndata.path = "x"\n')
    result = CliRunner().invoke(app, ["run", str(tmp_path / "shop.toml"), "--refresh", "--out", str(work)])
    assert result.exit_code == 0
    said = "neither 0002 (old) nor 0003 (new) has any of these items among its first 10: nothing could be compared"
    assert said in result.output
    assert "0.0000" not in result.output
    assert result.output.rstrip().endswith("bundles/0003` is current, as nothing says that it is worse")


def test_margins_are_shares_of_the_old_figure() -> None:
    assert [worse().falls_below(margin) for margin in (0.0, 0.19, 0.21, 1.0)] == [True, True, False, False]


def test_people_with_ids_beyond_signed_64_bits_are_asked_for_by_their_digits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    user, item = 2**63 + 1, 2**63 + 2
    rows = pl.DataFrame(
        {"u": [user], "i": [item], "event_time": [5]}, schema_overrides={"u": pl.UInt64, "i": pl.UInt64}
    )

    def answer(bundle: Path, store: SqliteStore, folder: Path, *_: object) -> pl.DataFrame:
        who = pl.read_parquet(folder / "people.parquet")["user_id"].item()
        assert Deeds(store, Who("user", who), 5).history(5) == [(str(item), "view")]
        return pl.DataFrame({"user_id": [who], "item_id": [str(item)], "rank": [1]})

    monkeypatch.setattr("falconet.recipe.versus._lists", answer)
    columns = ColumnsConfig(user="u", item="i")
    found = versus(tmp_path, tmp_path, rows.select("u", "i"), rows, columns, 10)
    assert found.models["new"]["ndcg@10"]["value"] == 1.0


def test_events_that_were_taken_for_other_types_are_not_gone_on_with(
    recipe: Recipe, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    where = click(work, (1, 2), (2, 25), (3, 20), start=50)
    monkeypatch.setattr(module, "_refresh", die)
    with pytest.raises(KeyboardInterrupt):
        refresh(recipe, work, where)
    with pytest.raises(ConfigError, match=r"`refresh\.types` has `buy`"):
        refresh(replace(recipe, refresh=replace(recipe.refresh, types=("buy",))), work, where)


def test_another_recipe_or_no_bundle_is_said_in_one_sentence(recipe: Recipe, work: Path, tmp_path: Path) -> None:
    other = replace(recipe, seed=5)
    with pytest.raises(ArtifactError, match=r"(?s)is not what this recipe makes.*`prepare`.*falconet run RECIPE"):
        refresh(other, work, str(work / "events.db"))
    with pytest.raises(ArtifactError, match=r"no bundle in `.*empty` to go on from"):
        refresh(recipe, tmp_path / "empty", str(work / "events.db"))


def test_events_that_nothing_can_be_held_out_of(recipe: Recipe, work: Path) -> None:
    where = click(work, NEW[0], NEW[1], start=70)  # of items they had met
    with pytest.raises(DataError, match=r"no new row \(of 2\) is of somebody known and of an item they had not met"):
        refresh(recipe, work, where)
    assert bundle_folder(work).name == "0002"
    click(work, (1, 2), start=80)
    assert refresh(recipe, work, where).events == 3  # with those of the first try


def test_a_run_whose_bundle_is_another_makes_it_current(recipe: Recipe, work: Path) -> None:
    other = replace(recipe, bundle=replace(recipe.bundle, candidates=12))
    run(other, work)
    assert bundle_folder(work).name == "0003"
    assert load_bundle(work).config.candidates == 12
    assert rollback(work).bundle == "0002"


def test_refresh_options_without_refresh_are_refused(tmp_path: Path) -> None:
    (tmp_path / "shop.toml").write_text('format = 1\ndata.path = "x"\n')
    shown = CliRunner().invoke(app, ["run", str(tmp_path / "shop.toml"), "--events", "x"])
    assert "--events is for --refresh" in str(shown.exception)
