"""A data set as a fitted plan transforms it: in memory, or as files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from falconet.compute.engine import collect
from falconet.compute.exchange import Source
from falconet.compute.executor import ROW, Executor, reading
from falconet.compute.local import LocalExecutor
from falconet.etl.dataset import Dataset
from falconet.etl.files import ROW_GROUP, Compression
from falconet.etl.fit import Inputs
from falconet.etl.fold import fold
from falconet.etl.op import KeyedOp
from falconet.etl.plan import Bound, Given, Plan, needed_by
from falconet.etl.stages import Stage, TransformPart, pass_by, stage_folder
from falconet.etl.writer import Shuffle, write
from falconet.schema import Schema


@dataclass(frozen=True, eq=False, repr=False)
class Transformed:
    """A data set as a workflow transforms it; nothing is read before `collect` or `to_parquet`."""

    plan: Plan
    bound: Mapping[int, Bound]
    dataset: Dataset
    given: Inputs
    """The columns of the data that the plan needs."""
    schema: Schema
    """The columns that come out."""
    executor: Executor | None
    """Who does the work where nobody else is named."""

    def collect(self, executor: Executor | None = None) -> pl.DataFrame:
        """All rows in memory, in order."""
        executor = executor or self.executor or LocalExecutor()
        with self._last_stage(executor) as (parts, transform):
            return pl.concat(executor.map(_Collect(transform), parts))

    def to_parquet(
        self,
        out: str | Path,
        *,
        shuffle: Shuffle = Shuffle.NONE,
        seed: int = 0,
        output_files: int | None = None,
        out_files_per_proc: int | None = None,
        row_group_size: int = ROW_GROUP,
        compression: Compression = "zstd",
        compression_level: int | None = None,
        partition_on: str | Sequence[str] = (),
        executor: Executor | None = None,
        overwrite: bool = False,
        parents: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write a folder of Parquet files with the schema in their footers, whole or not at all; the folder.

        The settings are those of `etl.writer.write`; without an `executor` the one of the fit does the work.
        """
        executor = executor or self.executor or LocalExecutor()
        with self._last_stage(executor) as (parts, transform):
            return write(
                parts,
                transform,
                out,
                schema=self.schema,
                reads=transform.reads,
                shuffle=shuffle,
                seed=seed,
                output_files=output_files,
                out_files_per_proc=out_files_per_proc,
                row_group_size=row_group_size,
                compression=compression,
                compression_level=compression_level,
                partition_on=partition_on,
                executor=executor,
                overwrite=overwrite,
                parents=parents,
                extra=extra,
            )

    @contextmanager
    def _last_stage(self, executor: Executor) -> Iterator[tuple[tuple[Source, ...], TransformPart]]:
        """The rows after the last keyed operator, and the function of one part from there to the outputs."""
        plan = self.plan
        stage = Stage(tuple(self.dataset.parts()), Given.of(self.given))
        with stage_folder() as folder:
            for i, step in enumerate(plan.steps):
                if isinstance(step.op, KeyedOp):
                    needed = needed_by(plan.steps[i + 1 :], plan.outputs)
                    stage = pass_by(plan, step, needed, self.bound, stage, executor, folder)
            rest = stage.rest(plan)
            yield stage.parts, TransformPart(rest, fold(rest, self.bound, stage.given).bound, stage.given)

    def __repr__(self) -> str:
        return f"Transformed({self.dataset.rows:,} rows, columns {', '.join(self.schema.names)})"


@dataclass(frozen=True)
class _Collect:
    """A part's outputs in memory."""

    transform: TransformPart

    def __call__(self, part: Source) -> pl.DataFrame:
        with reading(f"`{part.path}`"):
            frame = self.transform(part.scan(row_numbers=self.transform.asks_row))
            return collect(frame.drop(ROW, strict=False))
