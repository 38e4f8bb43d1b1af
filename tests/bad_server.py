"""A web server on this machine that can misbehave."""

from __future__ import annotations

from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any


@dataclass
class Server:
    """What the web server serves and how it misbehaves. `seen` lists (path, Range header, status)."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    etag: str | None = '"one"'
    cut_after: list[int] = field(default_factory=list)  # of each request to come: close after so many bytes
    fail: list[int] = field(default_factory=list)  # of each request to come: answer with this status
    seen: list[tuple[str, str | None, int]] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    state: Server

    def do_GET(self) -> None:
        state, name, wanted = self.state, self.path.lstrip("/"), self.headers.get("Range")
        if state.fail or name not in state.files:
            self.answer(state.fail.pop(0) if state.fail else 404, wanted)
            self.end_headers()
            return
        body, start = state.files[name], 0
        if wanted and state.ranges and self.headers.get("If-Range") == state.etag:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(body):
                self.answer(416, wanted)
                self.end_headers()
                return
            self.answer(206, wanted)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        else:
            self.answer(200, wanted)
        body = body[start:]
        self.send_header("Content-Length", str(len(body)))
        if state.etag:
            self.send_header("ETag", state.etag)
        self.end_headers()
        self.wfile.write(body[: state.cut_after.pop(0)] if state.cut_after else body)

    def answer(self, status: int, wanted: str | None) -> None:
        self.state.seen.append((self.path, wanted, status))
        self.send_response(status)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
