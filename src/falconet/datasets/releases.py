"""The MovieLens releases that GroupLens publishes: names, sizes and links."""

from __future__ import annotations

from dataclasses import dataclass

from falconet.errors import ConfigError, suggest

BASE_URL = "https://files.grouplens.org/datasets/movielens/"


@dataclass(frozen=True, kw_only=True)
class Release:
    """One release. Numbers are those of its README; the `latest` ones change now and then."""

    name: str
    megabytes: float  # of the zip, about
    ratings: int
    users: int
    movies: int

    @property
    def zip_name(self) -> str:
        return f"{self.name}.zip"

    @property
    def page(self) -> str:
        """The web page that describes it."""
        return f"https://grouplens.org/datasets/movielens/{self.name.removeprefix('ml-').removesuffix('-small')}/"


RELEASES = {
    release.name: release
    for release in (
        Release(name="ml-latest-small", megabytes=1.0, ratings=100_836, users=610, movies=9_742),
        Release(name="ml-100k", megabytes=4.9, ratings=100_000, users=943, movies=1_682),
        Release(name="ml-1m", megabytes=5.9, ratings=1_000_209, users=6_040, movies=3_883),
        Release(name="ml-10m", megabytes=65.6, ratings=10_000_054, users=71_567, movies=10_681),
        Release(name="ml-20m", megabytes=198.7, ratings=20_000_263, users=138_493, movies=27_278),
        Release(name="ml-25m", megabytes=262.0, ratings=25_000_095, users=162_541, movies=62_423),
        Release(name="ml-32m", megabytes=239.0, ratings=32_000_204, users=200_948, movies=87_585),
        Release(name="ml-latest", megabytes=350.0, ratings=33_832_162, users=330_975, movies=86_537),
    )
}


def find_release(name: str) -> Release:
    """The release called `ml-25m` or, short, `25m`. Raises ConfigError with the close name."""
    key = name.lower()
    key = key if key.startswith("ml-") else f"ml-{key}"
    if key not in RELEASES:
        raise ConfigError(f"unknown release `{name}`", hint=suggest(key, RELEASES))
    return RELEASES[key]
