"""A PostgreSQL and a Redis of the tests' own, on loopback, gone with them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conftest import need


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _program(name: str) -> Path | None:
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    found = shutil.which(name)
    return debian[0] if debian else Path(found) if found else None


@contextmanager
def postgres() -> Iterator[str]:
    """The address of a database that starts empty."""
    initdb, server = _program("initdb"), _program("postgres")
    need("postgresql", initdb is not None and server is not None, "the programs initdb and postgres")
    assert initdb is not None and server is not None
    with tempfile.TemporaryDirectory(prefix="postgres-") as name:
        folder, account = Path(name), _account()
        if account:
            shutil.chown(folder, **account)
        data, port = folder / "data", free_port()
        subprocess.run(
            [initdb, "--auth=trust", "--username=falconet", "--encoding=UTF8", "--no-sync", data],
            check=True, capture_output=True, cwd=folder, **account,  # type: ignore[call-overload]
        )  # fmt: skip
        command = [server, "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", "", "-c", "fsync=off"]
        with _running(command, folder, port, account):
            yield f"postgresql://falconet@127.0.0.1:{port}/postgres"


def _account() -> dict[str, str]:
    """As whom PostgreSQL runs: it refuses to be root."""
    return {"user": "postgres", "group": "postgres"} if os.name == "posix" and os.getuid() == 0 else {}


@contextmanager
def _running(command: list[Any], folder: Path, port: int, account: dict[str, str]) -> Iterator[None]:
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, **account)  # type: ignore[call-overload]
        try:
            for _ in range(600):
                assert process.poll() is None, (folder / "log").read_text()
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.05)
            yield
        finally:
            process.terminate()
            process.wait(30)


@contextmanager
def redis() -> Iterator[str]:
    """The address of a database that starts empty and keeps an append-only file."""
    server = _program("redis-server") or _program("valkey-server")
    need("redis", server is not None, "the program redis-server or valkey-server")
    assert server is not None
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        command = [server, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--appendonly", "yes"]
        with _running(command, Path(folder), port, {}):
            yield f"redis://127.0.0.1:{port}/0"
