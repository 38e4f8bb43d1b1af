"""Train, validation and test as folders of raw rows in file order."""

from __future__ import annotations

import datetime as dt
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from falconet.compute.engine import collect
from falconet.compute.exchange import writing
from falconet.compute.executor import ROW, Executor, Part, reach, reading
from falconet.compute.local import LocalExecutor
from falconet.errors import ColumnNotFoundError, ConfigError
from falconet.etl.dataset import Dataset
from falconet.etl.ops.split import Kind, Split
from falconet.etl.stages import bring_together, stage_folder
from falconet.io.artifact import write_artifact

NUMBER = "row"
"""The column of row numbers that a split adds: UInt64, in the file order of the data that was split."""
NAMES = ("train", "valid", "test")
ASIDE = ".aside"  # where files are written before they are renamed: a function may run twice


def write_split(
    dataset: Dataset,
    out: str | Path,
    *,
    kind: Kind,
    user: str | None,
    time: str | None = None,
    ratio: float = 0.8,
    valid_ratio: float = 0.0,
    seed: int = 0,
    cutoff: int | float | dt.datetime | dt.date | None = None,
    last: int = 1,
    executor: Executor | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the folders `train`, `test` and, where a validation share is asked for, `valid`, in one artefact `out`.

    Each holds all columns of its rows and `row`, the number in the file order of `dataset`, and keeps that order. See
    `ops.Split` for the settings. Raises ColumnNotFoundError and ConfigError before any data is read, ArtifactError when
    `out` exists and `overwrite` is false.
    """
    executor = executor or LocalExecutor()
    op = Split(
        kind=kind, user=user, time=time, ratio=ratio, valid_ratio=valid_ratio, seed=seed, cutoff=cutoff, last=last
    )
    for name in (*op.key, *op.order):
        if name not in dataset.schema:
            raise ColumnNotFoundError.of(name, dataset.schema, where="the data to split")
    if NUMBER in dataset.schema:
        raise ConfigError(
            f"the data to split has a column `{NUMBER}` already", hint="rename it, or leave it out with `columns`"
        )
    names = tuple(dict.fromkeys((*op.key, *op.order))) or tuple(dataset.schema)[:1]
    with write_artifact(out, "split", overwrite=overwrite, extra={"seed": seed}) as draft:
        where = _places(op, names, dataset, executor)
        kept = [name for name in NAMES if name != "valid" or valid_ratio > 0]
        for name in (*kept, ASIDE):
            (draft.path / name).mkdir()
        executor.map(_Write(where, str(draft.path), tuple(kept)), list(enumerate(dataset.parts())))
        shutil.rmtree(draft.path / ASIDE)
        for name in kept:
            _at_least_one(draft.path / name, dataset)
    return Path(out)


def _places(op: Split, names: tuple[str, ...], dataset: Dataset, executor: Executor) -> pl.Series:
    """Which of `NAMES` each row goes to, in file order."""
    with stage_folder() as folder:
        found = bring_together(
            dataset.parts(), executor, before=_Select(names), keys=op.key, finish=_Place(op, names), folder=folder
        )
        where = pl.concat([part.scan().select("split") for part in found])
        return collect(where.select(pl.col("split").cast(pl.Enum(NAMES)))).to_series()


@dataclass(frozen=True)
class _Place:
    """All rows of some users to their places, in file order."""

    op: Split
    names: tuple[str, ...]

    def __call__(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        return self.op.apply(frame.sort(*self.op.order, ROW), self.names).select("split", ROW).sort(ROW)


@dataclass(frozen=True)
class _Select:
    """Some columns and the row number."""

    names: tuple[str, ...]

    def __call__(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        return frame.select(*self.names, ROW)


@dataclass(frozen=True, eq=False)
class _Write:
    """The rows of one part to a file in each folder that has some of them."""

    where: pl.Series
    folder: str
    names: tuple[str, ...]

    def __call__(self, item: tuple[int, Part]) -> None:
        i, part = item
        folder = reach(self.folder)
        with reading(f"`{part.path}`"):
            frame = collect(part.scan(row_numbers=True).rename({ROW: NUMBER}))
        frame = frame.select(pl.exclude(NUMBER), NUMBER).with_columns(
            self.where.slice(part.first_row, part.rows).alias(ROW)
        )
        for name in self.names:
            rows = frame.filter(pl.col(ROW) == name).drop(ROW)
            if len(rows):
                aside, target = folder / ASIDE / uuid.uuid4().hex, folder / name / f"part-{i:05d}.parquet"
                with writing(target):
                    rows.write_parquet(aside, compression="lz4", row_group_size=131_072)
                    aside.replace(target)


def _at_least_one(folder: Path, dataset: Dataset) -> None:
    """A folder without rows has one file without rows, so that its types are known."""
    if not any(folder.iterdir()):
        empty = pl.DataFrame(schema={**dataset.schema, NUMBER: pl.UInt64()})
        empty.write_parquet(folder / "part-00000.parquet")
