"""Answers and errors as JSON: {"error": {"message", "hint", "fields": [{"field", "message"}]}}."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException

from falconet.errors import ConfigError, DataError, FalconetError

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

_AS_JSON = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATETIME


def add_errors(app: FastAPI) -> None:
    """Make every error of an application JSON, in one shape."""

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> Response:
        fields = [_field(mistake) for mistake in error.errors()]
        return error_reply(422, f"`{fields[0]['field']}`: {fields[0]['message']}", fields=fields)

    @app.exception_handler(FalconetError)
    def refused(request: Request, error: FalconetError) -> Response:
        return error_reply(422 if isinstance(error, (ConfigError, DataError)) else 500, error)

    @app.exception_handler(HTTPException)
    def http(request: Request, error: HTTPException) -> Response:
        reply = error_reply(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
        reply.headers.update(error.headers or {})  # after 405: what is allowed
        return reply

    @app.exception_handler(Exception)
    def broken(request: Request, error: Exception) -> Response:
        return error_reply(500, "this request broke something here; the log of the server says what")


def add_outages(app: FastAPI, outages: Sequence[type[Exception]]) -> None:
    """Answer 503, to come back soon, where a store says that it cannot be reached."""

    def away(request: Request, error: Exception) -> Response:
        sys.stderr.write(f"the store cannot be reached: {type(error).__name__}: {error}\n")
        reply = error_reply(503, "what is known of people and items cannot be reached at the moment")
        reply.headers["retry-after"] = "1"
        return reply

    for kind in outages:
        app.add_exception_handler(kind, away)


def _field(mistake: Mapping[str, Any]) -> dict[str, str]:
    """`k` or `events.3.item_id`, the place in what the caller wrote, and what is wrong with it."""
    location, message = mistake["loc"], mistake["msg"].removeprefix("Value error, ")
    if mistake["type"] == "json_invalid":  # its place is a number of characters
        return {"field": str(location[0]), "message": f"no JSON from character {location[1]} on"}
    if mistake["type"] == "model_attributes_type":
        message = "must be a JSON object, sent as content-type application/json"
    return {"field": ".".join(str(part) for part in location[1:]) or str(location[0]), "message": message}


def answer(content: Any, status: int = 200, *, then: BackgroundTask | None = None) -> Response:
    """Plain values and our dataclasses as JSON; `then` is done once it is sent.

    Not FastAPI's encoder, which would check every value again.
    """
    try:
        body = orjson.dumps(content, default=str, option=_AS_JSON)
    except orjson.JSONEncodeError:  # numbers beyond 64 bits and halves of characters, which callers may have sent
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=_plain)
        body = text.encode(errors="replace")
    return Response(body, status_code=status, media_type="application/json", background=then)


def _plain(value: Any) -> Any:
    """One level of a dataclass: its values come back here."""
    return vars(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def error_reply(status: int, error: FalconetError | str, fields: Sequence[dict[str, str]] = ()) -> Response:
    """An error as JSON."""
    message, hint = (error.args[0], error.hint) if isinstance(error, FalconetError) else (error, None)
    return answer({"error": {"message": message, "hint": hint, "fields": list(fields)}}, status)
