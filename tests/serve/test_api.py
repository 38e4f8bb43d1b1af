"""The HTTP API: answers, errors as JSON with the field's name, bounds, headers."""

from __future__ import annotations

from importlib.resources import files

import pytest

from falconet.serve.recommender import Recommender
from serving_client import Client
from serving_world import ITEMS, World

PAGE = files("falconet.serve") / "page"


@pytest.fixture
def client(recommender: Recommender) -> Client:
    return Client(recommender)


def ids(client: Client, **request: object) -> list[int]:
    response = client.post("/v1/recommend", json=request)
    assert response.status_code == 200, response.text
    return [item["item_id"] for item in response.json()["items"]]


def send(client: Client, *events: dict[str, object]) -> dict[str, object]:
    response = client.post("/v1/events", json={"events": list(events)})
    assert response.status_code == 200, response.text
    content: dict[str, object] = response.json()
    return content


def test_an_answer_has_items_scores_reasons_and_how_it_came_about(client: Client, world: World) -> None:
    content = client.post("/v1/recommend", json={"user_id": world.users[5], "k": 3}).json()
    assert set(content) == {
        "items",
        "cold_start",
        "recommendation_id",
        "bundle",
        "history",
        "funnel",
        "took_ms",
        "variant",
        "degraded",
    }
    assert [item["rank"] for item in content["items"]] == [1, 2, 3]
    assert set(content["items"][0]) == {
        "item_id", "title", "attributes", "retriever_score", "retriever_rank",
        "score", "rank", "source", "reason", "because", "retrievers",
    }  # fmt: skip
    assert content["cold_start"] is False


@pytest.mark.parametrize("request_", [{"user_id": 4}, {"user_id": "x"}, {}, {"history": []}, {"user_id": None}])
def test_strangers_get_a_full_list_flagged_as_a_cold_start(client: Client, request_: dict[str, object]) -> None:
    response = client.post("/v1/recommend", json=request_)
    assert response.status_code == 200
    assert len(response.json()["items"]) == 10
    assert response.json()["cold_start"] is True


def test_the_next_answer_knows_what_was_posted(client: Client, world: World) -> None:
    user = world.users[5]
    first = ids(client, user_id=user)[0]
    event = {"event_id": "a", "user_id": user, "item_id": first, "type": "like"}
    assert send(client, event) == {"accepted": 1, "duplicates": 0, "rejected": 0, "outcomes": ["accepted"]}
    assert send(client, event)["duplicates"] == 1
    content = client.post("/v1/recommend", json={"user_id": user}).json()
    assert first not in [item["item_id"] for item in content["items"]]
    assert content["history"][-1]["item_id"] == first


def test_an_event_without_an_id_gets_one_and_a_refused_one_its_reason(client: Client, world: World) -> None:
    good = {"session_id": "s", "item_id": world.items[0], "type": "view"}
    content = send(client, good, good, {**good, "event_id": "e", "time": 2**62})
    assert (content["accepted"], content["rejected"]) == (2, 1)
    assert "in the future" in str(content["outcomes"])


def test_filters_work_over_http(client: Client, world: World) -> None:
    assert ids(client, include_ids=world.items[:3], exclude_ids=world.items[:1], k=500) == sorted(
        world.items[1:3], key=world.item_codes.__getitem__
    )
    assert len(ids(client, user_id=world.users[-1], exclude_seen=False, k=500)) == ITEMS


def test_items_users_and_places_to_start_from_are_listed(client: Client, world: World) -> None:
    found = client.get("/v1/items", params={"search": "film 07"}).json()
    assert found == [{"item_id": world.items[7], "title": "Film 07 (1967)", "attributes": {"genres": ["Western"]}}]
    near = client.get(f"/v1/similar/{world.items[7]}", params={"k": 2}).json()
    assert len(near) == 2
    assert near[0]["similarity"] >= near[1]["similarity"]
    assert len(client.get("/v1/start").json()) == 12
    users = client.get("/v1/users", params={"search": "500000002"}).json()
    assert users["users"] == [5_000_000_002, *range(5_000_000_020, 5_000_000_024)][1:]
    assert users["samples"][0] == {"user_id": world.users[-1], "kind": "heavy", "items": 37}


def test_health_and_version_say_what_runs_here(client: Client, recommender: Recommender) -> None:
    assert client.get("/health/live").json() == {"status": "live"}
    assert client.get("/health/ready").json() == {"status": "ready", "bundle": recommender.bundle.name}
    version = client.get("/version").json()
    assert version["models"] == {"retrievers": {"retriever": "TwoTower"}, "ranker": "MLP"}
    assert (version["items"], version["users"], version["candidates"]) == (40, 24, 15)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/recommend", {"k": 0}, "k"),
        ("/v1/recommend", {"k": 501}, "k"),
        ("/v1/recommend", {"k": "many"}, "k"),
        ("/v1/recommend", {"user_id": 1.5}, "user_id"),
        ("/v1/recommend", {"user_id": True}, "user_id"),
        ("/v1/recommend", {"user_id": 2**64}, "user_id"),
        ("/v1/recommend", {"user_id": ""}, "user_id"),
        ("/v1/recommend", {"history": [1, {}]}, "history.1"),
        ("/v1/recommend", {"history": list(range(1001))}, "history"),
        ("/v1/recommend", {"context": {"hour": [1]}}, "context.hour"),
        ("/v1/recommend", {"users": 3}, "users"),
        ("/v1/events", {"events": []}, "events"),
        ("/v1/events", {"events": [{"user_id": 1, "item_id": 2}]}, "events.0.type"),
        ("/v1/events", {"events": [{"user_id": 1, "type": "view"}]}, "events.0.item_id"),
        ("/v1/events", {"events": [{"user_id": 1, "item_id": 2, "type": "view", "time": -1}]}, "events.0.time"),
        ("/v1/events", {}, "events"),
    ],
)
def test_bad_input_is_422_with_the_name_of_the_field(
    client: Client, path: str, body: dict[str, object], field: str
) -> None:
    response = client.post(path, json=body)
    assert response.status_code == 422
    fields = [entry["field"] for entry in response.json()["error"]["fields"]]
    assert any(name == field or name.startswith(field + ".") for name in fields), fields


def test_an_event_of_nobody_and_a_request_of_two_are_422(client: Client) -> None:
    response = client.post("/v1/events", json={"events": [{"item_id": 1, "type": "view"}]})
    assert response.status_code == 422
    assert response.json()["error"]["message"].startswith("`events.0`: an event needs a `user_id` or a `session_id`")
    response = client.post("/v1/recommend", json={"user_id": 1, "session_id": "s"})
    assert response.status_code == 422
    assert response.json()["error"]["hint"] == "an event or a request has one person"


@pytest.mark.parametrize(
    "body",
    [
        b'{"user_id": "\\ud800"}',
        b'{"\\udfff": 1}',
        b"",
        b"{",
        b"[1]",
        b"nul",
        b"\xff\xfe",
        b'{"k": NaN}',
        b'{"user_id": 1e400}',
    ],
)
def test_a_body_that_is_no_request_is_422(client: Client, body: bytes) -> None:
    response = client.post("/v1/recommend", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 422
    assert response.json()["error"]["message"]


@pytest.mark.parametrize("user", ["9" * 200, "-" + "9" * 19, "-0", "٣", "a\x00b", "x'; DROP TABLE events", "🦅"])
def test_any_text_can_be_a_user(client: Client, world: World, user: str) -> None:
    assert send(client, {"user_id": user, "item_id": world.items[0], "type": "like"})["accepted"] == 1
    content = client.post("/v1/recommend", json={"user_id": user}).json()
    assert [met["item_id"] for met in content["history"]] == [world.items[0]]
    assert content["cold_start"] is True


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (b'{"k": 5', "application/json", "`body`: no JSON from character 7 on"),
        (b'{"k": 5}', "text/plain", "`body`: must be a JSON object, sent as content-type application/json"),
        (b'{"user_id": 1.5}', "application/json", "`user_id`: `id` must be a whole number or a string, not 1.5"),
        (
            b'{"context": {"hour": []}}',
            "application/json",
            "`context.hour`: must be a number, a string, true, false or null",
        ),
    ],
)
def test_what_is_wrong_with_a_body_is_said_in_one_sentence(
    client: Client, body: bytes, kind: str, message: str
) -> None:
    response = client.post("/v1/recommend", content=body, headers={"content-type": kind})
    assert response.status_code == 422
    assert response.json()["error"]["message"] == message
    assert [f"`{entry['field']}`: {entry['message']}" for entry in response.json()["error"]["fields"]] == [message]


def test_an_item_whose_id_has_a_slash_can_be_looked_up(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(Recommender, "similar", lambda self, item, k: asked.append(item) or [])
    assert client.get("/v1/similar/a%2Fb").json() == []
    assert asked == ["a/b"]
    assert client.get("/v1/similar/").status_code == 422


def test_a_body_nested_without_end_is_refused(client: Client) -> None:
    body = b'{"user_id":' + b"[" * 100_000
    response = client.post("/v1/recommend", content=body, headers={"content-type": "application/json"})
    assert response.status_code in (400, 422)
    assert response.json()["error"]["message"]


def test_sizes_are_bounded(client: Client) -> None:
    response = client.post("/v1/recommend", content=b" " * 1_000_001)
    assert response.status_code == 413
    assert response.json()["error"]["message"] == "the body has more than 1,000,000 bytes"
    assert "content-security-policy" in response.headers
    event = {"user_id": 1, "item_id": 2, "type": "view"}
    assert client.post("/v1/events", json={"events": [event] * 1001}).status_code == 422
    assert client.get("/v1/items", params={"search": "x" * 201}).status_code == 422
    assert client.get("/v1/items", params={"k": 501}).status_code == 422


def test_what_is_not_there_is_404_as_json(client: Client) -> None:
    response = client.get("/v1/similar/999")
    assert response.status_code == 404
    assert response.json()["error"]["message"] == "no item '999' in the catalogue"
    response = client.get("/v1/nothing")
    assert (response.status_code, response.json()["error"]["message"]) == (404, "GET /v1/nothing: Not Found")
    response = client.get("/v1/recommend")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


def test_a_fault_of_ours_is_500_as_json_without_a_traceback(
    recommender: Recommender, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(text: str, limit: int) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(recommender, "search_items", broken)
    response = Client(recommender).get("/v1/items")
    assert response.status_code == 500
    assert "secret" not in response.text
    assert response.json()["error"]["fields"] == []
    assert "content-security-policy" in response.headers


def test_the_page_comes_from_here_alone(client: Client) -> None:
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    names = [path.name for path in PAGE.iterdir() if path.name != "index.html"]
    assert {"app.js", "style.css"} < set(names)
    whole = page.text + "".join(client.get(f"/{name}").text for name in names)
    assert "http://" not in whole.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in whole


def test_other_sites_may_not_call(client: Client) -> None:
    response = client.get("/v1/start", headers={"origin": "https://example.com"})
    assert "access-control-allow-origin" not in response.headers


def test_the_calls_are_described_with_examples(client: Client) -> None:
    described = client.get("/openapi.json").json()
    assert described["components"]["schemas"]["RecommendIn"]["examples"][0] == {"user_id": 42, "k": 10}
    assert set(described["paths"]) == {
        "/v1/recommend", "/v1/recommend/next", "/v1/recommend/batch", "/v1/rank", "/v1/filter", "/v1/events",
        "/v1/similar/{item_id}", "/v1/items", "/v1/items/{item_id}", "/v1/users", "/v1/users/{user_id}",
        "/v1/sessions/{session_id}", "/v1/admin/reload", "/v1/start", "/metrics",
        "/v1/about", "/v1/live", "/v1/compare", "/v1/why",
        "/health/live", "/health/ready", "/version",
    }  # fmt: skip


def test_filters_boosts_and_pages_over_http(client: Client, world: World) -> None:
    asked = {"user_id": world.users[5], "k": 3, "filter": "$g in genres", "parameters": {"g": "Drama"}}
    first = client.post("/v1/recommend", json={**asked, "boosts": {"$g in genres": 1}}).json()
    page = client.post("/v1/recommend/next", json={"recommendation_id": first["recommendation_id"]}).json()
    shown = [item["item_id"] for item in (*first["items"], *page["items"])]
    assert len(set(shown)) == len(shown) > 3
    assert all("Drama" in item["attributes"]["genres"] for item in (*first["items"], *page["items"]))
    counted = client.post("/v1/filter", json={"filter": "$g in genres", "parameters": {"g": "Drama"}}).json()
    assert counted["items"] >= len(shown)


def test_a_batch_is_the_answers_one_by_one(client: Client, world: World) -> None:
    requests = [{"user_id": user, "k": 4} for user in world.users[:3]]
    batch = client.post("/v1/recommend/batch", json={"requests": requests}).json()
    assert [[item["item_id"] for item in one["items"]] for one in batch] == [ids(client, **one) for one in requests]
    wrong = client.post("/v1/recommend/batch", json={"requests": [*requests, {"k": 0}]})
    assert (wrong.status_code, wrong.json()["error"]["fields"][0]["field"]) == (422, "requests.3.k")


def test_given_items_are_ranked_over_http(client: Client, world: World) -> None:
    answer = client.post("/v1/rank", json={"user_id": world.users[5], "item_ids": world.items[:5]}).json()
    assert {item["item_id"] for item in answer["items"]} == set(world.items[:5])


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/recommend", {"filter": "nothing == 1"}, "items have no column `nothing`"),
        ("/v1/recommend", {"filter": "x" * 2001}, "`filter`"),
        ("/v1/recommend", {"diversity": 2}, "`diversity`"),
        ("/v1/recommend", {"boosts": {"1 == 1": "much"}}, "`boosts.1 == 1`"),
        ("/v1/recommend/next", {"recommendation_id": "none"}, "no answer has the `recommendation_id`"),
        ("/v1/recommend/next", {"recommendation_id": "none", "k": 0}, "`k`"),
        ("/v1/rank", {"item_ids": []}, "`item_ids`"),
        ("/v1/filter", {"filter": "title =="}, "filter, character 9"),
    ],
)
def test_new_calls_say_what_is_wrong(client: Client, path: str, body: dict[str, object], message: str) -> None:
    response = client.post(path, json=body)
    assert response.status_code == 422
    assert message in response.json()["error"]["message"]


def test_items_are_hidden_and_people_forgotten_only_with_the_token(recommender: Recommender, world: World) -> None:
    closed = Client(recommender)
    assert closed.request("DELETE", f"/v1/items/{world.items[0]}").status_code == 403
    client = Client(recommender, token="a secret")  # noqa: S106
    path = f"/v1/items/{world.items[0]}"
    for headers in ({}, {"authorization": "Bearer another"}, {"authorization": "a secret"}):
        assert client.request("DELETE", path, headers=headers).status_code == 401
    with_it = {"headers": {"authorization": "Bearer a secret"}}
    everything = {"k": ITEMS, "exclude_seen": False}
    assert client.request("DELETE", path, **with_it).status_code == 200
    assert world.items[0] not in ids(client, **everything)
    assert client.request("PUT", path, json={}, **with_it).status_code == 200
    assert world.items[0] in ids(client, **everything)
    assert client.request("PUT", path, json={"expires": -1}, **with_it).status_code == 422
    send(client, {"event_id": "a", "user_id": 7, "item_id": 1, "type": "view"})
    send(client, {"event_id": "b", "session_id": 7, "item_id": 1, "type": "view"})
    send(client, {"event_id": "c", "session_id": "7", "item_id": 1, "type": "view"})
    assert client.request("DELETE", "/v1/users/7", **with_it).json() == {"user_id": "7", "events": 1}
    assert client.request("DELETE", "/v1/sessions/7", **with_it).json() == {"session_id": "7", "events": 2}
