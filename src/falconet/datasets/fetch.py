"""Fetching a file over HTTP that can be cut off: it grows in `part`, and another call carries on where it stopped.

Beside `part` lies `part`.json with the server's validator (ETag or Last-Modified) and the size. Only where the
validator still fits are the bytes kept; otherwise the file starts anew.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from falconet.errors import ConfigError, DataError
from falconet.io.artifact import falconet_version, write_file
from falconet.progress import Task, note, progress

CHUNK = 1 << 18
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
_HINT = "is this machine online? `--from PATH` takes a zip or folder that is here already"


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often in a row without a new byte, how long to wait before (doubled each time), and when a reply is late."""

    attempts: int = 5
    wait: float = 1.0  # seconds
    timeout: float = 30.0  # seconds

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.wait < 0 or self.timeout <= 0:
            raise ConfigError(f"{self} cannot be", hint="attempts >= 1, wait >= 0, timeout > 0")


class _CutError(Exception):
    """The transfer stopped for a reason that may pass. Never seen by a user."""


@dataclass(frozen=True)
class _Known:
    """What is known of a file that has begun to arrive."""

    url: str
    validator: str | None
    total: int | None


def fetch(url: str, part: Path, *, retry: Retry) -> None:
    """Bring the whole file to `part`, resuming what is there; at most `retry.attempts` tries in a row without progress.

    Raises DataError when the server has no such file or cannot be reached; what has arrived is kept for the next call.
    """
    most, failed = _size(part), 0
    while True:
        try:
            _attempt(url, part, retry.timeout)
        except _CutError as cut:
            failed = 0 if _size(part) > most else failed + 1
            most = max(most, _size(part))
            if failed >= retry.attempts:
                hint = f"{_size(part):,} bytes are in `{part}`; the same command carries on from there"
                raise DataError(f"`{url}`: {cut}", hint=hint if _size(part) else _HINT) from cut
            wait = retry.wait * 2**failed
            note(f"{part.stem}: {cut}; trying again in {wait:.0f} s")
            time.sleep(wait)
        else:
            return


def fetch_text(url: str, *, retry: Retry) -> str | None:
    """A small text file; None where the server has none (404). Raises DataError like `fetch`."""
    failed = 0
    while True:
        try:
            with _open(url, {}, retry.timeout) as response:
                return response.read(1 << 16).decode("utf-8", errors="replace")
        except _NotThereError:
            return None
        except (_CutError, OSError, http.client.HTTPException) as error:
            failed += 1
            if failed >= retry.attempts:
                raise DataError(f"`{url}`: {error}", hint=_HINT) from error
            time.sleep(retry.wait * 2**failed)


def forget(part: Path) -> None:
    """Remove a file that `fetch` brought, whole or not."""
    part.unlink(missing_ok=True)
    _notes(part).unlink(missing_ok=True)


def _attempt(url: str, part: Path, timeout: float) -> None:
    known, have = _read_notes(part), _size(part)
    if known is None or known.url != url:
        have = 0
    elif known.total == have:
        return
    headers = {}
    if known is not None and have and known.validator:
        headers = {"Range": f"bytes={have}-", "If-Range": known.validator}
    try:
        response = _open(url, headers, timeout)
    except _BadRangeError as error:
        forget(part)
        raise _CutError("the server refuses to resume, so it starts anew") from error
    with response:
        start, total = _place(response, have)
        validator = _validator(response)
        if start and known is not None and validator != known.validator:
            forget(part)
            raise _CutError("the file changed on the server, so it starts anew")
        _receive(response, part, start, total, _Known(url, validator, total))


def _receive(response: http.client.HTTPResponse, part: Path, start: int, total: int | None, known: _Known) -> None:
    """Write the body from byte `start` on, and check that all of it came."""
    have = start
    title = part.stem if not start else f"{part.stem} (from {start:,} bytes on)"
    try:
        with part.open("r+b" if start else "wb") as file:
            file.seek(start)
            write_file(_notes(part), json.dumps(asdict(known)).encode())
            with progress(title, total=None if total is None else (total - start) >> 10, unit="KiB") as task:
                while chunk := _read(response):
                    file.write(chunk)
                    advance_bytes(task, have - start, len(chunk))
                    have += len(chunk)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise DataError(f"cannot write `{part}`: {error.strerror or error}") from error
    if total is not None and have != total:
        raise _CutError(f"cut off after {have:,} of {total:,} bytes")
    if total is None:
        write_file(_notes(part), json.dumps({**asdict(known), "total": have}).encode())


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(CHUNK)  # what has arrived, so that a slow line shows too
    except (OSError, http.client.HTTPException) as error:
        raise _CutError(f"the connection broke ({error!r})") from error


def advance_bytes(task: Task, done: int, more: int) -> None:
    """Advance a task that counts KiB by `more` bytes after `done`."""
    task.advance(((done + more) >> 10) - (done >> 10))


class _NotThereError(DataError):
    """The server answered 404."""


class _BadRangeError(Exception):
    """The server answered 416."""


def _open(url: str, headers: dict[str, str], timeout: float) -> http.client.HTTPResponse:
    if not url.startswith(("http://", "https://")):
        raise DataError(f"`{url}` is not a web address", hint="it starts with https://")
    own = {"User-Agent": f"falconet/{falconet_version()}", "Accept-Encoding": "identity"}
    request = urllib.request.Request(url, headers={**own, **headers})  # noqa: S310 - the scheme is checked above
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=timeout)  # noqa: S310
    except urllib.error.HTTPError as error:
        with error:
            raise _refusal(url, error) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, (socket.gaierror, ssl.SSLCertVerificationError)):  # waiting will not help
            raise DataError(f"cannot reach `{url}`: {reason}", hint=_HINT) from error
        raise _CutError(f"no answer ({reason})") from error
    return response


def _refusal(url: str, error: urllib.error.HTTPError) -> Exception:
    answer = f"the server answers {error.code} {error.reason}"
    if error.code == 416:
        return _BadRangeError()
    if error.code in _TRANSIENT:
        return _CutError(answer)
    kind = _NotThereError if error.code == 404 else DataError
    return kind(f"`{url}`: {answer}", hint="`falconet data list` shows the releases and their pages")


def _place(response: http.client.HTTPResponse, have: int) -> tuple[int, int | None]:
    """At which byte the body starts and how many the whole file has; a server without ranges starts at 0."""
    if response.status == 206:
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != have:
            raise _CutError(f"the server sent another range ({response.headers.get('Content-Range')})")
        return have, int(found[2])
    length = response.headers.get("Content-Length")
    return 0, int(length) if length is not None and length.isdigit() else None


def _validator(response: http.client.HTTPResponse) -> str | None:
    """What `If-Range` may carry: a strong ETag, else the time of the last change."""
    etag = response.headers.get("ETag")
    return etag if etag and not etag.startswith("W/") else response.headers.get("Last-Modified")


def _notes(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _read_notes(part: Path) -> _Known | None:
    """None where there are none, or where they are damaged: then the file starts anew."""
    try:
        content: dict[str, Any] = json.loads(_notes(part).read_bytes())
        return _Known(content["url"], content["validator"], content["total"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
