"""Calls to the application without a server between."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from falconet.serve.http.app import create_app
from falconet.serve.recommender import Recommender
from falconet.serve.serving import Serving


class Client:
    """Asks what would be served. An error of the application is an answer here, too."""

    def __init__(self, served: Recommender | Serving, token: str | None = None) -> None:
        serving = Serving(served) if isinstance(served, Recommender) else served
        self.transport = httpx.ASGITransport(create_app(serving, token=token), raise_app_exceptions=False)

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            async with httpx.AsyncClient(transport=self.transport, base_url="http://test") as client:
                return await client.request(method, path, **more)

        return asyncio.run(send())

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.request("GET", path, **more)

    def post(self, path: str, **more: Any) -> httpx.Response:
        return self.request("POST", path, **more)
