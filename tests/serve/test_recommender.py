"""The request path: what comes back, for whom, in which order, and why."""

from __future__ import annotations

import dataclasses

import pytest

from falconet.errors import ConfigError, DataError
from falconet.serve.answers import Recommendation
from falconet.serve.events import Event
from falconet.serve.recommender import Recommender
from serving_world import CANDIDATES, HISTORY, ITEMS, World


@pytest.fixture
def recommender(searching: Recommender) -> Recommender:
    """Of the exact index, then of the approximate one."""
    return searching


def ids(answer: Recommendation) -> list[int | str]:
    return [item.item_id for item in answer.items]


def like(recommender: Recommender, item: int | str, kind: str = "like", **who: int | str) -> None:
    event = Event(event_id=f"{who}-{item}-{kind}", item_id=item, type=kind, **who)  # type: ignore[arg-type]
    assert recommender.add_events([event]) == ["accepted"]


def test_a_known_user_gets_k_items_not_met_before_each_once(recommender: Recommender, world: World) -> None:
    user = world.users[5]
    answer = recommender.recommend(user, k=10)
    assert len(set(ids(answer))) == 10
    assert not set(ids(answer)) & set(world.seen[user])
    assert not answer.cold_start
    assert [item.rank for item in answer.items] == list(range(1, 11))
    assert {item.source for item in answer.items} == {"retriever"}


def test_scores_fall_and_retriever_places_are_those_of_its_own_scores(recommender: Recommender, world: World) -> None:
    answer = recommender.recommend(world.users[5], k=CANDIDATES)
    scores = [item.score for item in answer.items]
    assert scores == sorted(scores, reverse=True)
    by_place = sorted(answer.items, key=lambda item: item.retriever_rank)
    assert [item.retriever_rank for item in by_place] == list(range(1, CANDIDATES + 1))
    first = [item.retriever_score for item in by_place]
    assert first == sorted(first, reverse=True)
    assert [item.rank for item in by_place] != list(range(1, CANDIDATES + 1))  # the ranker has a mind of its own


def test_without_a_ranker_the_order_is_the_retrievers_negative_scores_too(
    strings: Recommender, world_of_strings: World
) -> None:
    answer = strings.recommend(world_of_strings.users[5], k=ITEMS, exclude_seen=False)
    scores = [item.score for item in answer.items]
    assert len(scores) == ITEMS
    assert min(scores) < 0 < max(scores)
    assert scores == sorted(scores, reverse=True)
    assert [item.retriever_rank for item in answer.items] == list(range(1, ITEMS + 1))


def test_the_same_request_in_the_same_state_gives_the_same_answer(recommender: Recommender, world: World) -> None:
    one, two = (recommender.recommend(world.users[3]) for _ in range(2))
    assert one.items == two.items
    assert one.recommendation_id != two.recommendation_id
    assert recommender.recommend(world.users[3], k=4).items == one.items[:4]


def test_excluded_ids_are_absent(recommender: Recommender, world: World) -> None:
    before = ids(recommender.recommend(world.users[3]))
    after = ids(recommender.recommend(world.users[3], exclude_ids=[*before[:5], 1, "no such item"]))
    assert not set(before[:5]) & set(after)
    assert len(after) == 10


def test_included_ids_alone_appear_in_the_order_of_the_score(recommender: Recommender, world: World) -> None:
    unmet = [item for item in world.items if item not in world.seen[world.users[3]]][:6]
    answer = recommender.recommend(world.users[3], include_ids=[*unmet, 12], k=10)
    assert set(ids(answer)) == set(unmet)
    scores = [item.score for item in answer.items]
    assert scores == sorted(scores, reverse=True)
    assert recommender.recommend(world.users[3], include_ids=[]).items == []
    assert set(ids(recommender.recommend(include_ids=unmet))) == set(unmet)


def test_fewer_items_than_asked_for_come_back_where_fewer_are_left(recommender: Recommender, world: World) -> None:
    answer = recommender.recommend(world.users[-1], k=10)  # has met all but three
    assert set(ids(answer)) == set(world.items[-3:])
    assert answer.funnel == {"catalogue": 40, "allowed": 3, "retrieved": 3, "answered": 3}
    assert recommender.recommend(exclude_ids=world.items).items == []


def test_more_items_than_candidates_can_be_asked_for(recommender: Recommender) -> None:
    assert len(recommender.recommend(history=[], k=ITEMS).items) == ITEMS
    answer = recommender.recommend(session_id="s", history=[3_000_000_000], k=500)
    assert len(set(ids(answer))) == ITEMS - 1


@pytest.mark.parametrize(
    "request_",
    [
        {"user_id": 123},
        {"user_id": "nobody"},
        {"user_id": -1},
        {"user_id": 2**63 - 1},
        {},
        {"history": []},
        {"history": [1, "x"]},
        {"session_id": "s"},
    ],
)
def test_somebody_of_whom_nothing_is_known_gets_a_full_list_of_the_popular(
    recommender: Recommender, world: World, request_: dict[str, object]
) -> None:
    answer = recommender.recommend(**request_)  # type: ignore[arg-type]
    popular = sorted(world.item_codes, key=world.item_codes.__getitem__)
    assert ids(answer) == popular[:10]
    assert answer.cold_start
    assert {item.source for item in answer.items} == {"popular"}
    assert answer.items[0].reason == "Popular with 11 people"
    assert answer.items[0].because is None


def test_a_stranger_with_a_history_gets_what_fits_it(recommender: Recommender, world: World) -> None:
    answers = [recommender.recommend(history=[item]) for item in world.items[:4]]
    assert all(answer.cold_start for answer in answers)
    assert {item.source for answer in answers for item in answer.items} == {"retriever"}
    assert len({tuple(ids(answer)) for answer in answers}) == 4
    assert all(world.items[i] not in ids(answer) for i, answer in enumerate(answers))


def test_ids_of_strings_and_ids_of_numbers_are_both_understood(
    recommender: Recommender, strings: Recommender, world: World
) -> None:
    assert recommender.recommend(str(world.users[5])).items == recommender.recommend(world.users[5]).items
    answer = strings.recommend("user-05", exclude_ids=["item-00"])
    assert not answer.cold_start
    assert all(isinstance(item, str) for item in ids(answer))
    assert strings.recommend(5).cold_start


def test_a_user_sees_the_effect_of_an_event_in_the_next_answer(recommender: Recommender, world: World) -> None:
    user = world.users[5]
    before = recommender.recommend(user)
    liked = before.items[0].item_id
    like(recommender, liked, user_id=user)
    after = recommender.recommend(user)
    assert liked not in ids(after)
    assert (after.history[-1].item_id, after.history[-1].type) == (liked, "like")
    assert [met.item_id for met in after.history[:-1]] == [met.item_id for met in before.history[1:]]
    assert len(after.history) == HISTORY
    assert ids(after) != ids(before)[1:]  # not merely one fewer: the history has changed


def test_digits_and_the_number_are_one_user_where_ids_are_numbers(recommender: Recommender, world: World) -> None:
    like(recommender, world.items[-1], user_id=str(world.users[5]))
    assert recommender.recommend(world.users[5]).history[-1].item_id == world.items[-1]


def test_an_item_met_again_moves_to_the_end_of_the_history(recommender: Recommender, world: World) -> None:
    user = world.users[5]
    known = world.seen[user][-HISTORY:]
    like(recommender, known[1], kind="view", user_id=user)
    history = [met.item_id for met in recommender.recommend(user).history]
    assert history == [item for item in known if item != known[1]] + [known[1]]


def test_no_item_of_a_long_history_comes_back(recommender: Recommender, world: World) -> None:
    answer = recommender.recommend(history=world.items[:30], k=40)  # the models look at the last 6
    assert sorted(ids(answer)) == sorted(world.items[30:])
    assert [met.item_id for met in answer.history] == world.items[24:30]


def test_items_the_catalogue_has_not_and_hidden_ones_do_not_push_out_the_others(
    recommender: Recommender, world: World
) -> None:
    like(recommender, world.items[4], session_id="s")
    for number in range(30):  # newer than the bundle; the history is 6 items long
        like(recommender, 77_000 + number, session_id="s")
    for item in world.items[10:17]:
        like(recommender, item, session_id="s")
        like(recommender, item, "hide", session_id="s")
    answer = recommender.recommend(session_id="s")
    assert [met.item_id for met in answer.history] == [world.items[4]]
    assert answer.items[0].source == "retriever"


def test_a_visitor_becomes_known_click_by_click(recommender: Recommender, world: World) -> None:
    lists = []
    for item in world.items[10:13]:
        like(recommender, item, session_id="visitor")
        answer = recommender.recommend(session_id="visitor")
        assert not {met.item_id for met in answer.history} & set(ids(answer))
        lists.append(ids(answer))
    assert len({tuple(found) for found in lists}) == 3
    assert [met.item_id for met in answer.history] == world.items[10:13]
    assert recommender.recommend(session_id="another").items[0].source == "popular"


def test_a_hidden_item_is_gone_for_good_whatever_is_asked(recommender: Recommender, world: World) -> None:
    user = world.users[5]
    hidden = world.seen[user][-1]
    like(recommender, hidden, kind="hide", user_id=user)
    for request_ in ({}, {"exclude_seen": False}, {"exclude_seen": False, "include_ids": [hidden]}, {"history": []}):
        assert hidden not in ids(recommender.recommend(user, k=ITEMS, **request_))  # type: ignore[arg-type]
    assert hidden not in [met.item_id for met in recommender.recommend(user).history]
    assert hidden in ids(recommender.recommend(world.users[0], k=ITEMS, exclude_seen=False))


def test_exclude_seen_can_be_switched_off(recommender: Recommender, world: World) -> None:
    found = ids(recommender.recommend(world.users[5], k=ITEMS, exclude_seen=False))
    assert set(found) == set(world.items)


def test_the_reason_names_an_item_of_the_history(recommender: Recommender, world: World) -> None:
    like(recommender, world.items[20], session_id="visitor")
    answer = recommender.recommend(session_id="visitor", k=ITEMS)
    reasons = {item.reason for item in answer.items if item.because is not None}
    assert reasons == {"Because you liked Film 20 (1980)"}
    assert {item.because for item in answer.items} == {None, world.items[20]}
    nearest = recommender.similar(world.items[20], 1)[0].item_id
    assert next(item for item in answer.items if item.item_id == nearest).because == world.items[20]


def test_items_bring_what_people_read(recommender: Recommender, world: World) -> None:
    item = recommender.recommend(include_ids=[world.items[6]]).items[0]
    assert (item.title, item.attributes) == ("Film 06 (1966)", {"genres": ["Horror", "Western"]})
    item.attributes["genres"].clear()  # an answer is its asker's: what is done to it is not in the next one
    again = recommender.recommend(include_ids=[world.items[6]]).items[0]
    assert again.attributes == {"genres": ["Horror", "Western"]}


def test_similar_items_are_nearest_first_without_the_item_itself(recommender: Recommender, world: World) -> None:
    near = recommender.similar(world.items[0], k=100)
    assert len(near) == ITEMS - 1
    assert world.items[0] not in [item.item_id for item in near]
    assert [item.similarity for item in near] == sorted((item.similarity for item in near), reverse=True)
    with pytest.raises(DataError, match="no item 5 in the catalogue"):
        recommender.similar(5)


def test_items_are_found_by_any_part_of_their_title(recommender: Recommender) -> None:
    assert [item.title for item in recommender.search_items("FILM 1", limit=3)] == [
        "Film 12 (1972)",
        "Film 16 (1976)",
        "Film 10 (1970)",
    ]
    assert [item.title for item in recommender.search_items("(1983)")] == ["Film 23 (1983)"]
    assert recommender.search_items("%") == []


def test_the_items_to_start_with_differ_and_the_most_popular_is_first(recommender: Recommender, world: World) -> None:
    start = [item.item_id for item in recommender.start_items()]
    assert len(set(start)) == 12
    assert start[0] == min(world.item_codes, key=world.item_codes.__getitem__)


def test_what_is_hidden_or_expired_is_near_to_nothing_and_nothing_to_start_with(recommender: Recommender) -> None:
    first, second = (item.item_id for item in recommender.start_items()[:2])
    recommender.hide_item(first)
    recommender.put_item(second, expires=1)
    assert not {first, second} & {item.item_id for item in recommender.start_items()}
    near = [item.item_id for item in recommender.similar(first, k=ITEMS)]
    assert len(near) == ITEMS - 2
    assert not {first, second} & {*near}


def test_sample_users_are_known_and_of_every_kind(recommender: Recommender, world: World) -> None:
    samples = recommender.sample_users()
    assert [s.kind for s in samples] == [k for k in ("heavy", "typical", "light", "niche") for _ in range(2)]
    assert len({s.user_id for s in samples}) == 8
    assert (samples[0].user_id, samples[0].items) == (world.users[-1], ITEMS - 3)
    assert all(s.items == len(world.seen[s.user_id]) for s in samples)
    assert recommender.search_users("500000001", 3) == [5_000_000_010, 5_000_000_011, 5_000_000_012]


def test_an_answer_says_how_it_came_about(recommender: Recommender, world: World) -> None:
    user = world.users[5]
    answer = recommender.recommend(user, k=4)
    allowed = ITEMS - len(world.seen[user])
    assert answer.funnel == {"catalogue": 40, "allowed": allowed, "retrieved": CANDIDATES, "answered": 4}
    assert list(answer.took_ms) == ["history", "features", "retrieve", "rank", "explain", "total"]
    assert answer.bundle == recommender.bundle.name
    assert dataclasses.asdict(answer)["items"][0]["rank"] == 1


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"k": 0}, "`k` must be a whole number of at least 1, not 0"),
        ({"k": True}, "`k` must be a whole number"),
        ({"user_id": 1, "session_id": 2}, "`user_id` and `session_id` are both given"),
        ({"user_id": 2**70}, "`user_id` is .* which does not fit in 64 bits"),
        ({"history": [None]}, "`history` must be a whole number or a string, not None"),
        ({"exclude_ids": [1.5]}, r"`exclude_ids` must be a whole number or a string, not 1\.5"),
    ],
)
def test_a_request_that_makes_no_sense_names_the_field(
    recommender: Recommender, request_: dict[str, object], message: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        recommender.recommend(**request_)  # type: ignore[arg-type]


def test_without_a_store_events_are_refused_and_answers_are_given(world: World) -> None:
    recommender = Recommender.load(world.bundle)
    assert len(recommender.recommend(world.users[5]).items) == 10
    with pytest.raises(ConfigError, match="has no store of events"):
        like(recommender, world.items[0], user_id=1)
