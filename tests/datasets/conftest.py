"""The web server that downloads are tested against."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import pytest

from bad_server import Handler, Server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A web server on this machine, for one test."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler = type("Handler", (Handler,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        handler.state = Server(f"http://127.0.0.1:{http.server_port}/")
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield handler.state
        http.shutdown()
        thread.join()
