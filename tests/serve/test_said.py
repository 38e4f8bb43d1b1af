"""Items and users that change while a bundle is served: new ones, other titles, columns and features."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
import torch

from falconet.errors import ColumnNotFoundError, ConfigError, DataError
from falconet.recipe.config import recipe_of
from falconet.recipe.run import run
from falconet.retrieval.beside import BesideIndex
from falconet.serve.bundle import Bundle, load_bundle
from falconet.serve.changes import ItemChanges
from falconet.serve.events import Event
from falconet.serve.grown import GrownBundle
from falconet.serve.grown_tables import GrownCatalogue
from falconet.serve.recommender import Recommender
from falconet.serve.said import as_values, check_said
from falconet.serve.store import ItemChange
from falconet.serve.stores.sqlite import SqliteStore
from falconet.serve.tables import Ids
from serving_client import Client
from serving_world import World

ITEMS, USERS = 40, 30
FITTED = ("EASE", "ItemKNN", "IALS")
TRAIN = {"epochs": 3, "precision": "float32", "learning_rate": 0.05}


def make_shop(folder: Path, *models: str, index: str = "exact") -> Path:
    """A bundle of retrievers: people of one of two towns click on things of one of two kinds."""
    clicks = [(u, 2 * ((u + 3 * j) % 20) + u % 2, u + 100 * j) for u in range(USERS) for j in range(8)]
    kinds = [["tea", "coffee"][i % 2] for i in range(ITEMS)]
    folder.mkdir()
    pl.DataFrame(clicks, schema=["u", "i", "t"], orient="row").write_parquet(folder / "clicks.parquet")
    things = pl.DataFrame(
        {"i": range(ITEMS), "name": [f"thing {i}" for i in range(ITEMS)], "kinds": [[k] for k in kinds]}
    )
    things.with_columns(price=pl.col("i") * 1.5).write_parquet(folder / "things.parquet")
    towns = pl.DataFrame({"u": range(USERS), "town": ["Bern", "Chur"] * (USERS // 2), "age": [20] * USERS})
    towns = towns.with_columns(height=pl.Series([60.0, 70.0] * (USERS // 2)))
    towns.write_parquet(folder / "users.parquet")
    files = {name: str(folder / f"{file}.parquet") for name, file in (("path", "clicks"), ("items", "things"))}
    trained = {"batch_size": 64, "config": {"dim": 8}, "train": TRAIN}
    retrievers = [{"model": name, **({} if name in FITTED else trained)} for name in models]
    recipe = recipe_of(
        {
            "format": 1,
            "data": {"reader": "files", **files, "users": str(folder / "users.parquet")},
            "split": {"kind": "leave_last"},
            "columns": {
                "user": "u",
                "item": "i",
                "time": "t",
                "rating": "",
                "title": "name",
                "user_features": ["town", "age", "height"],
            },
            "retriever": retrievers if len(retrievers) > 1 else retrievers[0],
            "ranker": {"config": {"hidden": [4], "columns": ["*_standing", "town", "price"]}, "train": {"epochs": 1}},
            "bundle": {"candidates": 40, "index": index},
        }
    )
    run(recipe, folder / "work")
    return folder / "work/bundle"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shop(tmp_path_factory.mktemp("shop") / "towers", "TwoTower")


@pytest.fixture
def both(shop: Path, store: SqliteStore) -> Iterator[tuple[Recommender, Recommender]]:
    """Two processes' recommenders with one store."""
    bundle = load_bundle(shop)
    return Recommender(bundle, store), Recommender(bundle, store)


def ids(recommender: Recommender, *who: int, **asked: Any) -> list[int | str]:
    return [item.item_id for item in recommender.recommend(*who, k=60, **asked).items]


def test_a_new_item_is_found_by_its_features_in_every_process(
    both: tuple[Recommender, Recommender], shop: Path, store: SqliteStore
) -> None:
    one, other = both
    before = ids(other, 4)
    put = one.put_item(900, features={"title": "green tea", "kinds": ["tea"], "price": 9.0})
    assert (put.known, put.why) == (True, None)
    assert one.put_item(901, features={"kinds": ["coffee"]}).known
    after = other.recommend(4, k=60)
    found = {item.item_id: item for item in after.items}
    assert set(found) == {*before, 900, 901}
    assert (found[900].title, found[900].attributes) == ("green tea", {"kinds": ["tea"], "price": 9.0})
    assert (found[901].title, found[901].attributes) == ("901", {"kinds": ["coffee"], "price": None})
    assert len({item.retriever_score for item in after.items}) == len(after.items)  # features count: no two are alike
    assert [item.item_id for item in other.search_items("GREEN")] == [900]
    assert other.count("price == 9") == 2  # thing 6 costs as much
    assert ids(other, filter="title == 'green tea'") == [900]  # of a stranger too
    restarted = Recommender(load_bundle(shop), store)
    assert restarted.recommend(4, k=60).items == after.items


def test_a_catalogue_finds_the_rows_of_many_codes_as_of_each(shop: Path, store: SqliteStore) -> None:
    bundle = load_bundle(shop)
    store.put_item(900, features={"kinds": ["tea"]})
    grown = GrownBundle(bundle, store).now(store.change_number())
    for catalogue in (bundle.engine.catalogue, grown.engine.catalogue):
        codes = list(range(60))[::-1]
        rows = [catalogue.row_of_code(code) for code in codes]
        assert catalogue.find(codes).tolist() == [-1 if row is None else row for row in rows]
        assert sorted(row for row in rows if row is not None) == list(range(len(catalogue)))
        assert catalogue.find(frozenset()).tolist() == []


def test_who_asks_while_the_catalogue_is_made_anew_waits_for_it(
    shop: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown = GrownBundle(load_bundle(shop), store)
    made, found = grown._made, []
    other = threading.Thread(target=lambda: found.append(grown.now(store.change_number())))

    def slowly(rows: pl.DataFrame) -> Bundle:
        other.start()
        other.join(0.05)
        assert not found
        return made(rows)

    monkeypatch.setattr(grown, "_made", slowly)
    store.put_item(900, features={"kinds": ["tea"]})
    new = grown.now(store.change_number())
    other.join()
    assert found == [new]
    assert new.engine.catalogue.ids.row(900) is not None


def test_items_of_which_the_same_is_said_score_alike_in_whatever_order_it_was_said(
    both: tuple[Recommender, Recommender],
) -> None:
    one, other = both
    tea, coffee = {"kinds": ["tea"], "price": 9.0}, {"kinds": ["coffee"], "price": 1.0}
    for item, features in ((907, coffee), (903, tea), (3, tea), (901, coffee), (905, tea), (907, tea), (3, {})):
        one.put_item(item, features=features)
        other.recommend(4, k=1)  # each change by itself
    at_once = Recommender(one.bundle, one.store).recommend(4, k=60, exclude_seen=False)
    found = other.recommend(4, k=60, exclude_seen=False)
    told, again = ([(i.item_id, i.retriever_score, i.score) for i in one.items] for one in (found, at_once))
    assert told == again  # in their order, too: those of equal scores
    scores = {item_id: said for item_id, *said in told}
    assert len(scores) == ITEMS + 4
    assert scores[903] == scores[905] == scores[907] != scores[901]
    said_of_none = Recommender(one.bundle).recommend(4, k=60, exclude_seen=False)
    assert {i.item_id: i.retriever_score for i in said_of_none.items} == {
        item: first for item, (first, _) in scores.items() if item < ITEMS
    }


def test_many_items_have_the_vectors_that_each_has_when_it_is_said_alone(shop: Path, store: SqliteStore) -> None:
    items = {900 + i: {"kinds": ["tea"] if i % 3 else ["coffee"], "price": 1.0 + i / 7} for i in range(37)}
    alone, together = GrownBundle(load_bundle(shop), store), GrownBundle(load_bundle(shop), store)
    for item, features in sorted(items.items(), key=lambda one: one[0] * 7 % 37):
        store.put_item(item, features=features, hidden=False, expires=None)
        assert alone.now(store.change_number()).engine.catalogue.ids.row(item) is not None
    found = [grown.now(store.change_number()).engine for grown in (alone, together)]
    codes = [torch.tensor([engine.catalogue.code(item) for item in items]) for engine in found]
    assert torch.equal(*codes)
    query = torch.randn(1, 8, generator=torch.Generator().manual_seed(0))
    scores = [engine.sources.first.index.score(query, codes[0][None]) for engine in found]
    assert torch.equal(*scores)


def test_what_it_costs_does_not_grow_with_the_catalogue(shop: Path, store: SqliteStore) -> None:
    base = load_bundle(shop)
    grown = GrownBundle(base, store)
    store.put_item(3, features={"title": "another name"})
    made = []
    for item in (900, 901):
        store.put_item(item, features={"kinds": ["tea"]})
        made.append(grown.now(store.change_number()))
        catalogue, index = made[-1].engine.catalogue, made[-1].engine.sources.first.index
        assert isinstance(catalogue, GrownCatalogue)
        assert isinstance(index, BesideIndex)
        assert (catalogue.base, index.index) == (base.engine.catalogue, base.engine.sources.first.index)
        assert index.others is not None
        assert len(catalogue.said) == len(index.others) == len(made) + 1
    assert [made[0].engine.catalogue.ids.row(item) for item in (900, 901)] == [ITEMS, None]  # who has it keeps it
    assert [made[1].engine.catalogue.ids.row(item) for item in (900, 901)] == [ITEMS, ITEMS + 1]


@pytest.mark.parametrize("models", [("TwoTower", "EASE"), ("EASE", "TwoTower"), ("MF", "ItemKNN", "TwoTower")])
def test_of_several_retrievers_those_that_can_find_new_items(
    models: tuple[str, ...], store: SqliteStore, tmp_path: Path
) -> None:
    recommender = Recommender(load_bundle(make_shop(tmp_path / "shop", *models)), store)
    before = {item.item_id: item.retrievers for item in recommender.recommend(4, k=60, explain=True).items}
    assert recommender.put_item(900, features={"title": "green tea", "kinds": ["tea"], "price": 9.0}).known
    assert recommender.put_item(3, features={"title": "another name"}).known
    after = {item.item_id: item for item in recommender.recommend(4, k=60, explain=True).items}
    assert set(after) == {*before, 900}
    named = after[900].retrievers
    assert {name for name, said in named.items() if said.rank is not None} == {"TwoTower"}
    assert all(named[name].score == 0 for name in {"EASE", "ItemKNN"} & set(models))
    assert {i: {n: s.score for n, s in after[i].retrievers.items()} for i in before} == {
        i: {n: s.score for n, s in named.items()} for i, named in before.items()
    }
    assert [i.item_id for i in recommender.recommend(k=60).items].count(900) == 1  # a stranger
    assert recommender.recommend(history=[900, 2], k=5).items
    assert recommender.similar(2, 60)
    assert len(recommender.similar(900, 60)) == ITEMS
    assert recommender.closer(900, 4, k=60).candidates == len(before) + 1
    assert recommender.recommend(4, k=60, diversity=0.5, boosts={"price == 9": 9.0}).items[0].item_id in (900, 6)
    assert ids(recommender, filter="title == 'green tea' or title == 'another name'") == [3, 900]
    recommender.put_item(900, features={})
    assert set(ids(recommender, 4)) == set(before)


def test_beside_an_approximate_index_new_items_are_found(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    approximate = pytest.importorskip("falconet.retrieval.faiss")
    pytest.importorskip("faiss")
    monkeypatch.setattr(approximate, "FEW", 0)
    recommender = Recommender(load_bundle(make_shop(tmp_path / "shop", "TwoTower", index="ann")), store)
    before = {item.item_id: item.retriever_score for item in recommender.recommend(5, k=60).items}
    assert recommender.put_item(900, features={"title": "green tea", "kinds": ["tea"]}).known
    moved = next(iter(before))
    assert recommender.put_item(moved, features={"kinds": ["tea", "coffee"], "price": 1e4}).known
    after = {item.item_id: item.retriever_score for item in recommender.recommend(5, k=60).items}
    assert set(after) == {*before, 900}
    assert [item for item in before if after[item] != before[item]] == [moved]
    assert ids(recommender, 5, filter="title == 'green tea'") == [900]


class _Broken(GrownBundle):
    """Cannot make a catalogue anew until it is `mended`."""

    mended, tries = False, 0

    def _made(self, rows: pl.DataFrame) -> Bundle:
        self.tries += 1
        if not self.mended:
            raise OSError(28, "No space left on device")
        return super()._made(rows)


def test_where_the_catalogue_cannot_be_made_anew_the_old_one_answers_and_it_is_tried_again(
    shop: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr("falconet.serve.grown.time.monotonic", lambda: now[0])
    monkeypatch.setattr("falconet.serve.recommender.GrownBundle", _Broken)
    recommender = Recommender(load_bundle(shop), store)
    before = recommender.recommend(4, k=60).items
    assert recommender.put_item(3, features={"title": "another name"}).known
    put = recommender.put_item(900, features={"kinds": ["tea"]})
    why = "it could not be worked into the catalogue, which is tried again: OSError: [Errno 28] No space left on device"
    assert (put.known, put.why) == (False, why)
    for _ in range(5):
        assert recommender.recommend(4, k=60).items == before
    broken = recommender._grown
    assert isinstance(broken, _Broken)
    assert broken.tries == 1  # not once for each request
    assert capfd.readouterr().err == f"what was said of items is not in the answers yet: {why}\n"
    waited = []
    for _ in range(8):
        tries = broken.tries
        while broken.tries == tries:
            now[0] += 0.5
            recommender.recommend(4, k=1)
        waited.append(now[0])
    assert [b - a for a, b in pairwise([100.0, *waited])] == [1, 2, 4, 8, 16, 32, 60, 60]
    broken.mended = True
    now[0] += 60
    assert {i.item_id for i in recommender.recommend(4, k=60).items} == {900, *(i.item_id for i in before)}
    assert [item.item_id for item in recommender.search_items("another name")] == [3]
    assert recommender.put_item(901).why == "nothing is said of it: with `features` it can be found"


def test_hidden_items_are_known_in_a_catalogue_that_has_grown_although_the_store_is_away(
    shop: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = load_bundle(shop)
    changes = ItemChanges(store, base.engine.catalogue)
    store.put_item(3, hidden=True)
    store.put_item(4, expires=10**18)
    changes.follow()
    assert changes.gone() == {base.engine.catalogue.code(3)}
    store.put_item(900, features={"kinds": ["tea"]})
    over = changes.over(GrownBundle(base, store).now(store.change_number()).engine.catalogue)
    monkeypatch.setattr(store, "change_number", lambda: pytest.fail("the store is asked"))
    assert over.gone() == changes.gone() == {base.engine.catalogue.code(3)}
    monkeypatch.setattr("falconet.serve.changes.time.time_ns", lambda: 10**21)
    assert over.gone() == changes.gone() == {base.engine.catalogue.code(3), base.engine.catalogue.code(4)}


def test_what_is_hidden_is_known_after_what_was_said_is_taken_back(
    both: tuple[Recommender, Recommender],
) -> None:
    one, other = both
    before = ids(other, 4)
    one.put_item(900, features={"kinds": ["tea"]})
    assert set(ids(other, 4)) == {*before, 900}
    one.put_item(before[0], hidden=True)
    one.put_item(900, features={})  # the catalogue is the bundle's again
    assert set(ids(other, 4)) == {*before} - {before[0]}


def test_a_store_that_fails_while_it_is_read_leaves_nothing_half_known(
    shop: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown = GrownBundle(load_bundle(shop), store)
    store.put_item(900, features={"kinds": ["tea"]})
    store.put_item(901, features={"kinds": ["tea"]})
    read = store.items_changed_since

    def half(number: int) -> Iterator[ItemChange]:
        yield read(number)[0]
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(store, "items_changed_since", half)
    with pytest.raises(sqlite3.OperationalError, match="disk I/O error"):
        grown.now(store.change_number())
    monkeypatch.setattr(store, "items_changed_since", read)
    known = grown.now(store.change_number()).engine.catalogue.ids
    assert None not in (known.row(900), known.row(901))


def test_what_is_said_holds_although_the_folder_of_the_bundle_is_gone(
    shop: Path, store: SqliteStore, tmp_path: Path
) -> None:
    shutil.copytree(shop, tmp_path / "bundle")
    recommender = Recommender(load_bundle(tmp_path / "bundle"), store)
    shutil.rmtree(tmp_path / "bundle")
    assert recommender.put_item(900, features={"title": "green tea", "kinds": ["tea"], "price": 9.0}).known
    assert 900 in ids(recommender, 4)


def test_known_items_keep_their_scores_where_nothing_is_said_of_them(both: tuple[Recommender, Recommender]) -> None:
    one, other = both
    before = {item.item_id: item.retriever_score for item in one.recommend(5, k=60).items}
    one.put_item(900, features={"kinds": ["tea"]})
    one.put_item(3, features={"title": "another name"})
    after = {item.item_id: item.retriever_score for item in other.recommend(5, k=60).items}
    assert {item: after[item] for item in before} == before


def test_what_is_said_of_a_known_item_holds_at_once_and_can_be_taken_back(
    both: tuple[Recommender, Recommender],
) -> None:
    one, other = both
    item = one.recommend(5, k=1).items[0].item_id
    (was,) = one.recommend(5, k=1, include_ids=[item]).items
    one.put_item(item, features={"title": "renamed", "price": 1e4, "kinds": ["tea"]})
    (now,) = other.recommend(5, k=1, include_ids=[item]).items
    assert (now.title, now.attributes) == ("renamed", {"kinds": ["tea"], "price": 1e4})
    assert now.retriever_score != was.retriever_score
    assert (other.count("price > 9000"), one.count("price > 9000")) == (1, 1)
    one.put_item(item, hidden=True)
    assert item not in ids(other, 5)
    one.put_item(item)
    assert other.recommend(5, k=1, include_ids=[item]).items[0].title == "renamed"
    one.hide_item(item)
    one.put_item(item, features={})
    (again,) = other.recommend(5, k=1, include_ids=[item]).items
    assert (again.title, again.score) == (was.title, was.score)


def test_what_somebody_did_with_a_new_item_counts(both: tuple[Recommender, Recommender]) -> None:
    one, other = both
    one.put_item(900, features={"title": "green tea", "kinds": ["tea"]})
    one.add_events([Event(event_id="a", user_id=4, item_id=900, type="like")])
    after = other.recommend(4, k=60)
    assert 900 not in [item.item_id for item in after.items]
    assert after.history[-1].title == "green tea"
    visitor = other.recommend(history=[900], k=5)
    assert visitor.items[0].reason == "Because you chose green tea"
    assert other.similar(900, 3)[0].attributes["kinds"] == ["tea"]
    one.put_item(900, hidden=True)
    assert 900 not in ids(other, 6)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"titel": "x"}, r"(?s)`features`: an item of this bundle has no column `titel`.*did you mean `title`"),
        ({"price": "x"}, r"(?s)`features\.price` is 'x'.*a number, or null"),
        ({"price": True}, r"`features\.price` is True"),
        ({"kinds": "tea"}, r"(?s)`features\.kinds` is 'tea'.*a list, each of it a text, or null"),
        ({"kinds": [1]}, r"`features\.kinds` is \[1\]"),
        ({"price": 1e200}, r"(?s)`features` of item 3 give models numbers beyond 1e\+12.*about the size"),
        ({"title": "x" * 100_001}, r"`features` has more than 100,000 characters"),
    ],
)
def test_wrong_features_are_refused_with_their_names(
    both: tuple[Recommender, Recommender], store: SqliteStore, features: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        both[0].put_item(3, features=features)
    assert store.change_number() == 0


def test_an_item_that_cannot_be_found_is_said_to_be_unknown(
    both: tuple[Recommender, Recommender], world: World, tmp_path: Path, store: SqliteStore
) -> None:
    assert both[0].put_item(900).why == "nothing is said of it: with `features` it can be found"
    bundle = load_bundle(make_shop(tmp_path / "ease", "EASE"))
    ease = Recommender(bundle, store)
    put = ease.put_item(901, features={"kinds": ["tea"], "title": "late"})
    assert (put.known, put.why) == (False, "the index of `retriever` (EASE) holds the items of its training alone")
    two = Recommender(load_bundle(make_shop(tmp_path / "two", "ItemKNN", "MF")), store)
    known = "the index of `ItemKNN` (ItemKNN) holds the items of its training alone"
    why = f"{known}; `MF` (MF) knows items by their ids alone"
    assert two.put_item(904, features={"kinds": ["tea"]}).why == why
    assert 901 not in ids(ease, 4)
    ease.put_item(3, features={"title": "renamed"})
    assert [item.item_id for item in ease.search_items("renamed")] == [3]
    strange = Recommender(load_bundle(world.bundle), store)
    why = strange.put_item(902, features={"genres": ["Drama"]}).why
    assert why == "`retriever` (TwoTower) knows items by their ids alone"


def test_what_was_said_to_another_bundle_breaks_no_answer(
    both: tuple[Recommender, Recommender], store: SqliteStore
) -> None:
    one = both[0]
    before = one.recommend(4, k=60).items
    for item, features in (
        (3, {"price": "dear", "title": ["a", "b"], "kinds": "tea", "size": 4}),
        (5, {"price": 1e200}),
        (901, {"price": -1e200}),
        ("abc", {"title": "no such id"}),
    ):
        store.put_item(item, features=features)  # type: ignore[arg-type]
    store.put_user(4, {"town": 7, "age": "old"})
    assert one.recommend(4, k=60).items == before
    store.put_item(7, features={"title": "renamed"})
    assert [item.item_id for item in one.search_items("renamed")] == [7]
    assert one.put_item("abc").why == "the ids of this bundle's items are whole numbers of 64 bits"


def test_a_profile_stands_in_place_of_what_training_knew(both: tuple[Recommender, Recommender], shop: Path) -> None:
    one, other = both
    engine = one.bundle.engine
    row = engine.people.row(4)
    known = engine.features.batch(row, 4, [], {}).features
    same = engine.features.batch(row, 4, [], {}, profile={"town": "Bern"}).features
    moved = engine.features.batch(row, 4, [], {}, profile={"town": "Chur"}).features
    for name in engine.features.schema.names:
        if name != "history":
            assert same[name].tolist() == known[name].tolist(), name  # type: ignore[union-attr]
    assert moved["town"].tolist() == engine.features.batch(engine.people.row(5), 5, [], {}).features["town"].tolist()  # type: ignore[union-attr]
    before = {item.item_id: item.score for item in other.recommend(4, k=60).items}
    one.put_user(4, {"town": "Chur", "age": 77})
    after = {item.item_id: item.score for item in other.recommend(4, k=60).items}
    assert set(after) == set(before)
    assert after != before
    assert {i.item_id: i.score for i in Recommender(load_bundle(shop), one.store).recommend(4, k=60).items} == after
    one.forget(4)
    assert {item.item_id: item.score for item in other.recommend(4, k=60).items} == before


def test_somebody_new_is_known_by_a_profile(both: tuple[Recommender, Recommender]) -> None:
    one, other = both
    one.put_user(5000, {"town": "Chur"})
    features = one.bundle.engine.features
    named = features.batch(None, 5000, [], {}, profile={"town": "Chur"}).features["town"]
    assert named.tolist() != features.batch(None, 5000, [], {}).features["town"].tolist()  # type: ignore[union-attr]
    assert other.recommend(5000, history=[1, 3], k=5).items
    with pytest.raises(ColumnNotFoundError, match=r"(?s)`profile`: a user of this bundle has no column `twon`.*`town`"):
        one.put_user(5000, {"twon": "Bern"})
    with pytest.raises(DataError, match=r"`profile\.age` is 'old'"):
        one.put_user(5000, {"age": "old"})
    with pytest.raises(DataError, match=r"`profile` .* makes `height` infinite"):
        one.put_user(5000, {"height": 1e200})
    assert one.store is not None
    assert one.store.get_user(5000) == {"town": "Chur"}


def test_without_columns_of_users_there_is_nothing_to_say(recommender: Recommender) -> None:
    with pytest.raises(ConfigError, match=r"(?s)no model of this bundle reads anything of users.*`\[data\] users`"):
        recommender.put_user(1, {"age": 3})


def test_dates_are_said_as_text() -> None:
    columns = {"day": pl.Date(), "at": pl.Datetime("ms", "UTC"), "new": pl.Boolean(), "n": pl.Int8()}
    said = check_said(
        {"day": "2024-05-31", "at": "2024-05-31T17:45:00+02:00", "new": True}, columns, field="f", what="it"
    )
    assert [str(as_values([value], columns[name])[0]) for name, value in said.items()] == [
        "2024-05-31", "2024-05-31 15:45:00+00:00", "True"
    ]  # fmt: skip
    columns |= {"exact": pl.Datetime("ns"), "here": pl.Datetime("us", "Europe/Zurich"), "short": pl.Float32()}
    early, late = "0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00"  # in UTC there is no such day
    beyond = [{"day": early}, {"at": late}, {"exact": "1500-01-01"}, {"here": late}, {"short": 1e39}]
    for wrong in (*beyond, {"day": "31.5.2024"}, {"new": 1}, {"n": 300}, {"n": 1.0}):
        with pytest.raises(DataError, match=r"`f\.\w+` is"):
            check_said(wrong, columns, field="f", what="it")


def test_ids_beyond_signed_64_bits_are_texts_of_their_digits() -> None:
    beyond = Ids(pa.chunked_array([pa.array([7, 2**63 + 1], pa.uint64())]))
    assert (beyond.values, beyond.are_numbers) == (["7", "9223372036854775809"], False)
    assert [beyond.row(one) for one in (7, "7", "9223372036854775809", "9")] == [0, 0, 1, None]
    assert [beyond.can_be(one) for one in (9, "18446744073709551615", "18446744073709551616", "07", "x")] == [
        True, True, False, False, False
    ]  # fmt: skip
    whole = Ids(pa.chunked_array([pa.array([7], pa.uint64())]))
    assert (whole.values, whole.can_be("9"), whole.can_be("x")) == ([7], True, False)
    texts = Ids(pa.chunked_array([pa.array(["a"])]))
    assert texts.can_be(9)
    assert texts.can_be("x")


def test_over_http_items_and_users_change_with_the_token(both: tuple[Recommender, Recommender]) -> None:
    one, other = both
    client = Client(one, token="a secret")  # noqa: S106
    with_it = {"headers": {"authorization": "Bearer a secret"}}

    def put(path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        response = client.request("PUT", path, json=body, **with_it)
        return response.status_code, response.json()

    said = {"title": "green tea", "kinds": ["tea"], "price": None}
    answer = {"item_id": "900", "hidden": False, "expires": None, "known": True, "why": None}
    assert put("/v1/items/900", {"features": said}) == (200, answer)
    assert 900 in ids(other, 4)
    status, error = put("/v1/items/900", {"features": {"prise": 3}})
    assert (status, error["error"]["hint"]) == (422, "did you mean `price`?")
    assert error["error"]["message"] == "`features`: an item of this bundle has no column `prise`"
    status, error = put("/v1/items/900", {"features": {"price": {"of": 3}}})
    assert (status, {field["field"].split(".")[0] for field in error["error"]["fields"]}) == (422, {"features"})
    assert put("/v1/items/950", {"hidden": True})[1]["known"] is False
    assert client.request("DELETE", "/v1/items/900", **with_it).status_code == 200
    assert 900 not in ids(other, 4)
    put("/v1/items/900", {})
    assert [item.title for item in other.search_items("green")] == ["green tea"]
    assert put("/v1/users/4", {"profile": {"town": "Chur"}}) == (200, {"user_id": "4", "profile": {"town": "Chur"}})
    status, error = put("/v1/users/4", {"profile": {"town": 5}})
    assert (status, error["error"]["message"]) == (422, "`profile.town` is 5")
    assert put("/v1/users/4", {})[0] == 422
    assert client.request("PUT", "/v1/users/4", json={"profile": {}}).status_code == 401
    assert one.store is not None
    assert one.store.get_user(4) == {"town": "Chur"}
