"""What can be asked of a recommender beside the best items: filters, boosts, variety, pages, lists in order."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from falconet.errors import ConfigError, DataError
from falconet.serve.answers import Recommendation
from falconet.serve.events import Event
from falconet.serve.recommender import Recommender
from falconet.serve.stores.sqlite import SqliteStore
from serving_world import ITEMS, World


@pytest.fixture
def recommender(searching: Recommender) -> Recommender:
    """Of the exact index, then of the approximate one."""
    return searching


def ids(answer: Recommendation) -> list[int | str]:
    return [item.item_id for item in answer.items]


@pytest.mark.parametrize("who", [{"user_id": 5_000_000_005}, {"session_id": "nobody"}, {"history": [3_000_000_000]}])
def test_a_filter_leaves_what_it_holds_for_and_exactly_as_many(
    recommender: Recommender, world: World, who: dict[str, object]
) -> None:
    some = {"filter": "'Horror' in genres and title != $not", "parameters": {"not": "Film 06 (1966)"}}
    answer = recommender.recommend(**who, k=ITEMS, exclude_seen=False, **some)  # type: ignore[arg-type]
    assert answer.items
    assert all("Horror" in item.attributes["genres"] for item in answer.items)
    assert world.items[6] not in ids(answer)
    assert len(answer.items) == recommender.count("'Horror' in genres") - 1 == answer.funnel["allowed"]
    three = {"filter": "item_id in $three", "parameters": {"three": world.items[:3]}}
    assert set(ids(recommender.recommend(**who, exclude_seen=False, **three))) == set(world.items[:3])  # type: ignore[arg-type]
    assert recommender.recommend(**who, filter="1 == 2").items == []  # type: ignore[arg-type]


def test_a_filter_and_included_ids_both_hold(recommender: Recommender, world: World) -> None:
    answer = recommender.recommend(
        world.users[5], include_ids=world.items[:9], filter="'Western' in genres", exclude_seen=False, k=ITEMS
    )
    western = set(ids(recommender.recommend(filter="'Western' in genres", k=ITEMS)))
    assert set(ids(answer)) == western & set(world.items[:9])


@pytest.mark.parametrize("who", [{"user_id": 5_000_000_005}, {"session_id": "nobody"}])
def test_a_boost_brings_items_up_and_changes_no_score(recommender: Recommender, who: dict[str, object]) -> None:
    plain = recommender.recommend(**who, k=ITEMS)  # type: ignore[arg-type]
    boosted = recommender.recommend(**who, k=ITEMS, boosts={"'Drama' in genres": 100, "title == 'x'": -5})  # type: ignore[arg-type]
    drama = ["Drama" in item.attributes["genres"] for item in boosted.items]
    assert drama == sorted(drama, reverse=True) and any(drama) and not all(drama)
    assert {i.item_id: i.score for i in boosted.items} == {i.item_id: i.score for i in plain.items}
    down = recommender.recommend(**who, k=ITEMS, boosts={"'Drama' in genres": -100})  # type: ignore[arg-type]
    drama = ["Drama" in item.attributes["genres"] for item in down.items]
    assert drama == sorted(drama)


def test_among_the_popular_a_boost_reaches_the_last_item(recommender: Recommender, world: World) -> None:
    last = list(world.item_codes)[-1]
    answer = recommender.recommend(k=1, boosts={"item_id == $it": 99.0}, parameters={"it": last})
    assert ids(answer) == [last]


@pytest.mark.parametrize("who", [{"user_id": 5_000_000_005}, {"session_id": "nobody"}])
def test_diversity_makes_neighbours_less_alike_and_the_first_stays(
    recommender: Recommender, who: dict[str, object]
) -> None:
    def alike(answer: Recommendation) -> float:
        rows = [recommender.bundle.engine.catalogue.ids.row(item) for item in ids(answer)]
        return float(recommender.bundle.engine.nearness.between(rows, rows).mean())  # type: ignore[arg-type]

    plain, some, much = (recommender.recommend(**who, k=6, diversity=d) for d in (0, 0.3, 0.9))  # type: ignore[arg-type]
    assert alike(much) < alike(some) + 1e-6
    assert alike(much) < alike(plain)
    assert ids(some)[0] == ids(much)[0] == ids(plain)[0]
    assert len(set(ids(much))) == 6


def test_the_order_is_drawn_only_when_asked_and_by_the_seed(recommender: Recommender, world: World) -> None:
    user = world.users[5]
    plain = recommender.recommend(user)
    assert ids(recommender.recommend(user, seed=3)) == ids(plain)
    one = [ids(recommender.recommend(user, temperature=5.0, seed=seed)) for seed in range(8)]
    assert ids(recommender.recommend(user, temperature=5.0, seed=3)) == one[3]
    assert len({tuple(found) for found in one}) > 4
    cold = recommender.recommend(user, temperature=1e-6, seed=1)
    assert ids(cold) == ids(plain)


def test_draws_follow_the_scores(recommender: Recommender, world: World) -> None:
    firsts = Counter(
        ids(recommender.recommend(session_id="nobody", k=1, temperature=1.0, seed=seed))[0] for seed in range(300)
    )
    top = {item.item_id: item.score for item in recommender.recommend(session_id="nobody", k=15).items}
    whole = sum(2.718281828**score for score in top.values())
    for item, score in top.items():
        share = 2.718281828**score / whole
        assert abs(firsts[item] / 300 - share) < 5 * (share / 300) ** 0.5


def test_pages_are_disjoint_and_hold_nothing_met_also_when_events_arrive_between(
    recommender: Recommender, world: World
) -> None:
    user = world.users[5]
    page = first = recommender.recommend(user, k=5)
    shown = ids(first)
    while page.items:
        later = [item for item in world.items if item not in shown and item not in world.seen[user]]
        event = Event(event_id=f"e{len(shown)}", item_id=(later or [1])[-1], type="view", user_id=user)
        recommender.add_events([event])
        page = recommender.next(first.recommendation_id)
        assert page.recommendation_id == first.recommendation_id
        assert not set(ids(page)) & ({*shown, event.item_id} | set(world.seen[user]))
        shown += ids(page)
    assert len(set(shown)) == len(shown)
    assert len(shown) < ITEMS - len(world.seen[user])  # what was met meanwhile is not shown


def test_a_page_keeps_to_what_was_asked_and_may_have_another_length(recommender: Recommender, world: World) -> None:
    asked = {"filter": "'Drama' in genres", "exclude_ids": [world.items[1]], "diversity": 0.5, "boosts": {"1 == 1": 2}}
    first = recommender.recommend(session_id="s", k=2, **asked)
    second = recommender.next(first.recommendation_id, k=3)
    third = recommender.next(first.recommendation_id)
    assert [len(page.items) for page in (first, second, third)] == [2, 3, 2]
    assert all("Drama" in item.attributes["genres"] for page in (second, third) for item in page.items)
    with pytest.raises(DataError, match="no answer has the `recommendation_id` 'nothing'"):
        recommender.next("nothing")


def test_pages_of_strings_survive_the_process(strings: Recommender, world_of_strings: World, tmp_path: Path) -> None:
    history = world_of_strings.items[:2]
    first = strings.recommend(history=history, k=4)
    again = Recommender(strings.bundle, SqliteStore(tmp_path / "events.db"))
    second = again.next(first.recommendation_id)
    assert not {*ids(first), *history} & set(ids(second))
    assert again.store is not None
    again.store.close()


def test_given_items_come_in_the_order_of_their_scores(recommender: Recommender, world: World) -> None:
    user = world.users[5]
    some = [*world.seen[user][:3], *world.items[-3:], "unknown"]
    answer = recommender.rank(some, user)
    assert set(ids(answer)) == {*world.seen[user][:3], *world.items[-3:]}
    scores = [item.score for item in answer.items]
    assert scores == sorted(scores, reverse=True)
    everything = recommender.rank(world.items, user)
    assert len(everything.items) == ITEMS


def test_seen_can_mean_certain_events(recommender: Recommender, world: World) -> None:
    user, liked, viewed = world.users[5], world.items[-1], world.items[-2]
    for item, kind in ((liked, "like"), (viewed, "view")):
        recommender.add_events([Event(event_id=kind, item_id=item, type=kind, user_id=user)])
    found = set(ids(recommender.recommend(user, k=ITEMS, exclude_seen=["like"])))
    assert found == set(world.items) - {liked}
    found = set(ids(recommender.recommend(user, k=ITEMS, exclude_seen=["training", "view"])))
    assert found == set(world.items) - {viewed} - set(world.seen[user])


def test_without_explanations_no_item_has_a_person_s_reason(recommender: Recommender, world: World) -> None:
    answer = recommender.recommend(world.users[5], explain=False)
    assert all(item.because is None for item in answer.items)
    assert ids(answer) == ids(recommender.recommend(world.users[5]))


def test_an_item_that_is_hidden_or_expired_is_gone_for_everybody_at_once(
    recommender: Recommender, world: World, store: SqliteStore
) -> None:
    other = Recommender(recommender.bundle, SqliteStore(store.path))  # as another process would
    user, first, second, third = world.users[5], *world.items[-3:]
    everything = {"k": ITEMS, "exclude_seen": False}
    recommender.put_item(first, hidden=True)
    recommender.put_item(str(second), expires=time.time_ns() // 1000 - 1)
    recommender.put_item(third, expires=time.time_ns() // 1000 + 1_500_000)
    recommender.put_item("of no bundle", hidden=True)
    for one in (recommender, other):
        for answer in (one.recommend(user, **everything), one.recommend(session_id="nobody", **everything)):
            assert set(ids(answer)) == set(world.items) - {first, second}
        assert first not in ids(one.rank([first, third], user))
    time.sleep(1.6)
    assert third not in ids(other.recommend(user, **everything))  # its time is over, and nobody said so again
    for item in (first, second, third):
        recommender.put_item(item)
    assert set(ids(other.recommend(user, **everything))) == set(world.items)
    assert other.store is not None
    other.store.close()


def test_a_person_can_be_forgotten(recommender: Recommender, world: World) -> None:
    recommender.add_events([Event(event_id="e", item_id=world.items[3], type="like", session_id="s")])
    page = recommender.recommend(session_id="s")
    assert page.history
    assert recommender.forget(session_id="s") == 1
    assert recommender.recommend(session_id="s").history == []
    with pytest.raises(DataError, match="no answer has the"):
        recommender.next(page.recommendation_id)
    with pytest.raises(ConfigError, match="nobody to forget"):
        recommender.forget()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"filter": "gnres is null"}, "items have no column `gnres`(?s:.*)`genres`"),
        ({"filter": "genres"}, "filter, character 7"),
        ({"boosts": {"year": 1.0}}, "items have no column `year`"),
        ({"boosts": {"1 == 1": float("nan")}}, "`boosts` has nan for '1 == 1'"),
        ({"filter": "1 == 1", "parameters": {"x": 1}}, "`parameters` has `x`, but no filter or boost has `.x`"),
        ({"filter": "title == $x"}, "no value is given for `.x`"),
        ({"diversity": 1.5}, "`diversity` is 1.5"),
        ({"temperature": -1}, "`temperature` is -1"),
        ({"exclude_seen": "like"}, "`exclude_seen` is 'like'"),
    ],
)
def test_what_makes_no_sense_is_named(recommender: Recommender, request_: dict[str, object], message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        recommender.recommend(**request_)  # type: ignore[arg-type]


def test_without_a_store_there_are_no_pages(world: World) -> None:
    recommender = Recommender.load(world.bundle)
    with pytest.raises(ConfigError, match="has no store of next pages"):
        recommender.next(recommender.recommend(world.users[5]).recommendation_id)
