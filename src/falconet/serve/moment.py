"""What a request may say of the moment, such as the hour or the device: raw columns, described for who asks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

from falconet.errors import DataError, FalconetError
from falconet.etl.ops.categorify import Categorify
from falconet.etl.ops.time import Age, CyclicTime, TimeParts
from falconet.etl.types import polars_type
from falconet.etl.workflow import FittedWorkflow
from falconet.serve.said import as_values

MOST = 50  # values that are told; of more there is no choosing
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
Kind = Literal["number", "text", "bool", "date", "time"]


@dataclass(frozen=True)
class Moment:
    """A key of `context`: what kind of value it has, and the values that training knew, the most frequent first.

    `values` is None where these are not told: of a number that is read as such, of true and false, of too many.
    """

    name: str
    kind: Kind
    values: list[str | int | float | bool] | None


def moment_of(side: FittedWorkflow, name: str) -> Moment:
    """A raw column of a workflow. Its values are known where a vocabulary reads it as it is."""
    kind = "time" if _unit(side, name) is not None else _kind(side.inputs[name].dtype)
    return Moment(name, kind, None if kind == "bool" else _values(side, name))


def _kind(dtype: str) -> Kind:
    if dtype.startswith(("int", "uint", "float")):
        return "number"
    kinds: dict[str, Kind] = {"bool": "bool", "date": "date", "timestamp": "time"}
    return next((kind for start, kind in kinds.items() if dtype.startswith(start)), "text")


def _values(side: FittedWorkflow, name: str) -> list[str | int | float | bool] | None:
    for column in side.schema:
        plan = side.prune(outputs=[column.name]).plan
        if not any((0, name) in step.inputs and isinstance(step.op, Categorify) for step in plan.steps):
            continue
        try:
            known = side.vocabulary(column.name)["value"].drop_nulls()
        except FalconetError:  # codes of several columns
            continue
        return known.to_list() if len(known) <= MOST and not known.dtype.is_nested() else None
    return None


@dataclass(frozen=True)
class Clock:
    """How a raw column writes times; whole numbers count since 1970 (UTC), so many a second."""

    name: str
    dtype: pl.DataType
    per_second: int | None

    def read(self, text: str) -> Any:
        """The value of a time as text, which is of UTC where it names no zone.

        Raises DataError where it is none, or none that the column can hold.
        """
        try:
            return self._value(text)
        except (ValueError, OverflowError, pl.exceptions.InvalidOperationError) as error:
            raise DataError(f"`{self.name}` cannot be {text!r}: a time like 2024-05-31T17:45 is needed") from error

    def _value(self, text: str) -> Any:
        if self.per_second is None:
            return as_values([text], self.dtype)[0]
        time = dt.datetime.fromisoformat(text)
        since = (time if time.tzinfo else time.replace(tzinfo=dt.UTC)) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
        return since // dt.timedelta(microseconds=1) * self.per_second // 10**6


def clocks_of(side: FittedWorkflow) -> Mapping[str, Clock]:
    """The raw columns of a workflow that hold times."""
    found = {}
    for name, column in side.inputs.items():
        dtype, unit = polars_type(column), _unit(side, name)
        if unit is not None or isinstance(dtype, (pl.Date, pl.Datetime)):
            found[name] = Clock(name, dtype, unit)
    return found


def _unit(side: FittedWorkflow, name: str) -> int | None:
    """Of whole numbers that an operator of times reads: how many are a second."""
    if not polars_type(side.inputs[name]).is_integer():
        return None
    for step in side.plan.steps:
        if isinstance(step.op, (TimeParts, CyclicTime, Age)) and (0, name) in step.inputs:
            return _PER_SECOND[step.op.unit]
    return None
