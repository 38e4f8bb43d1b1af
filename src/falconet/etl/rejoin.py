"""A fitted workflow whose joins look things up elsewhere: in another table, or in what comes with the row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import polars as pl

from falconet.errors import SchemaError
from falconet.etl.ops.join import JoinExternal
from falconet.etl.plan import Ref, Step
from falconet.etl.types import column_of
from falconet.etl.workflow import FittedWorkflow


def joined_table(fitted: FittedWorkflow, key: str) -> pl.DataFrame | None:
    """What is joined by a column: the key and all that any join by it adds. None where there is no such join."""
    table: pl.DataFrame | None = None
    for step in _joins(fitted, key):
        assert isinstance(step.op, JoinExternal)
        one = step.op.table.rename({(step.op.on_ext or (key,))[0]: key})
        new = one if table is None else one.select(key, *(n for n in one.columns if n not in table.columns))
        table = new if table is None else table.join(new, on=key, how="full", coalesce=True)
    return table


def with_table(fitted: FittedWorkflow, key: str, table: pl.DataFrame) -> FittedWorkflow:
    """The same workflow, where what is joined by the column `key` comes from another table.

    What was learned stays; `partial_fit` then learns from the rows of both. Raises SchemaError where the table lacks a
    column or has it with another type.
    """

    def other(step: Step) -> Step:
        op = step.op
        assert isinstance(op, JoinExternal)
        own = (op.on_ext or (key,))[0]
        found = table.rename({key: own}) if own != key else table
        for name, dtype in op.table.schema.items():
            if found.schema.get(name) != dtype:
                raise SchemaError(
                    f"the table joined by `{key}` has {found.schema.get(name)} for `{name}`, the workflow knows {dtype}"
                )
        return replace(step, op=replace(op, df_ext=found.select(op.table.columns)))

    return _changed(fitted, key, other)


def without_joins(fitted: FittedWorkflow, key: str) -> FittedWorkflow:
    """The same workflow, where what was joined by the column `key` comes with the rows, in columns of those names.

    Raises SchemaError where the data has a column of such a name already.
    """
    joins = {step.id: step for step in _joins(fitted, key)}
    inputs = dict(fitted.inputs)
    for step in joins.values():
        assert isinstance(step.op, JoinExternal)
        for name in step.op.added:
            if name in fitted.inputs:
                raise SchemaError(f"`{name}` is joined by `{key}` and is in the data, too", hint="rename one of them")
            inputs[name] = column_of(name, step.op.table.schema[name])

    def given(ref: Ref) -> Ref:
        return (0, ref[1]) if ref[0] in joins else ref

    steps = tuple(
        replace(
            step,
            inputs=tuple(map(given, step.inputs)),
            also=tuple(map(given, step.also)),
            learns=tuple(map(given, step.learns)),
        )
        for step in fitted.plan.steps
        if step.id not in joins
    )
    plan = replace(fitted.plan, steps=steps, outputs=tuple((name, given(ref)) for name, ref in fitted.plan.outputs))
    needed = {name: inputs[name] for name in plan.input_columns}
    return replace(fitted, plan=plan, inputs=needed, fitted_on=None)


def _joins(fitted: FittedWorkflow, key: str) -> Iterator[Step]:
    for step in fitted.plan.steps:
        if isinstance(step.op, JoinExternal) and tuple(step.op.on) == (key,) and step.op.rows == "same":
            yield step


def _changed(fitted: FittedWorkflow, key: str, change: Callable[[Step], Step]) -> FittedWorkflow:
    joins = {step.id for step in _joins(fitted, key)}
    steps = tuple(change(step) if step.id in joins else step for step in fitted.plan.steps)
    return replace(fitted, plan=replace(fitted.plan, steps=steps), fitted_on=None)
