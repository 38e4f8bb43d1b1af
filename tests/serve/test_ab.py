"""A request with a scenario: the person's variant answers, and what was shown is kept."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from falconet.errors import ConfigError, DataError
from falconet.serve.events import Who
from falconet.serve.http.app import create_app
from falconet.serve.recommender import Recommender
from falconet.serve.scenarios import Scenario, Scenarios, Variant
from falconet.serve.serving import Serving
from falconet.serve.stores.sqlite import SqliteStore
from serving_world import World

HOME = Scenario(name="home", variants=(Variant(name="as-is"), Variant(name="again", exclude_seen=False, diversity=0.9)))
TESTS = Scenarios(scenario=(HOME,))


@pytest.fixture
def tested(recommender: Recommender) -> Recommender:
    return Recommender(recommender.bundle, recommender.store, TESTS)


def user_of(world: World, variant: str) -> int | str:
    """The first user who has it."""
    return next(user for user in world.users if HOME.variant(Who("user", user)).name == variant)


@pytest.mark.parametrize("variant", ["as-is", "again"])
def test_the_variant_answers_and_its_next_pages_and_is_kept(
    tested: Recommender, store: SqliteStore, world: World, variant: str
) -> None:
    user = user_of(world, variant)
    settings = {"exclude_seen": False, "diversity": 0.9} if variant == "again" else {}
    said = tested.recommend(str(user), k=5, scenario="home")  # "7" is 7 where ids are numbers
    want = tested.recommend(user, k=5, **settings)  # type: ignore[arg-type]
    assert (said.items, said.variant, want.variant) == (want.items, variant, None)
    more = tested.next(said.recommendation_id)
    assert (more.items, more.variant) == (tested.next(want.recommendation_id).items, variant)
    ((_, kept),) = store.impressions()
    assert (kept.recommendation_id, kept.who) == (said.recommendation_id, Who("user", user))
    assert (kept.scenario, kept.variant, kept.bundle) == ("home", variant, tested.bundle.name)
    assert kept.items == tuple(item.item_id for item in said.items)


def test_nobody_has_no_variant(tested: Recommender, store: SqliteStore) -> None:
    assert tested.recommend(k=5, scenario="home").variant is None
    assert [kept.variant for _, kept in store.impressions()] == [None]


def test_a_scenario_that_is_none_and_calls_that_have_none_are_errors(tested: Recommender, world: World) -> None:
    with pytest.raises(ConfigError, match=r"`scenario` is 'hom', which this server does not have"):
        tested.recommend(1, scenario="hom")
    with pytest.raises(ConfigError, match="`rank` does not"):
        tested.rank(world.items[:2], scenario="home")
    with pytest.raises(ConfigError, match="`scenario` is of lists that are shown"):
        tested.recommend_users("users.csv", "out", scenario="home")
    wrong = Variant(name="wrong", boosts={"yaer > 1990": 1.0})
    with pytest.raises(DataError, match="no column `yaer`"):
        Recommender(tested.bundle, None, Scenarios(scenario=(Scenario(name="x", variants=(Variant(name="a"), wrong)),)))


def test_over_http_too_and_after_another_bundle(tested: Recommender, world: World) -> None:
    serving = Serving(tested)
    transport = httpx.ASGITransport(create_app(serving))

    async def call(scenario: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            body = {"user_id": user_of(world, "again"), "scenario": scenario}
            return await client.post("/v1/recommend", json=body)

    assert asyncio.run(call("home")).json()["variant"] == "again"
    serving.reload()
    assert asyncio.run(call("home")).json()["variant"] == "again"
    refused = asyncio.run(call("hom"))
    assert refused.status_code == 422
    assert "`scenario` is 'hom'" in refused.json()["error"]["message"]
