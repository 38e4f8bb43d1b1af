"""The calls that only the page makes: what a bundle tells of its making, what goes on now, two bundles side by side."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from falconet.errors import ArtifactError, ConfigError
from falconet.io.artifact import read_artifact
from falconet.serve.about import About, read_about, write_about
from falconet.serve.answers import Recommendation
from falconet.serve.live import KEPT, SECONDS, WINDOW, Live
from falconet.serve.recommender import Recommender
from falconet.serve.serving import Reload, Serving
from serving_client import Client
from serving_world import World


class Clock:
    now = 1_000_000.5

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def serving(recommender: Recommender) -> Serving:
    return Serving(recommender)


@pytest.fixture
def live(serving: Serving, clock: Clock) -> Live:
    return Live(serving, clock)


@pytest.fixture
def said(recommender: Recommender) -> Recommendation:
    return recommender.preview(recommender.sample_users()[0].user_id, k=3)


def test_requests_are_counted_by_the_second_that_is_over(live: Live, clock: Clock) -> None:
    for status in (200, 200, 422, 500):
        live.asked(status)
    assert live.plain()["requests"] == [[0, 0, 0]] * SECONDS
    clock.now += 1
    live.asked(200)
    assert live.plain()["requests"][-2:] == [[0, 0, 0], [4, 1, 1]]
    clock.now += 10
    told = live.plain()
    assert told["requests"][-11:] == [[4, 1, 1], [1, 0, 0], *[[0, 0, 0]] * 9]
    assert told["totals"] == {"requests": 5, "refused": 1, "broken": 1, "answers": 0}
    clock.now += SECONDS
    assert live.plain()["requests"] == [[0, 0, 0]] * SECONDS


def test_times_of_stages_are_percentiles_of_the_last_minutes(live: Live, clock: Clock, said: Recommendation) -> None:
    for ms in range(1, 201):
        live.answered(replace(said, took_ms={"rank": float(ms), "total": 2.0 * ms}))
    told = live.plain()
    assert told["stages"]["rank"] == {"p50": 100.0, "p95": 190.0, "p99": 198.0}
    assert told["stages"]["total"]["p99"] == 396.0
    assert told["answers"] == 200
    clock.now += WINDOW
    live.answered(replace(said, took_ms={"rank": 7.0}))
    assert live.plain()["stages"] == {"rank": {"p50": 7.0, "p95": 7.0, "p99": 7.0}}
    for _ in range(KEPT + 5):
        live.answered(said)
    assert live.plain()["answers"] == KEPT


def test_shares_and_events_are_told(live: Live, clock: Clock, said: Recommendation, recommender: Recommender) -> None:
    assert live.plain()["shares"] == {"popular": None, "cold": None, "degraded": None}
    live.answered(said)
    live.answered(recommender.preview(None, k=3))
    assert live.plain()["shares"] == {"popular": 0.5, "cold": 0.5, "degraded": 0.0}
    live.took_in(0, 2, 1)
    assert live.plain()["events"] == {"accepted": 0, "duplicates": 2, "rejected": 1, "last": None}
    live.took_in(3, 0, 0)
    assert live.plain()["events"] == {"accepted": 3, "duplicates": 2, "rejected": 1, "last": clock.now}


def test_reloads_and_refused_ones_are_remembered(world: World, recommender: Recommender, tmp_path: Path) -> None:
    shutil.copytree(world.bundle, tmp_path / "bundle")
    serving = Serving(Recommender.load(tmp_path / "bundle"))
    name = serving.recommender.bundle.name
    serving.reload()
    (tmp_path / "bundle/popular.parquet").write_bytes(b"")
    with pytest.raises(ArtifactError, match="popular"):
        serving.reload()
    assert [(one.before, one.after) for one in serving.reloads] == [(name, name), (name, None)]
    told = Live(serving).plain()["reloads"]
    assert told[1] == {"time": serving.reloads[1].time, "before": name, "after": None}
    assert isinstance(serving.reloads[0], Reload)


def test_over_http_what_the_page_asks_is_no_traffic(serving: Serving) -> None:
    client = Client(serving)
    client.get("/v1/live")
    client.get("/v1/about")
    client.get("/health/live")
    assert client.post("/v1/recommend", json={"k": 2}).status_code == 200
    assert client.post("/v1/recommend", json={"k": 0}).status_code == 422
    assert client.post("/v1/events", json={"events": []}).status_code == 422
    told = client.get("/v1/live").json()
    assert told["totals"] == {"requests": 3, "refused": 2, "broken": 0, "answers": 1}
    assert set(told["stages"]) >= {"history", "retrieve", "total"}
    assert told["bundle"] == serving.recommender.bundle.name
    assert told["alone"] is True


def test_what_breaks_is_counted_as_broken(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(serving)
    monkeypatch.setattr(serving.recommender, "start_items", lambda: 1 / 0)
    assert client.get("/v1/start").status_code == 500
    assert client.get("/v1/live").json()["totals"] == {"requests": 1, "refused": 0, "broken": 1, "answers": 0}


def test_an_old_bundle_tells_nothing_of_its_making(serving: Serving) -> None:
    client = Client(serving)
    [told] = client.get("/v1/about").json()["bundles"]
    assert told["about"] == {"runs": None, "data": None, "times": None}
    assert told["models"] == {"retrievers": {"retriever": "TwoTower"}, "ranker": "MLP"}


def test_two_bundles_answer_one_request_and_nothing_is_kept(
    world: World, recommender: Recommender, strings: Recommender
) -> None:
    serving = Serving(recommender, beside=strings)
    client = Client(serving)
    request = {"user_id": world.users[5], "k": 4}
    answers = client.post("/v1/compare", json=request).json()["answers"]
    alone = client.post("/v1/recommend", json=request).json()
    assert client.get("/version").json()["beside"] == strings.bundle.name
    page = client.post("/v1/recommend/next", json={"recommendation_id": answers[0]["recommendation_id"]})
    refused = client.post("/v1/compare", json={**request, "scenario": "home"})
    told = client.get("/v1/about").json()["bundles"]
    assert [one["bundle"] for one in answers] == [recommender.bundle.name, strings.bundle.name]
    assert [one["bundle"] for one in told] == [recommender.bundle.name, strings.bundle.name]
    assert [item["item_id"] for item in answers[0]["items"]] == [item["item_id"] for item in alone["items"]]
    assert answers[1]["cold_start"], "to the other bundle this person is a stranger"
    assert page.status_code == 422
    assert "`scenario` is of lists that are shown" in refused.json()["error"]["message"]


def test_without_another_bundle_there_is_nothing_to_compare(serving: Serving) -> None:
    client = Client(serving)
    refused = client.post("/v1/compare", json={"k": 3})
    assert refused.status_code == 422
    assert refused.json()["error"]["hint"] == "`falconet serve BUNDLE --beside OTHER`"


def test_what_a_bundle_tells_survives_the_disk_and_times_are_not_part_of_it(tmp_path: Path) -> None:
    times = write_about(tmp_path, {"runs": {"runs": [], "x": float("nan")}, "times": {"built": 5}})
    assert times == ["about/times.json"]
    about = read_about(tmp_path)
    assert about == About(runs={"format": 1, "runs": [], "x": None}, times={"format": 1, "built": 5})
    with pytest.raises(ConfigError, match=r"(?s)`about` has `run`.*did you mean `runs`"):
        write_about(_made(tmp_path / "wrong"), {"run": {}})
    with pytest.raises(ConfigError, match="`about` of `data` is no JSON"):
        write_about(_made(tmp_path / "set"), {"data": {"x": {1, 2}}})


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 99}'], ids=["cut", "a list", "of another format"])
def test_what_cannot_be_read_is_left_out_with_a_note(
    tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_about(tmp_path, {"data": {}})
    (tmp_path / "about/runs.json").write_text(content)
    assert read_about(tmp_path) == About(data={"format": 1})
    assert "runs.json` is left out" in capsys.readouterr().err


def test_times_differ_and_the_bundle_is_the_same(world: World, tmp_path: Path) -> None:
    shutil.copytree(world.bundle, tmp_path / "bundle")
    (tmp_path / "bundle/about").mkdir()
    (tmp_path / "bundle/about/times.json").write_text(json.dumps({"format": 1, "built": 7}))
    assert read_artifact(tmp_path / "bundle", "bundle") == read_artifact(world.bundle, "bundle")
    assert Recommender.load(tmp_path / "bundle").bundle.about.times == {"format": 1, "built": 7}


def test_why_tells_what_the_ranker_reads_and_what_is_near(recommender: Recommender, world: World) -> None:
    client, user = Client(recommender), world.users[5]
    items = client.post("/v1/recommend", json={"user_id": user, "k": 5}).json()["items"]
    told = client.post("/v1/why", json={"user_id": user, "k": 5, "item_id": items[1]["item_id"]}).json()
    assert told["candidates"] == 15
    names = [one["name"] for one in told["features"]]
    assert {"retriever_score", "log_popularity", "history_length"} & set(names)
    changes = [abs(one["score"] - items[1]["score"]) for one in told["features"]]
    assert changes == sorted(changes, reverse=True)
    assert changes[0] > 0
    assert all(1 <= one["rank"] <= 15 for one in told["features"])
    near = [one["item_id"] for one in told["near"]]
    assert set(near) <= set(world.seen[user])
    assert items[1]["because"] in (near[0], None)


def test_why_of_strangers_and_of_unknown_items(recommender: Recommender, world: World) -> None:
    client = Client(recommender)
    stranger = client.post("/v1/why", json={"k": 5, "item_id": world.items[0]})
    assert stranger.json() == {"features": [], "near": [], "candidates": 0}
    met = world.seen[world.users[5]][0]
    no_candidate = client.post("/v1/why", json={"user_id": world.users[5], "item_id": met}).json()
    assert (no_candidate["features"], no_candidate["candidates"]) == ([], 15)
    refused = client.post("/v1/why", json={"k": 5, "item_id": "nothing"})
    assert refused.status_code == 422
    assert "no item 'nothing' in the catalogue" in refused.json()["error"]["message"]


def test_why_without_a_ranker_tells_what_is_near(strings: Recommender, world_of_strings: World) -> None:
    user = world_of_strings.users[5]
    item = strings.preview(user, k=1).items[0].item_id
    told = strings.closer(item, user)
    assert told.features == []
    assert told.near
