"""Raw rows to what is learned from and what is asked: `work/split`, by the settings of `[split]`."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from falconet.compute.executor import ROW
from falconet.errors import ConfigError, DataError
from falconet.etl.dataset import Dataset
from falconet.etl.hash_expr import hash_expr
from falconet.etl.ops.split import Split
from falconet.etl.split import NUMBER, write_split
from falconet.io.artifact import write_artifact
from falconet.progress import note
from falconet.recipe.config import ColumnsConfig, SplitConfig

KNOWN = "known"
"""The folder of rows that are known of held-out users."""

_EMPTY = {
    "leave_last": 'a user\'s only row is for training: `split.kind = "time"` suits users of one row each',
    "items": "at least two items are needed, and users who took both a held-out one and another",
    "users": "at least two users are needed, and the held-out ones need more rows than `split.known`: another "
    '`split.kind`, such as "leave_last", holds out rows instead',
}
"""By `split.kind`: why nothing may be left on one side, and what to do."""


def split_rows(data: Dataset, columns: ColumnsConfig, config: SplitConfig, out: Path, *, where: str) -> None:
    """Write `out` with the folders `train` and `test`, and `known` where whole users are held out.

    `where`: what errors call the data. Raises DataError where a split leaves nothing to learn from or nothing to ask.
    """
    data = _kept(data, columns, config)
    if config.kind == "users":
        _hold_out_users(data, columns, config, out)
    elif config.kind == "items":
        _hold_out_items(data, columns, config, out)
    else:
        write_split(
            data,
            out,
            kind=config.kind,
            user=columns.item if config.kind == "stratified" else columns.user,
            time=columns.time,
            ratio=config.ratio,
            seed=config.seed,
            last=config.last,
            overwrite=True,
        )
    train, test = Dataset(out / "train").rows, Dataset(out / "test").rows
    if not train or not test:
        raise DataError(
            f"the split of `{where}` has {train} training and {test} test rows",
            hint=_EMPTY.get(config.kind, "`split.ratio` decides what is kept for the test"),
        )


def _kept(data: Dataset, columns: ColumnsConfig, config: SplitConfig) -> Dataset:
    """The rows of a rating that is high enough, of users who then have enough of them."""
    frame = data.scan()
    if config.min_rating is not None:
        if columns.rating is None:
            raise ConfigError(
                f"`split.min_rating` is {config.min_rating}, but `columns.rating` is empty",
                hint="name the column of ratings, or leave `min_rating` out",
            )
        rating = pl.col(columns.rating)
        frame = frame.filter((rating >= config.min_rating) & rating.cast(pl.Float64).is_not_nan())
    if config.min_items > 1:
        frame = frame.filter(pl.len().over(columns.user) >= config.min_items)
    if config.min_rating is None and config.min_items == 1:
        return data
    kept = Dataset(frame)
    note(f"{data.rows - kept.rows:,} of {data.rows:,} rows are below `split.min_rating` or `split.min_items`: left out")
    return kept


def _hold_out_users(data: Dataset, columns: ColumnsConfig, config: SplitConfig, out: Path) -> None:
    """Some users' rows go to `known` and `test`, all others' to `train`; which users, the seed and their ids say."""
    rows = data.scan(row_numbers=True)
    held = _held_out(rows, columns.user, config)
    theirs = _parted(rows.join(held.lazy(), on=columns.user, how="semi").sort(ROW), columns, config).collect()
    with write_artifact(out, "split", overwrite=True, extra={"seed": config.seed}) as draft:
        for name in ("train", KNOWN, "test"):
            (draft.path / name).mkdir()
        _write(rows.join(held.lazy(), on=columns.user, how="anti", maintain_order="left"), draft.path / "train")
        for name, part in ((KNOWN, "train"), ("test", "test")):
            _write(theirs.lazy().filter(pl.col("split") == part).drop("split").sort(ROW), draft.path / name)


def _hold_out_items(data: Dataset, columns: ColumnsConfig, config: SplitConfig, out: Path) -> None:
    """Some items' rows go to `test`, all others' to `train`; which items, the seed and their ids say."""
    rows = data.scan(row_numbers=True)
    held = _held_out(rows, columns.item, config).lazy()
    with write_artifact(out, "split", overwrite=True, extra={"seed": config.seed}) as draft:
        for name in ("train", "test"):
            (draft.path / name).mkdir()
        _write(rows.join(held, on=columns.item, how="anti", maintain_order="left"), draft.path / "train")
        _write(rows.join(held, on=columns.item, how="semi", maintain_order="left"), draft.path / "test")


def _held_out(rows: pl.LazyFrame, name: str, config: SplitConfig) -> pl.DataFrame:
    """The values of an id column that are held out: at least one, and not all."""
    ids = rows.select(pl.col(name).unique().sort()).collect()
    number = min(max(round(len(ids) * config.held_out), 1), len(ids) - 1)
    return ids.sort(hash_expr(pl.col(name), config.seed, ids.schema[name]), name).head(number)


def _write(rows: pl.LazyFrame, folder: Path) -> None:
    """Rows of known number as one file."""
    path = folder / "part-00000.parquet"
    rows.rename({ROW: NUMBER}).sink_parquet(path, compression="lz4", row_group_size=131_072)


def _parted(rows: pl.LazyFrame, columns: ColumnsConfig, config: SplitConfig) -> pl.LazyFrame:
    """The rows of held-out users with a column `split`: `train` where they are known, or else `test`."""
    if config.known is None:
        split = Split(kind="random", user=columns.user, ratio=config.ratio, seed=config.seed)
        return split.apply(rows, (columns.user,))
    ordered = rows if columns.time is None else rows.sort(columns.time, maintain_order=True)  # null is first
    first = pl.int_range(pl.len()).over(columns.user) < config.known
    return ordered.with_columns(split=pl.when(first).then(pl.lit("train")).otherwise(pl.lit("test")))
