"""Requests that nobody should send: no answer of 500 or above, and every refusal names what it refuses.

    python soak/fuzz_serve.py [--requests N] [--seed N]

In process, on the bundle that tests make. Each request is a good one in which some values were replaced, left out,
nested or added to, or bytes that are no JSON, or a path with odd ids. Checks: below 500; a refusal is JSON with a
message, and where a value was wrong with the name of its field; nothing of the server (paths, SQL, tracebacks) is in
an answer; afterwards a good request is answered as before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import string
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from falconet.serve.http.app import create_app
from falconet.serve.recommender import Recommender
from falconet.serve.serving import Serving
from falconet.serve.stores.sqlite import SqliteStore

ROOT = Path(__file__).resolve().parent.parent
TOKEN = "fuzz"  # noqa: S105 - of an application that no socket leads to
FIELDS = ("filter", "boosts", "history", "item", "events", "recommendation_id", "bundle", "`k`", "exclude_seen")
SECRETS = ("Traceback", "sqlite", "SELECT ", "INSERT ", str(ROOT), "/usr/lib", 'File "')
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 500, 501, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 10**30, 1e308, -1e308, 1e-320, 0.5,
    "", " ", "x", "0", "-1", "1e5", "nan", "Infinity", "null", "a" * 257, "a" * 20_000, "\u0000", "\ud800", "é́", "🦅",
    "../../etc/passwd", "..\\..\\", "%2e%2e%2f", "'; DROP TABLE events; --", '" OR 1=1', "{{7*7}}", "${7*7}",
    "<script>alert(1)</script>", "year >= 1990", "year >=", "((((", "$x", "not", "a" * 300 + " == 1",
    "1 == 1 and " * 200,
    [], {}, [[]], [None], [1, "1", 1.0], [[[[[[1]]]]]], {"a": {"b": {"c": []}}}, {"": 0}, list(range(2_000)),
)  # fmt: skip


class Fuzz:
    """An application and what it said."""

    def __init__(self, bundle: Path, db: Path, items: list[Any], users: list[Any], seed: int) -> None:
        store = SqliteStore(db)
        serving = Serving(Recommender(Recommender.load(bundle).bundle, store))
        app = create_app(serving, token=TOKEN)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://test")
        self.store, self.random = store, random.Random(seed)
        self.items, self.users = items, users
        self.wrong: list[str] = []
        self.statuses: Counter[int] = Counter()

    def good(self) -> tuple[str, str, Any]:
        """A request that is answered: method, path and body."""
        pick, items = self.random.choice, self.items
        ask = {
            "user_id": pick(self.users), "k": 5, "filter": "year >= 1900", "exclude_ids": items[:2], "seed": 3,
            "boosts": {"year >= 1950": 0.1}, "parameters": {"a": 1}, "diversity": 0.2, "temperature": 0.1,
            "context": {"time": 1}, "exclude_seen": ["like"], "explain": True,
        }  # fmt: skip
        event = {"event_id": "e", "user_id": pick(self.users), "item_id": pick(items), "type": "view", "value": 1.0}
        return pick(
            [
                ("POST", "/v1/recommend", ask),
                ("POST", "/v1/recommend", {"history": items[:3], "include_ids": items[:9], "session_id": "s"}),
                ("POST", "/v1/recommend/next", {"recommendation_id": "r", "k": 3}),
                ("POST", "/v1/recommend/batch", {"requests": [ask, {"k": 2}]}),
                ("POST", "/v1/rank", {"item_ids": items[:5], "user_id": pick(self.users)}),
                ("POST", "/v1/events", {"events": [event, {**event, "time": 5, "recommendation_id": "r"}]}),
                ("POST", "/v1/filter", {"filter": "year >= 1990 and $g in genres", "parameters": {"g": "Drama"}}),
                ("PUT", f"/v1/items/{pick(items)}", {"hidden": False, "expires": None}),
                ("POST", "/v1/admin/reload", {"bundle": None}),
                ("GET", f"/v1/similar/{pick(items)}?k=3", None),
                ("GET", "/v1/items?search=film&k=3", None),
                ("GET", "/v1/users?search=5&k=3", None),
                ("DELETE", f"/v1/users/{pick(self.users)}", None),
                ("DELETE", "/v1/sessions/s", None),
                ("GET", "/health/ready", None),
            ]
        )

    def request(self) -> tuple[str, str, bytes | None]:
        """A good request, spoiled."""
        method, path, body = self.good()
        if self.random.random() < 0.2:
            path = self._path(path)
        if self.random.random() < 0.03:
            method = self.random.choice(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE"])
        if body is None:
            return method, path, None
        for _ in range(self.random.randint(0, 3)):
            body = self._spoiled(body)
        raw = json.dumps(body).encode()
        if self.random.random() < 0.05:
            raw = self._bytes(raw)
        return method, path, raw

    def _path(self, path: str) -> str:
        odd = str(self.random.choice([one for one in ODD if isinstance(one, (str, int))]))
        odd = odd[:300].encode("utf-8", "replace").decode()
        head, _, query = path.partition("?")
        if query and self.random.random() < 0.6:
            return f"{head}?{query.split('=')[0]}={quote(odd)}&k={quote(odd)}"
        return f"{head.rpartition('/')[0]}/{quote(odd, safe=self.random.choice(['', '/']))}"

    def _spoiled(self, body: Any) -> Any:
        """The same with one value somewhere replaced, left out or put in."""
        odd = self.random.choice(ODD)
        if isinstance(body, dict) and body and self.random.random() < 0.9:
            key = self.random.choice(sorted(body))
            fate = self.random.random()
            if fate < 0.1:
                return {name: value for name, value in body.items() if name != key}
            if fate < 0.2:
                return {**body, "".join(self.random.choices(string.printable, k=5)): odd}
            deeper = isinstance(body[key], (dict, list)) and fate < 0.6
            return {**body, key: self._spoiled(body[key]) if deeper else odd}
        if isinstance(body, list) and body and self.random.random() < 0.9:
            place = self.random.randrange(len(body))
            return [*body[:place], self._spoiled(body[place]), *body[place + 1 :]]
        return odd

    def _bytes(self, raw: bytes) -> bytes:
        place = self.random.randrange(len(raw) + 1)
        return self.random.choice(
            [
                raw[:place],
                raw[:place] + bytes([self.random.randrange(256)]) + raw[place:],
                b"",
                b"\xff" * 9,
                b"[" * 50_000,
            ]
        )

    async def send(self) -> None:
        method, path, raw = self.request()
        headers = {"authorization": f"Bearer {TOKEN}"}
        if raw is not None:
            headers["content-type"] = self.random.choice(
                ["application/json"] * 9 + ["text/plain", "", "multipart/form-data"]
            )
        answer = await self.client.request(method, path, content=raw, headers=headers)
        self.statuses[answer.status_code] += 1
        if what := self.complaint(method, answer):
            self.wrong.append(f"{method} {path[:200]} {(raw or b'')[:300]!r}: {answer.status_code} {what}")

    def complaint(self, method: str, answer: httpx.Response) -> str:
        """What is wrong with an answer; nothing, mostly."""
        if answer.status_code >= 500:
            return answer.text[:300]
        if found := [secret for secret in SECRETS if secret in answer.text and "DROP TABLE" not in answer.text]:
            return f"tells of {found}: {answer.text[:300]}"
        if answer.status_code < 400 or method == "HEAD":
            return ""
        try:
            error = answer.json()["error"]
        except (ValueError, KeyError, TypeError):
            return f"is no error in JSON: {answer.text[:200]}"
        if not error["message"]:
            return "has no message"
        if answer.status_code == 422 and not error["fields"] and not any(n in error["message"] for n in FIELDS):
            return f"names no field: {error}"
        return ""


async def fuzz(run: Fuzz, requests: int) -> list[str]:
    """What was wrong with the answers to that many requests."""
    check = {"user_id": run.users[5], "k": 5, "exclude_seen": ["training"]}
    before = await run.client.post("/v1/recommend", json=check)
    for _ in range(requests):
        await run.send()
    for item in run.items:  # what was hidden meanwhile
        await run.client.put(f"/v1/items/{item}", json={}, headers={"authorization": f"Bearer {TOKEN}"})
    await run.client.request("DELETE", f"/v1/users/{check['user_id']}", headers={"authorization": f"Bearer {TOKEN}"})
    after = await run.client.post("/v1/recommend", json=check)
    if before.json()["items"] != after.json()["items"]:
        run.wrong.append("a good request is answered differently afterwards")
    await run.client.aclose()
    run.store.close()
    return run.wrong


def main() -> int:
    sys.path.insert(0, str(ROOT / "tests"))
    from serving_world import make_world

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        world = make_world(Path(folder))
        run = Fuzz(world.bundle, Path(folder) / "events.db", world.items, world.users, options.seed)
        wrong = asyncio.run(fuzz(run, options.requests))
    said = ", ".join(f"{count:,} × {status}" for status, count in sorted(run.statuses.items()))
    print(f"{options.requests:,} requests: {said}")
    print("\n".join(wrong[:20]) if wrong else "ok: nothing broke, every refusal says what it refuses")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
