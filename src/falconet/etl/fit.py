"""Fitting a plan: every statistic that can be made in one pass over the data is made in one scan of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from falconet.compute.executor import ROW, Executor, Part, reading
from falconet.errors import SchemaError
from falconet.etl import keyed
from falconet.etl.op import Group, KeyedOp, Op, StatOp
from falconet.etl.plan import Bound, Described, Plan, Step, asks_row, numbered, run, where
from falconet.etl.table import plain
from falconet.etl.types import polars_type
from falconet.progress import progress
from falconet.schema import Column

States = Mapping[tuple[int, Group], pl.DataFrame]
Inputs = Mapping[str, Column]


def bind(plan: Plan, states: States, *, fitted_data: bool = False) -> dict[int, Bound]:
    """What each step applies, once the statistics are there; keyed operators as they are."""
    bound: dict[int, Bound] = {}
    for step in plan.steps:
        op = step.op
        if isinstance(op, StatOp):
            finish = op.finish_fitted if fitted_data else op.finish
            bound[step.id] = tuple((group, finish(states[(step.id, group)])) for group in step.states)
        else:
            bound[step.id] = ((step.names, op),)
    return bound


def ops_of(bound: Mapping[int, Bound]) -> list[Op]:
    return [op for pairs in bound.values() for _, op in pairs]


def fit(plan: Plan, parts: Sequence[Part], inputs: Inputs, executor: Executor) -> dict[tuple[int, Group], pl.DataFrame]:
    """The state of every statistic of the plan."""
    states: dict[tuple[int, Group], pl.DataFrame] = {}
    bound: dict[int, Bound] = {}
    rows = sum(part.rows for part in parts)
    learned = [step for step in plan.steps if isinstance(step.op, StatOp)]
    needed = plan.part_of(ref for step in learned for ref in step.inputs).steps
    left = [step for step in plan.steps if step in learned or any(step.id == other.id for other in needed)]
    while left:
        ready = [step for step in left if all(s.id in bound for s in plan.part_of(step.inputs).steps)]
        statistics = [step for step in ready if isinstance(step.op, StatOp)]
        shuffles = [step for step in ready if isinstance(step.op, KeyedOp)]
        others = [step for step in ready if step not in statistics and step not in shuffles]
        if others:
            for step in others:
                bound[step.id] = ((step.names, step.op),)
        elif shuffles:
            for step in shuffles:
                bound[step.id] = gather(plan, step, bound, parts, inputs, executor)
        else:
            one = Pass(plan, tuple(statistics), dict(bound), inputs)
            with progress("fitting", total=rows) as task:
                found = executor.map_reduce(one, parts, one.merge)
                task.advance(rows)
            states.update(zip(one.keys, found, strict=True))
            for step in statistics:
                assert isinstance(step.op, StatOp)
                bound[step.id] = tuple((group, step.op.finish(states[(step.id, group)])) for group in step.states)
        left = [step for step in left if step.id not in bound]
    return states


def dry_fit(plan: Plan, inputs: Inputs) -> dict[tuple[int, Group], pl.DataFrame]:
    """The states of no rows: what does not fit says so here, before any data is read."""
    frame = empty(inputs)
    states: dict[tuple[int, Group], pl.DataFrame] = {}
    bound: dict[int, Bound] = {}
    for step in plan.steps:
        if isinstance(step.op, StatOp):
            rehearse(plan.part_of(step.inputs), bound, inputs)
            one = Pass(plan, (step,), bound, inputs)
            try:
                found = one.merge([one.of_frame(frame)])
            except pl.exceptions.PolarsError as error:
                raise SchemaError(f"{where(step)}: {str(error).partition(chr(10))[0]}") from error
            states.update(zip(one.keys, found, strict=True))
            bound[step.id] = tuple((group, step.op.finish(states[(step.id, group)])) for group in step.states)
        else:
            bound[step.id] = ((step.names, step.op),)
    rehearse(plan, bound, inputs)
    return states


def rehearse(plan: Plan, bound: Mapping[int, Bound], inputs: Inputs) -> Described:
    """The plan on no rows, computed, since some expressions say only then that a type does not fit."""
    state = run(plan, bound, numbered(empty(inputs), ops_of(bound)), inputs)
    try:
        state.frame.collect()
    except pl.exceptions.PolarsError as error:
        raise _misfit(plan, bound, inputs, error) from error
    return state


def _misfit(plan: Plan, bound: Mapping[int, Bound], inputs: Inputs, error: Exception) -> SchemaError:
    """Which operator it was: the first one whose own outputs cannot be computed."""
    frame = numbered(empty(inputs), ops_of(bound))
    for step in plan.steps:
        part = plan.part_of((step.id, name) for name in step.makes)
        try:
            run(part, bound, frame, inputs).frame.collect()
        except pl.exceptions.PolarsError:
            return SchemaError(f"{where(step)}: {str(error).partition(chr(10))[0]}")
    return SchemaError(str(error))


def empty(inputs: Inputs) -> pl.LazyFrame:
    """A frame of no rows with the data's types."""
    return pl.LazyFrame(schema={name: polars_type(column) for name, column in inputs.items()})


def gather(
    plan: Plan, step: Step, bound: Mapping[int, Bound], parts: Sequence[Part], inputs: Inputs, executor: Executor
) -> Bound:
    """A keyed operator's columns, made by an exchange over the parts, as an operator that puts them beside the rows."""
    assert isinstance(step.op, KeyedOp)
    before = Before(plan.part_of(step.inputs), dict(bound), inputs, step)
    return ((step.names, keyed.Made(step.op, keyed.make(step.op, step.names, parts, before, executor))),)


@dataclass(frozen=True)
class Before:
    """What a step's inputs are, under their plain names, of a part's rows."""

    plan: Plan
    bound: Mapping[int, Bound]
    inputs: Inputs
    step: Step

    def __call__(self, frame: pl.LazyFrame) -> pl.LazyFrame:
        state = run(self.plan, self.bound, plain(frame), self.inputs)
        return state.select((name, ref) for ref in self.step.inputs for name in (ref[1],))


@dataclass(frozen=True)
class Pass:
    """All statistics of one scan. Called on a part it gives their states; `merge` merges lists of states."""

    plan: Plan
    steps: tuple[Step, ...]
    bound: Mapping[int, Bound]
    inputs: Inputs

    @property
    def keys(self) -> list[tuple[int, Group]]:
        return [(step.id, group) for step in self.steps for group in step.states]

    def __call__(self, part: Part) -> list[pl.DataFrame]:
        ops = [step.op for step in self.steps] + ops_of(self.bound)
        with reading(f"`{part.path}`"):
            return self.of_frame(part.scan(row_numbers=asks_row(ops)))

    def of_frame(self, frame: pl.LazyFrame) -> list[pl.DataFrame]:
        """The states of a frame: the columns they need are made once, then each is summed up."""
        refs = list(dict.fromkeys(ref for step in self.steps for ref in step.inputs))
        frame = numbered(plain(frame), [step.op for step in self.steps] + ops_of(self.bound))
        state = run(self.plan.part_of(refs), self.bound, frame, self.inputs)
        names = {ref: f"{i}" for i, ref in enumerate(refs)}
        seen = state.select((name, ref) for ref, name in names.items()).collect().lazy()
        row = [ROW] if ROW in seen.collect_schema() else []
        lazy = []
        for step in self.steps:
            assert isinstance(step.op, StatOp)
            own = seen.select(*(pl.col(names[ref]).alias(ref[1]) for ref in step.inputs), *row)
            lazy += [step.op.partial(own, group) for group in step.states]
        return pl.collect_all(lazy)

    def merge(self, many: Sequence[list[pl.DataFrame]]) -> list[pl.DataFrame]:
        ops = [step.op for step in self.steps for _ in step.states]
        merged = []
        for op, *states in zip(ops, *many, strict=True):
            assert isinstance(op, StatOp)
            merged.append(op.merge(states))
        return merged
