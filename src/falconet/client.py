"""Asks a falconet server, from any program; needs neither torch nor another package.

client = Client("http://127.0.0.1:8000")
for item in client.recommend(42, k=5).items:
    print(item.title, item.reason)
client.add_events([Event(event_id="a-1", user_id=42, item_id=260, type="like")])
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any, Unpack
from urllib.parse import quote, urlencode, urlsplit

from falconet.errors import ConfigError, DataError, ServiceError
from falconet.serve.answers import Item, Met, Named, Recommendation, RecommendedItem, SimilarItem
from falconet.serve.events import Event, Id, Outcome
from falconet.serve.request import Asked

_TRIES = 3  # of a call that a busy server told to come back, or whose connection was cut


class Client:
    """Calls of one server. Any number of threads may share it; each has a connection of its own.

    `token` is what calls that change items or forget people need. `timeout` in seconds. All calls raise DataError for
    what the server calls wrong, and ServiceError where it fails, refuses or is not there. Every call may be sent again
    without harm; that is done where a connection is cut, and where the server says that it is busy, or its store away.
    """

    def __init__(self, url: str = "http://127.0.0.1:8000", *, token: str | None = None, timeout: float = 10.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"`{url}` is no address of a server", hint="such as http://127.0.0.1:8000")
        self.url, self._parts, self._timeout = url.rstrip("/"), parts, timeout
        self._headers = {"content-type": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self._mine = threading.local()

    def recommend(self, user_id: Id | None = None, **asked: Unpack[Asked]) -> Recommendation:
        """The best items for somebody; takes what `falconet.serve.request.Request` has."""
        return _recommendation(self._call("POST", "/v1/recommend", {"user_id": user_id, **asked}))

    def next(self, recommendation_id: str, k: int | None = None) -> Recommendation:
        """The next page of an answer."""
        return _recommendation(
            self._call("POST", "/v1/recommend/next", {"recommendation_id": recommendation_id, "k": k})
        )

    def recommend_batch(self, requests: Sequence[Mapping[str, Any]]) -> list[Recommendation]:
        """The answers to several requests, each with what `recommend` takes."""
        found = self._call("POST", "/v1/recommend/batch", {"requests": list(requests)})
        return [_recommendation(one) for one in found]

    def rank(self, item_ids: Collection[Id], user_id: Id | None = None, **asked: Unpack[Asked]) -> Recommendation:
        """The given items in the order that suits somebody."""
        body = {"item_ids": list(item_ids), "user_id": user_id, **asked}
        return _recommendation(self._call("POST", "/v1/rank", body))

    def add_events(self, events: Sequence[Event]) -> list[Outcome]:
        """Send what people did; an outcome for each, in order."""
        outcomes: list[Outcome] = self._call("POST", "/v1/events", {"events": [asdict(e) for e in events]})["outcomes"]
        return outcomes

    def similar(self, item_id: Id, k: int = 10) -> list[SimilarItem]:
        """The items nearest to one."""
        return [SimilarItem(**one) for one in self._call("GET", f"/v1/similar/{_path(item_id)}?k={k}")]

    def search_items(self, text: str = "", k: int = 20) -> list[Item]:
        """Items whose title contains the text."""
        return [Item(**one) for one in self._call("GET", f"/v1/items?{urlencode({'search': text, 'k': k})}")]

    def count(self, filter: str, parameters: Mapping[str, Any] | None = None) -> int:
        """How many items a filter holds for."""
        return int(self._call("POST", "/v1/filter", {"filter": filter, "parameters": parameters or {}})["items"])

    def put_item(
        self,
        item_id: Id,
        *,
        hidden: bool = False,
        expires: int | None = None,
        features: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Say what an item is like, whether it may be recommended, and until when (microseconds since 1970).

        Needs the token. None where answers can have it, else why they cannot before the next refresh.
        """
        body = {"hidden": hidden, "expires": expires, "features": features}
        why: str | None = self._call("PUT", f"/v1/items/{_path(item_id)}", body)["why"]
        return why

    def put_user(self, user_id: Id, profile: Mapping[str, Any]) -> None:
        """Say what is known of a user: values by column, in place of what was said before. Needs the token."""
        self._call("PUT", f"/v1/users/{_path(user_id)}", {"profile": profile})

    def forget(self, user_id: Id | None = None, session_id: Id | None = None) -> int:
        """Delete all that the server's store has of a person; how many events there were. Needs the token."""
        if (user_id is None) == (session_id is None):
            raise ConfigError("one of `user_id` and `session_id` is needed")
        who = f"users/{_path(user_id)}" if user_id is not None else f"sessions/{_path(session_id)}"
        return int(self._call("DELETE", f"/v1/{who}")["events"])

    def reload(self, bundle: str | None = None) -> str:
        """Have the server load its bundle anew, or the one in a folder beside it; its name. Needs the token."""
        return str(self._call("POST", "/v1/admin/reload", {"bundle": bundle})["bundle"])

    def version(self) -> dict[str, Any]:
        """What runs there: falconet, the bundle, its models and the data they learned from."""
        return dict(self._call("GET", "/version"))

    def close(self) -> None:
        """Let go of this thread's connection."""
        connection = getattr(self._mine, "connection", None)
        if connection is not None:
            connection.close()
            self._mine.connection = None

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        text = None if body is None else json.dumps({k: _plain(v) for k, v in body.items() if v is not None})
        for left in reversed(range(_TRIES)):
            try:
                status, again, content = self._send(method, path, text)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if not left:
                    told = (isinstance(error, OSError) and error.strerror) or repr(error)
                    raise ServiceError(
                        f"`{self.url}` cannot be reached: {told}", hint="is `falconet serve` running there?"
                    ) from error
                continue
            if status in (429, 503) and left:
                time.sleep(min(float(again or 1), self._timeout))
                continue
            return _content(status, content, f"{method} {self.url}{path}")
        raise AssertionError("the last try returns or raises")

    def _send(self, method: str, path: str, text: str | None) -> tuple[int, str | None, bytes]:
        connection = getattr(self._mine, "connection", None)
        if connection is None:
            kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
            connection = kind(self._parts.hostname or "", self._parts.port, timeout=self._timeout)
            self._mine.connection = connection
        connection.request(method, self._parts.path.rstrip("/") + path, text, self._headers)
        response = connection.getresponse()
        return response.status, response.headers.get("retry-after"), response.read()


def _content(status: int, content: bytes, where: str) -> Any:
    try:
        found = json.loads(content)
    except ValueError as error:
        raise ServiceError(f"{where} gave {status} and no JSON: {content[:200]!r}") from error
    if status < 400:
        return found
    said = found.get("error", {}) if isinstance(found, dict) else {}
    message, hint = f"{where} gave {status}: {said.get('message', found)}", said.get("hint")
    kind = DataError if status in (404, 413, 422) else ServiceError
    raise kind(message, hint=hint)


def _recommendation(found: dict[str, Any]) -> Recommendation:
    items = [
        RecommendedItem(**{**item, "retrievers": {name: Named(**said) for name, said in item["retrievers"].items()}})
        for item in found["items"]
    ]
    return Recommendation(**{**found, "items": items, "history": [Met(**met) for met in found["history"]]})


def _path(item_id: Id | None) -> str:
    return quote(str(item_id), safe="")


def _plain(value: Any) -> Any:
    """Sets and tuples as lists, which JSON has."""
    return list(value) if isinstance(value, Collection) and not isinstance(value, (str, Mapping)) else value
