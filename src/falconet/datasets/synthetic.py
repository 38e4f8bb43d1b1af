"""MovieLens-shaped data with known structure, from a seed: `synthesize(out, users=2000, items=1000, rows=100_000)`.

Tastes are hidden vectors, genres follow them, popularity is Zipf's, activity is log-normal, and people watch in
sessions over years. Users are made in blocks of BLOCK with a random stream of their own each, so memory is bounded
and a block's rows depend on the settings alone. world.py states the formulas.

Shapes: I items, U users (of a block), N rows (of a block), D taste, G groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from falconet.config import to_plain
from falconet.datasets.choices import Chooser, rank_in_run
from falconet.datasets.layout import KIND, MOVIES, RATINGS, remove_leftovers, write_movies, write_ratings
from falconet.datasets.titles import GENRES, make_titles
from falconet.datasets.world import Floats, Ints, World, build_world, draw_genres, draw_tastes
from falconet.errors import ConfigError
from falconet.io.artifact import is_complete, write_artifact
from falconet.progress import note, progress

BLOCK = 1024  # users made together; another number would be other data
MIN_ACTIVITY = 20  # as in MovieLens, where the average allows it
ACTIVITY_SPREAD = 1.1  # sigma of the log-normal

FIRST_TIME, LAST_TIME = 1_104_537_600, 1_572_566_400  # 2005-01-01 and 2019-11-01, UTC
LAST_YEAR = 2004  # every film is out before the first rating
SESSION_ROWS = 15
DAY = 86_400

_WORLD, _TITLES, _ACTIVITY, _USERS = range(4)  # names of the random streams


@dataclass(frozen=True, kw_only=True)
class SynthConfig:
    """How much data to make, and the seed that decides every value of it."""

    users: int = 2000
    items: int = 1000
    rows: int = 100_000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("users", "items", "rows"):
            if getattr(self, name) < 1:
                raise ConfigError(f"`{name}` is {getattr(self, name)}", hint="a whole number, at least 1")
        if self.seed < 0:
            raise ConfigError(f"`seed` is {self.seed}", hint="a whole number, at least 0")
        if self.items >= 2**29:
            raise ConfigError(f"`items` is {self.items}", hint="item ids are 32 bits wide: fewer than 536,870,912")
        if self.rows < self.users:
            raise ConfigError(f"{self.rows} rows are too few for {self.users} users", hint="at least one row per user")
        if self.rows > self.users * self.items:
            raise ConfigError(
                f"{self.rows} rows are too many for {self.users} users and {self.items} items",
                hint=f"nobody rates a film twice: at most {self.users * self.items} rows",
            )


def synthesize(
    out: str | Path,
    *,
    users: int = 2000,
    items: int = 1000,
    rows: int = 100_000,
    seed: int = 0,
    overwrite: bool = False,
) -> Path:
    """Write synthetic data to the folder `out` in the Parquet layout of layout.py; the folder.

    The same settings give the same bytes (for one version of numpy and pyarrow). A folder that holds just these data is
    left as it is. Raises ArtifactError where `out` holds something else and `overwrite` is false, ConfigError for
    numbers that cannot be met.
    """
    config = SynthConfig(users=users, items=items, rows=rows, seed=seed)
    out = Path(out)
    source = {"synthetic": to_plain(config)}
    if is_complete(out, KIND, source=source):
        note(f"{out}: these data are there already")
        return out
    remove_leftovers(out)
    world = build_world(items, _stream(seed, _WORLD))
    with write_artifact(out, KIND, extra={"release": "synthetic", "source": source}, overwrite=overwrite) as draft:
        id_I = _item_ids(items, _stream(seed, _TITLES, 1))
        write_movies(_movies(world, id_I, seed), draft.path)
        with progress("generating", total=rows, unit="ratings") as task:

            def counted() -> Iterator[pa.RecordBatch]:
                for batch in _rating_blocks(world, id_I, config):
                    task.advance(batch.num_rows)
                    yield batch

            write_ratings(counted(), draft.path / "ratings")
    return out


def _stream(seed: int, *name: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64([seed, *name]))


def _item_ids(items: int, random: np.random.Generator) -> Ints:
    """Ascending ids with gaps, because real ones have them; the order says nothing about the item."""
    return np.asarray(np.cumsum(random.integers(1, 5, size=items)), dtype=np.int64)


def _movies(world: World, id_I: Ints, seed: int) -> pa.Table:
    random = _stream(seed, _TITLES, 0)
    genres = draw_genres(world, random)
    age_I = random.exponential(15.0, size=world.items).astype(np.int64)
    year_I = np.maximum(LAST_YEAR - age_I, 1925)
    turn_I = random.integers(12, size=world.items)
    named_after_I = np.array([g[turn % len(g)] for g, turn in zip(genres, turn_I, strict=True)])
    titles = make_titles(named_after_I, year_I, random)
    order_I = np.argsort(shuffled_places(world.items, seed))
    columns = {
        "movieId": id_I,
        "title": [titles[i] for i in order_I],
        "genres": [[GENRES[g] for g in genres[i]] for i in order_I],
        "year": year_I[order_I],
    }
    return pa.table({name: pa.array(columns[name], type=MOVIES.field(name).type) for name in MOVIES.names})


def shuffled_places(items: int, seed: int) -> Ints:
    """Where each item of the world (which are sorted by group) stands in the table of films."""
    return np.asarray(_stream(seed, _TITLES, 2).permutation(items), dtype=np.int64)


def _rating_blocks(world: World, id_I: Ints, config: SynthConfig) -> Iterator[pa.RecordBatch]:
    """One batch per block of users: users ascending, each user's rows in time order."""
    chooser = Chooser(world)
    place_I = shuffled_places(world.items, config.seed)
    count_U = draw_activity(config)
    for number, first in enumerate(range(0, config.users, BLOCK)):
        random = _stream(config.seed, _USERS, number)
        count_B = count_U[first : first + BLOCK]
        taste_BD = draw_tastes(world, len(count_B), random)
        user_N, item_N = chooser.choose(taste_BD, count_B, random)
        user_N, item_N = order_by_theme(user_N, item_N, world, len(count_B), random)
        columns = {
            "userId": first + user_N + 1,
            "movieId": id_I[place_I[item_N]],
            "rating": draw_ratings(taste_BD, user_N, item_N, world, random),
            "timestamp": draw_times(user_N, len(count_B), random),
        }
        arrays = [pa.array(columns[field.name].astype(field.type.to_pandas_dtype())) for field in RATINGS]
        yield pa.RecordBatch.from_arrays(arrays, schema=RATINGS)


def draw_activity(config: SynthConfig) -> Ints:
    """Rows per user (users,): log-normal between a least and a greatest number, with the sum `config.rows`."""
    mean = config.rows / config.users
    least = int(min(MIN_ACTIVITY, max(1, mean // 3)))
    most = int(min(config.items, max(config.items // 2, np.ceil(2 * mean))))
    shape_U = np.exp(ACTIVITY_SPREAD * _stream(config.seed, _ACTIVITY).standard_normal(config.users))
    low, high = 0.0, most / shape_U.min()
    for _ in range(100):  # bisect for the scale; the sum grows with it
        middle = (low + high) / 2
        low, high = (middle, high) if np.clip(middle * shape_U, least, most).sum() < config.rows else (low, middle)
    wanted_U = np.clip(high * shape_U, least, most)
    count_U: Ints = np.floor(wanted_U).astype(np.int64)
    short = config.rows - int(count_U.sum())
    # The rows lost by rounding down go to the users who lost most and have room.
    by_loss_U = np.argsort(np.where(count_U < most, count_U - wanted_U, 1.0), kind="stable")
    count_U[by_loss_U[:short]] += 1
    return count_U


def order_by_theme(
    user_N: Ints, item_N: Ints, world: World, users: int, random: np.random.Generator
) -> tuple[Ints, Ints]:
    """Each user's rows in the order of watching: 6 of 10 rows come with others of their group, the rest in between."""
    theme_UG = random.random((users, len(world.centre)))
    with_theme_N = random.random(len(user_N)) < 0.6
    key_N = np.where(with_theme_N, theme_UG[user_N, world.group[item_N]], random.random(len(user_N)))
    order_N = np.lexsort((key_N, user_N))
    return user_N[order_N], item_N[order_N]


def draw_times(user_N: Ints, users: int, random: np.random.Generator) -> Ints:
    """Seconds since 1970, strictly ascending within a user: sessions of about 15 rows, spread over weeks to years."""
    start_U = random.integers(FIRST_TIME, LAST_TIME, size=users)
    span_U = np.minimum(random.exponential(300.0, size=users) * DAY, LAST_TIME - start_U)
    is_first_N = rank_in_run(user_N, users) == 0
    opens_N = (random.random(len(user_N)) < 1 / SESSION_ROWS) & ~is_first_N
    pause_N = np.where(opens_N, random.standard_exponential(len(user_N)), 0.0)
    total_U = np.bincount(user_N, weights=pause_N, minlength=users)
    share_N = pause_N / np.where(total_U > 0, total_U, 1.0)[user_N]
    gap_N = np.where(opens_N, share_N * span_U[user_N], random.exponential(60.0, size=len(user_N))).astype(np.int64) + 5
    gap_N[is_first_N] = 0
    elapsed_N = np.cumsum(gap_N)
    before_N = np.repeat(elapsed_N[is_first_N], np.bincount(user_N, minlength=users))
    return np.asarray(start_U[user_N] + elapsed_N - before_N, dtype=np.int64)


def draw_ratings(taste_UD: Floats, user_N: Ints, item_N: Ints, world: World, random: np.random.Generator) -> Floats:
    """Stars from 0.5 to 5 in halves: user bias + item bias + taste + noise."""
    bias_U = 0.4 * random.standard_normal(len(taste_UD))
    match_N = np.einsum("nd,nd->n", taste_UD[user_N], world.vector[item_N])
    noise_N = 0.7 * random.standard_normal(len(user_N))
    stars_N = 2.85 + 1.2 * match_N + bias_U[user_N] + world.bias[item_N] + noise_N
    return np.asarray(np.clip(np.floor(2.0 * stars_N + 0.5) / 2.0, 0.5, 5.0))
