"""The short way of a call: threads that are bounded, and the same answers and refusals as FastAPI's own way."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import datetime
from functools import partial
from typing import Any

import httpx
import numpy as np
import pytest
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field

from falconet.serve.http.app import GuardedApp
from falconet.serve.http.quick import QuickCalls, Threads
from falconet.serve.http.replies import add_errors, answer


class Asked(BaseModel):
    number: int = Field(ge=0)
    name: str = "nobody"
    values: list[float] = []


class OddError(Exception):
    """An error that an application has an answer to."""


def _told(request: Asked) -> Response:
    reply = answer(request.model_dump())
    reply.headers["on"] = threading.current_thread().name
    return reply


def made(*, quick: bool = True) -> FastAPI:
    app, calls = GuardedApp(), QuickCalls()
    add_errors(app)
    app.guarded(9, calls)

    @app.post("/call")
    def call(request: Asked) -> Response:
        if request.number == 999:
            raise OddError("999")
        if request.number == 998:
            raise ZeroDivisionError
        return _told(request)

    @app.post("/with/{place}")
    def beside(place: int, request: Asked) -> Response:
        return _told(request)

    @app.post("/whole")
    def whole(request: Asked, asked: Request) -> Response:
        return _told(request)

    @app.exception_handler(OddError)
    def odd(request: Request, error: OddError) -> Response:
        return answer({"said": str(error)}, 418)

    if quick:
        calls.learn(app)
    return app


def post(app: FastAPI, path: str = "/call", *, raises: bool = True, **sent: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=raises)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.post(path, **sent)

    return asyncio.run(send())


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "text/plain", None])
@pytest.mark.parametrize(
    "body",
    [
        b'{"number": 3}', b'{"number": "3", "name": "x"}', b'{"number": 3.0, "values": [1, 2.5]}', b"{", b"", b"[]",
        b"null", b'{"number": -1}', b'{"name": 7}', b'{"number": 1, "name": "\\ud800"}', b'{"number": 1}x', b"\xff",
        b'{"number": 1, "number": 2}', '{"number": 1, "name": "äß"}'.encode(), '{"number": 1}'.encode("utf-16"),
    ],
)  # fmt: skip
def test_it_answers_and_refuses_as_the_whole_way_does(body: bytes, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    quick, whole = (post(made(quick=one), content=body, headers=headers) for one in (True, False))
    assert quick.status_code == whole.status_code
    assert quick.json() == whole.json()


def test_a_right_body_goes_the_short_way_and_others_do_not() -> None:
    app = made()
    for path, on in (("/call", "falconet-call"), ("/with/3", "AnyIO"), ("/whole", "AnyIO")):
        assert post(app, path, json={"number": 1}).headers["on"].startswith(on)


def test_errors_of_a_call_are_those_of_the_application() -> None:
    reply = post(made(), json={"number": 999})
    assert (reply.status_code, reply.json()) == (418, {"said": "999"})


@pytest.mark.parametrize("quick", [True, False])
def test_an_error_without_an_answer_is_500_with_the_guards_headers_and_is_raised(quick: bool) -> None:
    with pytest.raises(ZeroDivisionError):
        post(made(quick=quick), json={"number": 998})
    reply = post(made(quick=quick), raises=False, json={"number": 998}, headers={"x-request-id": "abc"})
    assert (reply.status_code, reply.headers.get_list("x-request-id")) == (500, ["abc"])
    assert reply.json()["error"]["message"].startswith("this request broke something here")
    assert reply.headers.get_list("x-content-type-options") == ["nosniff"]


def test_threads_run_side_by_side_up_to_a_bound_and_then_calls_wait() -> None:
    threads, together = Threads(3), threading.Barrier(3)
    seen: set[int] = set()

    def call(number: int) -> int:
        together.wait(timeout=10)
        seen.add(threading.get_ident())
        return number

    async def all_of_them() -> list[int]:
        return await asyncio.gather(*(threads.run(partial(call, i)) for i in range(12)))

    assert asyncio.run(all_of_them()) == list(range(12))
    assert asyncio.run(all_of_them()) == list(range(12))  # another loop, the same threads
    assert len(seen) == 3


def test_where_no_thread_can_be_started_a_call_says_so_and_the_next_one_tries_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = Threads(1)

    def none(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def both() -> int:
        with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="can't start new thread"):
            patch.setattr(threading.Thread, "start", none)
            await threads.run(lambda: 6)
        return await asyncio.wait_for(threads.run(lambda: 7), 10)

    assert asyncio.run(both()) == 7


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_what_a_call_raises_comes_out_and_its_thread_goes_on(error: BaseException) -> None:
    threads = Threads(1)

    def fail() -> None:
        raise error

    async def both() -> int:
        with pytest.raises(type(error)) as caught:
            await threads.run(fail)
        assert caught.value is error
        return await threads.run(lambda: 7)

    assert asyncio.run(both()) == 7


def test_who_waits_no_more_is_not_told() -> None:
    threads, go = Threads(1), threading.Event()

    async def leave() -> str:
        waiting = asyncio.ensure_future(threads.run(lambda: go.wait(10)))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go.set()
        return await threads.run(lambda: "next")

    assert asyncio.run(leave()) == "next"


def test_what_the_encoder_does_not_take_is_written_all_the_same() -> None:
    plain = {"number": np.float64(0.5), "nested": [Asked(number=1)], "time": datetime(2026, 1, 2)}
    said = {"number": 0.5, "nested": ["number=1 name='nobody' values=[]"], "time": "2026-01-02 00:00:00"}
    assert json.loads(answer(plain).body) == said
    odd = {"large": 2**70, "half": "\ud800", 3: [4]}
    assert json.loads(answer({**plain, **odd}).body) == {**said, "large": 2**70, "half": "?", "3": [4]}
