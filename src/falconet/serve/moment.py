"""What a request may say of the moment, such as the hour or the device: raw columns, described for who asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from falconet.errors import FalconetError
from falconet.etl.ops.categorify import Categorify
from falconet.etl.workflow import FittedWorkflow

MOST = 50  # values that are told; of more there is no choosing
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
    kind = _kind(side.inputs[name].dtype)
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
