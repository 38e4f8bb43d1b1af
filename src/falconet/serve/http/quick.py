"""The short way of a call whose only argument is its body: few steps, and one thread that is woken.

FastAPI describes such a call and says what is wrong with a body; a body that is right does not pass through it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from inspect import iscoroutinefunction, signature
from typing import Any, TypeVar, cast

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.types import Scope

from falconet.serve.pool import Pool

R = TypeVar("R")

_THREADS = 40  # calls at once


class QuickCalls:
    """The calls of an application that take a body and nothing else, by their path. `learn` them when all are there."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[type[BaseModel], Callable[[Any], Response]]] = {}
        self._handlers: Mapping[Any, Callable[..., Any]] = {}
        self._threads = Threads()

    def learn(self, app: FastAPI) -> None:
        """Take over the calls of an application, and what it answers to their errors."""
        self._handlers = app.exception_handlers
        for route in app.routes:
            if isinstance(route, APIRoute) and route.methods == {"POST"} and (body := _only_body(route)) is not None:
                self._calls[route.path] = body, route.endpoint

    async def reply(self, scope: Scope, body: bytes) -> Response | None:
        """The answer to a request; None where the application must look at it: another call, or a body that is wrong.

        Raises what a call raises that the application has no answer to.
        """
        known = self._calls.get(scope["path"]) if scope["method"] == "POST" else None
        if known is None or (b"content-type", b"application/json") not in scope["headers"]:
            return None
        model, call = known
        try:
            asked = model.model_validate_json(body)
        except ValidationError:
            return None
        try:
            return await self._threads.run(lambda: call(asked))
        except Exception as error:
            answers = (self._handlers.get(kind) for kind in type(error).__mro__ if kind is not Exception)
            told = next((one for one in answers if one is not None), None)
            if told is None:
                raise
            reply: Response = told(Request(scope), error)
            return reply

    def broken(self, scope: Scope, error: Exception) -> Response:
        """What the application answers to an error that it has no other answer to."""
        reply: Response = self._handlers[Exception](Request(scope), error)
        return reply


def _only_body(route: APIRoute) -> type[BaseModel] | None:
    """The model of the body, for a function that takes it and nothing else and is no coroutine."""
    needs = route.dependant
    alone = len(needs.body_params) == len(signature(route.endpoint).parameters) == 1
    if not alone or needs.dependencies or iscoroutinefunction(route.endpoint):
        return None
    found = needs.body_params[0].field_info.annotation
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


class Threads:
    """Runs calls beside event loops."""

    def __init__(self, most: int = _THREADS) -> None:
        self._pool = Pool("falconet-call", most)

    async def run(self, call: Callable[[], R]) -> R:
        """What a call gives, or raises. While all threads are busy it waits for its turn."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[R | None, BaseException | None]] = loop.create_future()

        def work() -> Callable[[], None]:
            try:
                said: tuple[R | None, BaseException | None] = call(), None
            except BaseException as error:  # noqa: BLE001  # whoever waits for it gets it
                said = None, error
            return partial(_answer, loop, done, said)

        self._pool.put(work)
        result, error = await done
        if error is not None:
            raise error
        return cast(R, result)


def _answer(loop: asyncio.AbstractEventLoop, done: asyncio.Future[R], said: R) -> None:
    with suppress(RuntimeError):  # the loop has ended, and nobody waits any more
        loop.call_soon_threadsafe(_tell, done, said)


def _tell(done: asyncio.Future[R], said: R) -> None:
    if not done.cancelled():
        done.set_result(said)
