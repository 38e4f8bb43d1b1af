"""The stores that falconet can keep events, changes, profiles, pages and impressions in, and how one is opened."""

from __future__ import annotations

from pathlib import Path

from falconet.errors import ConfigError
from falconet.serve.store import Store

STORE_SECONDS = 10.0  # that a call waits, where nothing else is said


def open_store(where: str | Path, *, durable: bool = False, timeout: float = STORE_SECONDS) -> Store:
    """The store at a path of a file, or at `postgresql://…`, `redis://…`, `rediss://…` or `unix://…`.

    `durable`: an accepted event also survives the death of the machine, not only that of the process (a file; what
    servers do is their own setting). `timeout`: seconds that a call waits for a lock or a server. Raises ConfigError
    where a package is missing, ArtifactError where the store cannot be used.
    """
    scheme, separator, _ = str(where).partition("://")
    if not separator:
        from falconet.serve.stores.sqlite import SqliteStore

        return SqliteStore(where, durable=durable, timeout=timeout)
    if scheme in ("postgresql", "postgres"):
        from falconet.serve.stores.postgres import PostgresStore

        return PostgresStore(str(where), timeout=timeout)
    if scheme in ("redis", "rediss", "unix"):
        from falconet.serve.stores.redis import RedisStore

        return RedisStore(str(where), timeout=timeout)
    raise ConfigError(
        f"no store for `{scheme}://`", hint="a path, postgresql://user@host/database, or redis://host:6379/0"
    )


def open_existing(where: str) -> Store:
    """The store at an address; a file must be there. Raises ConfigError where it is not, and as `open_store` does."""
    if "://" not in where and not Path(where).is_file():
        raise ConfigError(f"no file of events at `{where}`", hint="`falconet serve` makes one")
    return open_store(where)
