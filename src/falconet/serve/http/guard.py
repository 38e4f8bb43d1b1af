"""What stands before the application: bounds, security headers, an id and a line of the log for every request."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from falconet.serve.http.bodies import BODY_SECONDS, MAX_BODY
from falconet.serve.http.quick import QuickCalls
from falconet.serve.http.replies import HEADERS, error_reply
from falconet.serve.live import Live

_ID = re.compile(rb"[\w.:-]{1,128}")  # what a caller's own request id may be

_HEADERS = [(key.encode(), value.encode()) for key, value in HEADERS.items()]
_OF_THE_PAGE = frozenset({"/v1/live", "/v1/about"})

Log = Callable[[dict[str, str | int | float]], None]


class Guard:
    """Refuses bodies above MAX_BODY before they are parsed, those that take BODY_SECONDS to come, and requests while
    `at_once` others are being answered.

    Every answer has the security headers and an `x-request-id`, the caller's own where it sent one. `log` gets a line
    for each: time, id, method, path, status, milliseconds. `live` counts the calls of the API, the page's own apart.
    What `calls` answers does not pass through the application.
    """

    def __init__(
        self, app: ASGIApp, at_once: int, calls: QuickCalls, log: Log | None = None, live: Live | None = None
    ) -> None:
        self._app, self._at_once, self._calls, self._log, self._live = app, at_once, calls, log, live
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0
        name = next((value for key, value in scope["headers"] if key == b"x-request-id"), b"")
        name = name if _ID.fullmatch(name) else uuid.uuid4().hex.encode()

        async def guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] += [*_HEADERS, (b"x-request-id", name)]
            await send(message)

        counted = not scope["path"].startswith("/health/")
        self._open += counted
        try:
            if counted and self._open > self._at_once:
                busy = error_reply(429, f"{self._at_once:,} requests are being answered; try again")
                busy.headers["retry-after"] = "1"
                await busy(scope, receive, guarded)
            else:
                await self._bounded(scope, receive, guarded)
        except Exception as error:
            if not status:  # of a call on the short way: the application has answered to its own
                await self._calls.broken(scope, error)(scope, receive, guarded)
            status = 500
            raise
        finally:
            self._open -= counted
            if self._live is not None and scope["path"].startswith("/v1/") and scope["path"] not in _OF_THE_PAGE:
                self._live.asked(status)
            if self._log is not None:
                self._log({
                    "time": datetime.now(UTC).isoformat(timespec="milliseconds"), "id": name.decode(),
                    "method": scope["method"], "path": scope["path"], "status": status,
                    "ms": round((time.perf_counter() - start) * 1000, 3),
                })  # fmt: skip

    async def _bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the whole body, which a caller may send in any number of parts, and hand it on."""
        body = b""
        more = True
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while more and len(body) <= MAX_BODY:
                    message = await receive()
                    if message["type"] != "http.request":  # the caller has gone
                        return
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
        except TimeoutError:
            late = error_reply(408, f"the body did not come within {BODY_SECONDS:g} s")
            late.headers["connection"] = "close"  # the rest of it may come yet
            await late(scope, receive, send)
            return
        if len(body) > MAX_BODY:
            await error_reply(413, f"the body has more than {MAX_BODY:,} bytes")(scope, receive, send)
            return
        if (reply := await self._calls.reply(scope, body)) is not None:
            await reply(scope, receive, send)
            return
        parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return parts.pop() if parts else await receive()

        await self._app(scope, replay, send)


def log_to_stderr(line: dict[str, str | int | float]) -> None:
    """One request as a line of JSON."""
    sys.stderr.write(json.dumps(line) + "\n")
