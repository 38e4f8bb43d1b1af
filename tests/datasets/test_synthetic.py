"""Synthetic data: shape, structure and repeatability."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from falconet.datasets import choices, synthetic
from falconet.datasets.choices import Chooser
from falconet.datasets.movielens import open_movielens
from falconet.datasets.synthetic import SynthConfig, draw_activity, synthesize
from falconet.datasets.titles import GENRES, NOUNS, make_titles
from falconet.datasets.world import build_world
from falconet.errors import ArtifactError, ConfigError


def read(folder: Path) -> tuple[dict[str, np.ndarray], pa.Table]:
    data = open_movielens(folder)
    table = pa.Table.from_batches(list(data.ratings()))
    return {name: table[name].to_numpy() for name in table.column_names}, data.movies()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of the demo: the default sizes."""
    return synthesize(tmp_path_factory.mktemp("synthetic") / "demo")


def test_the_numbers_are_those_asked_for(demo: Path) -> None:
    ratings, movies = read(demo)
    assert len(ratings["userId"]) == 100_000
    assert np.array_equal(np.unique(ratings["userId"]), np.arange(1, 2001))
    assert len(movies) == 1000
    assert set(ratings["movieId"]) <= set(movies["movieId"].to_pylist())
    assert open_movielens(demo).release == "synthetic"


def test_nobody_rates_a_film_twice(demo: Path) -> None:
    ratings, _ = read(demo)
    assert len(set(zip(ratings["userId"], ratings["movieId"], strict=True))) == 100_000


def test_users_ascend_and_each_ones_rows_are_in_time_order_over_years(demo: Path) -> None:
    ratings, movies = read(demo)
    same_user = np.diff(ratings["userId"]) == 0
    assert (np.diff(ratings["userId"]) >= 0).all()
    assert (np.diff(ratings["timestamp"])[same_user] > 0).all()
    assert ratings["timestamp"].min() > 1_104_537_600  # 2005
    assert ratings["timestamp"].max() - ratings["timestamp"].min() > 10 * 365 * 86_400
    assert max(movies["year"].to_pylist()) == 2004
    pauses = np.diff(ratings["timestamp"])[same_user]
    assert 0.03 < (pauses > 3600).mean() < 0.1  # sessions of about 15 rows


def test_ratings_are_half_stars_around_three_and_a_half(demo: Path) -> None:
    stars = read(demo)[0]["rating"]
    assert sorted(set(stars.tolist())) == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0]
    assert 3.2 < stars.mean() < 3.9


def test_films_have_unique_titles_with_their_year_and_one_to_four_genres(demo: Path) -> None:
    movies = read(demo)[1].to_pylist()
    assert len({film["title"] for film in movies}) == 1000
    assert all(film["title"].endswith(f" ({film['year']})") for film in movies)
    assert {len(film["genres"]) for film in movies} <= {1, 2, 3, 4}
    assert {genre for film in movies for genre in film["genres"]} == set(GENRES)


def test_popularity_and_activity_have_long_tails(demo: Path) -> None:
    ratings, _ = read(demo)
    by_item = np.sort(np.bincount(ratings["movieId"]))[::-1]
    by_user = np.bincount(ratings["userId"])[1:]
    assert by_item[:100].sum() > 0.3 * 100_000
    assert by_user.min() == 16
    assert by_user.max() > 5 * np.median(by_user)


def test_taste_beats_popularity_at_least_twice(demo: Path) -> None:
    """EASE (Steck 2019), 8 of 10 rows of each user for training: recall@10 over all items not seen."""
    ratings, _ = read(demo)
    user, item = ratings["userId"] - 1, np.unique(ratings["movieId"], return_inverse=True)[1]
    order = np.lexsort((np.random.default_rng(0).random(len(user)), user))
    count = np.bincount(user)
    rank = np.empty(len(user))
    rank[order] = np.arange(len(user)) - np.repeat(np.cumsum(count) - count, count)
    train = rank < 0.8 * count[user]
    seen = np.zeros((2000, item.max() + 1), dtype=np.float32)
    seen[user[train], item[train]] = 1
    wanted = np.zeros_like(seen)
    wanted[user[~train], item[~train]] = 1

    def recall(scores: np.ndarray) -> float:
        top = np.argsort(np.where(seen > 0, -np.inf, scores), axis=1)[:, -10:]
        return float((np.take_along_axis(wanted, top, axis=1).sum(axis=1) / wanted.sum(axis=1)).mean())

    inverse = np.linalg.inv(seen.T @ seen + 500 * np.eye(seen.shape[1], dtype=np.float32))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0)
    assert recall(seen @ weights) > 2 * recall(np.broadcast_to(seen.sum(axis=0), seen.shape))


def test_the_genres_of_a_users_films_are_not_those_of_everybody(demo: Path) -> None:
    ratings, movies = read(demo)
    has = np.array([[genre in film["genres"] for genre in GENRES] for film in movies.to_pylist()], dtype=float)
    place = np.searchsorted(movies["movieId"].to_numpy(), ratings["movieId"])
    by_user = np.zeros((2000, len(GENRES)))
    np.add.at(by_user, ratings["userId"] - 1, has[place])
    share = by_user / by_user.sum(axis=1, keepdims=True)
    everybody = by_user.sum(axis=0) / by_user.sum()
    assert np.abs(share - everybody).sum(axis=1).mean() > 0.5  # 0 were the same tastes, 2 entirely other ones


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        synthesize(tmp_path / name, users=1500, items=300, rows=30_000, seed=7)
    files = [p.relative_to(tmp_path / "a") for p in sorted((tmp_path / "a").rglob("*")) if p.is_file()]
    assert len(files) == 3
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_another_seed_gives_other_data(tmp_path: Path) -> None:
    a = read(synthesize(tmp_path / "a", users=50, items=60, rows=500, seed=1))
    b = read(synthesize(tmp_path / "b", users=50, items=60, rows=500, seed=2))
    assert a[0]["movieId"].tolist() != b[0]["movieId"].tolist()
    assert a[1]["title"].to_pylist() != b[1]["title"].to_pylist()


def test_blocks_of_users_cover_everybody_in_order() -> None:
    config = SynthConfig(users=2500, items=100, rows=50_000)
    batches = list(synthetic._rating_blocks(build_world(100, np.random.default_rng(0)), np.arange(100), config))
    assert [(b["userId"][0].as_py(), b["userId"][-1].as_py()) for b in batches] == [
        (1, 1024),
        (1025, 2048),
        (2049, 2500),
    ]
    assert sum(b.num_rows for b in batches) == 50_000


@pytest.mark.parametrize(
    ("users", "items", "rows"),
    [(1, 1, 1), (3, 1, 3), (5, 7, 35), (5, 7, 34), (10, 1000, 10), (1, 50, 37), (300, 40, 9000), (1000, 5, 1001)],
)
def test_extreme_sizes_come_out_exactly(tmp_path: Path, users: int, items: int, rows: int) -> None:
    ratings, movies = read(synthesize(tmp_path / "a", users=users, items=items, rows=rows))
    pairs = set(zip(ratings["userId"].tolist(), ratings["movieId"].tolist(), strict=True))
    assert (len(pairs), len(movies), len(set(ratings["userId"].tolist()))) == (rows, items, users)


def test_activity_sums_to_the_rows_and_keeps_its_bounds() -> None:
    count = draw_activity(SynthConfig(users=10_000, items=5_000, rows=1_000_003))
    assert (count.sum(), count.min()) == (1_000_003, 20)
    assert count.max() <= 2500


def test_drawing_and_scoring_choose_alike() -> None:
    """The two ways of choosing have one distribution: how often each item is taken agrees."""
    world = build_world(3000, np.random.default_rng(0))
    chooser = Chooser(world)
    taste = np.repeat(world.centre[:2], 400, axis=0)
    count = np.full(len(taste), 30)
    taken = {}
    for name, dense in (("drawn", 0), ("scored", 10_000)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(choices, "_DENSE_ITEMS", dense)
            user, item = chooser.choose(taste, count, np.random.default_rng(1))
        assert np.array_equal(np.bincount(user), count)
        assert len(set(zip(user.tolist(), item.tolist(), strict=True))) == 24_000
        taken[name] = np.bincount(item + 3000 * (user >= 400), minlength=6000)
    spread = np.sqrt(taken["drawn"] + taken["scored"] + 1.0)
    distance = (taken["drawn"] - taken["scored"]) / spread
    often = taken["scored"] > 20
    assert often.sum() > 200
    assert np.abs(distance[often].mean()) < 0.15
    assert 0.7 < distance[often].std() < 1.2


def test_titles_stay_unique_in_a_large_catalogue() -> None:
    genre = np.zeros(150_000, dtype=np.int64)
    titles = make_titles(genre, np.full(150_000, 1990), np.random.default_rng(0))
    assert len(set(titles)) == 150_000


def test_a_noun_belongs_to_one_genre() -> None:
    nouns = [noun for words in NOUNS.values() for noun in words.split()]
    assert len(nouns) == len(set(nouns))


def test_data_that_are_there_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = synthesize(tmp_path / "a", users=10, items=20, rows=50)
    before = (out / "movies.parquet").stat().st_ino
    synthesize(tmp_path / "a", users=10, items=20, rows=50)
    assert (out / "movies.parquet").stat().st_ino == before
    assert "there already" in capsys.readouterr().err


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".tmp-a-4242-0123abcd").mkdir()
    (tmp_path / ".tmp-a-b-4242-0123abcd").mkdir()  # of another folder
    synthesize(tmp_path / "a", users=10, items=20, rows=50)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".tmp-a-b-4242-0123abcd", "a"]


def test_other_data_in_the_way_are_not_replaced_unless_told(tmp_path: Path) -> None:
    out = synthesize(tmp_path / "a", users=10, items=20, rows=50)
    with pytest.raises(ArtifactError, match="a` exists already"):
        synthesize(out, users=10, items=20, rows=51)
    synthesize(out, users=10, items=20, rows=51, overwrite=True)
    assert len(read(out)[0]["userId"]) == 51


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"users": 0}, "`users` is 0\n\nhint: a whole number, at least 1"),
        ({"seed": -1}, "`seed` is -1\n\nhint: a whole number, at least 0"),
        ({"rows": 1999}, "1999 rows are too few for 2000 users\n\nhint: at least one row per user"),
        ({"users": 2, "items": 3, "rows": 7}, "7 rows are too many for 2 users and 3 items\n\nhint: .* at most 6 rows"),
        ({"items": 2**29}, "`items` is 536870912"),
    ],
)
def test_numbers_that_cannot_be_met_are_refused(tmp_path: Path, setting: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        synthesize(tmp_path / "a", **setting)
    assert list(tmp_path.iterdir()) == []


def test_parts_follow_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("falconet.datasets.layout.ROW_GROUP", 1000)
    monkeypatch.setattr("falconet.datasets.layout.PART_ROWS", 4000)
    out = synthesize(tmp_path / "a", users=1200, items=50, rows=10_500)
    parts = [pq.read_table(path)["userId"].to_numpy() for path in sorted((out / "ratings").iterdir())]
    assert [len(part) for part in parts] == [4000, 4000, 2500]
    assert all(a[-1] <= b[0] for a, b in pairwise(parts))
