"""The work of etl.py by hand: Polars and numpy for this one data set, as fast as we could make it.

    python benchmarks/etl_by_hand.py --data FOLDER --out FOLDER

FOLDER has train.parquet, valid.parquet and movies.parquet (etl.py makes them). What is written has the same columns,
types, codes and order of rows as falconet's files. It knows what falconet must find out (ids are small whole numbers
without nulls, every film is in the table, all rows fit in memory, the names and types of all columns), and it leaves
out what falconet does beside the work: no schema, no checks, no hashes of files, nothing written aside or fsynced, no
saved workflow. What was tried and was slower: joins in place of look-up tables, a sort of frames in place of one of
64-bit numbers, lists attached before the shuffle, the streaming sink.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

FILE_ROWS = 4_194_304
ROW_GROUP = 131_072
PIECE = 1 << 20
FIRST, OOV = 3, 2


def counts(data: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """How often each user and each film is there."""
    rows = pl.scan_parquet(data / "train.parquet")
    users, movies = pl.collect_all([rows.group_by(key).len() for key in ("userId", "movieId")], engine="streaming")
    return users, movies


def codes(counted: pl.DataFrame) -> pl.DataFrame:
    """The most frequent first, ties by value."""
    name, count = counted.columns
    ordered = counted.sort([count, name], descending=[True, False])
    return ordered.select(name, code=pl.int_range(FIRST, pl.len() + FIRST, dtype=pl.Int32))


def table(coded: pl.DataFrame, size: int) -> pl.Series:
    """The code of every id below `size`."""
    found = np.full(size, OOV, np.int32)
    found[coded.to_series(0).to_numpy()] = coded["code"].to_numpy()
    return pl.Series(found)


def genres_of(movies: pl.DataFrame, counted: pl.DataFrame) -> tuple[pl.Series, pl.DataFrame]:
    """The codes of the genres of every film, in a list, by the film's place in the table."""
    exploded = movies.with_row_index("place").explode("genres")
    coded = codes(exploded.join(counted, on="movieId").group_by("genres").agg(pl.col("len").sum()))
    lists = exploded.join(coded, on="genres", how="left", maintain_order="left").with_columns(
        pl.col("code").fill_null(OOV)
    )
    return lists.group_by("place", maintain_order=True).agg("code")["code"].rechunk(), coded


def order(rows: int, seed: int) -> pl.Series:
    """All row numbers, by the upper half of splitmix64(number xor splitmix64(seed))."""
    packed = np.empty(rows, np.uint64)
    start = int(splitmix(np.array([seed], np.uint64))[0])
    for a in range(0, rows, 1 << 15):
        numbers = np.arange(a, min(a + (1 << 15), rows), dtype=np.uint64)
        packed[a : a + len(numbers)] = splitmix(numbers ^ np.uint64(start)) >> np.uint64(32) << np.uint64(32) | numbers
    return pl.Series(pl.Series(packed).sort().to_numpy().astype(np.uint32))


def splitmix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def write(
    data: Path, split: str, out: Path, users: pl.Series, films: pl.Series, places: pl.Series, lists: pl.Series
) -> None:
    rows = pl.read_parquet(data / f"{split}.parquet", columns=["userId", "movieId", "rating"]).rechunk()
    numbers = order(len(rows), seed=0)
    files = -(-len(rows) // FILE_ROWS)
    folder = out / split
    folder.mkdir(parents=True)

    def piece(start: int, stop: int) -> pl.DataFrame:
        return rows[numbers[start:stop]].select(
            pl.lit(users).gather(pl.col("userId")).alias("userId"),
            pl.lit(films).gather(pl.col("movieId")).alias("movieId"),
            pl.lit(lists).gather(pl.lit(places).gather(pl.col("movieId"))).alias("genres"),
            (pl.col("rating") > 3).cast(pl.Int8),
        )

    def file(i: int) -> None:
        start, stop = len(rows) * i // files, len(rows) * (i + 1) // files
        edges = [*range(start, stop, PIECE), stop]
        frame = pl.concat([piece(a, b) for a, b in pairwise(edges)])
        frame.write_parquet(folder / f"part-{i:05d}.parquet", compression="zstd", row_group_size=ROW_GROUP)

    with ThreadPoolExecutor(pl.thread_pool_size()) as pool:
        list(pool.map(file, range(files)))


def run(data: Path, out: Path) -> None:
    movies = pl.read_parquet(data / "movies.parquet", columns=["movieId", "genres"])
    users, films = counts(data)
    lists, _ = genres_of(movies, films)
    largest = 1 + max(int(pl.concat([films["movieId"], movies["movieId"]]).max()), int(users["userId"].max()))  # type: ignore[arg-type]
    places = np.zeros(largest, np.int32)
    places[movies["movieId"].to_numpy()] = np.arange(len(movies))
    for split in ("train", "valid"):
        write(data, split, out, table(codes(users), largest), table(codes(films), largest), pl.Series(places), lists)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    run(given.data, given.out)
