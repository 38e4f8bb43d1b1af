"""The short way of a call whose only argument is its body: few steps, and one thread that is woken.

FastAPI describes such a call and says what is wrong with a body; a body that is right does not pass through it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from inspect import iscoroutinefunction
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

R = TypeVar("R")

_THREADS = 40  # calls at once


class QuickRoute(APIRoute):
    """A route as FastAPI has it, with the short way where the call takes a body and nothing else."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of a request; a body that does not fit goes FastAPI's way, which refuses it."""
        whole, call, body = super().get_route_handler(), self.endpoint, self._only_body()
        if body is None:
            return whole

        async def quick(request: Request) -> Response:
            if request.headers.get("content-type") != "application/json":
                return await whole(request)
            try:
                asked = body.model_validate_json(await request.body())
            except ValidationError:
                return await whole(request)
            return await _threads.run(lambda: call(asked))

        return quick

    def _only_body(self) -> type[BaseModel] | None:
        """The model of the body, for a function that takes it and nothing else and is no coroutine."""
        needs = self.dependant
        others = (needs.path_params, needs.query_params, needs.header_params, needs.cookie_params, needs.dependencies)
        if len(needs.body_params) != 1 or any(others) or iscoroutinefunction(self.endpoint):
            return None
        found = needs.body_params[0].field_info.annotation
        return found if isinstance(found, type) and issubclass(found, BaseModel) else None


class Threads:
    """Runs calls beside event loops, in threads that start when they are needed and end with the process."""

    def __init__(self, most: int = _THREADS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._started = self._open = 0

    async def run(self, call: Callable[[], R]) -> R:
        """What a call gives, or raises. While all threads are busy it waits for its turn."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[R | None, BaseException | None]] = loop.create_future()

        def work() -> None:
            try:
                said: tuple[R | None, BaseException | None] = call(), None
            except BaseException as error:  # noqa: BLE001  # whoever waits for it gets it
                said = None, error
            with self._lock:
                self._open -= 1
            with suppress(RuntimeError):  # the loop has ended, and nobody waits any more
                loop.call_soon_threadsafe(_tell, done, said)

        with self._lock:
            self._open += 1
            if self._started < min(self._open, self._most):
                self._started += 1
                threading.Thread(target=self._work, name="falconet-call", daemon=True).start()
        self._calls.put(work)
        result, error = await done
        if error is not None:
            raise error
        return cast(R, result)

    def _work(self) -> None:
        while True:
            self._calls.get()()


def _tell(done: asyncio.Future[R], said: R) -> None:
    if not done.cancelled():
        done.set_result(said)


_threads = Threads()
